"""Lesson 08's exercises: what right answers, plausible wrong ones, and stubs are told; the numbers in its prose."""

import math

import numpy as np
import pytest
import torch
from torch import nn
from verdicts import told

import ppcourse as pp
from ppcourse.lab.graders import lesson_08
from ppcourse.runtime.models import gpt

pytestmark = pytest.mark.usefixtures("own_progress")


# 8.1


def test_the_right_peak_is_solved() -> None:
    assert pp.grade("8.1", lambda rank, p, m, layers: min(m, p - rank) * layers / p)
    assert pp.grade("8.1", lambda rank, p, m, layers: pp.in_flight(pp.build("1f1b", p, m))[rank] * layers // p)


WRONG_PEAKS = {
    "all of them": (
        lambda rank, p, m, layers: layers,
        "held(0, 2, 1, 8) is 8, but should be 4: 1 microbatch of 4 layers;"
        " later ranks hold less, and no rank more than m.",
    ),
    "all layers": (
        lambda rank, p, m, layers: min(m, p - rank) * layers,
        "held(0, 2, 1, 8) is 8, but should be 4: 1 microbatch of 4 layers; yours has all layers on each rank.",
    ),
    "gpipe": (
        lambda rank, p, m, layers: m * layers / p,
        "held(0, 2, 4, 8) is 16, but should be 8: 2 microbatches of 4 layers; yours is GPipe.",
    ),
    "rank 0 everywhere": (
        lambda rank, p, m, layers: min(m, p) * layers / p,
        "held(1, 2, 4, 8) is 8, but should be 4: 1 microbatch of 4 layers; yours is rank 0's.",
    ),
    "not clamped": (
        lambda rank, p, m, layers: (p - rank) * layers / p,
        "held(0, 2, 1, 8) is 8, but should be 4: 1 microbatch of 4 layers; there are no more microbatches than m.",
    ),
    "not clamped, four ranks": (
        lambda rank, p, m, layers: (p - rank) * layers / p if p == 4 else min(m, p - rank) * layers / p,
        "held(0, 4, 2, 8) is 8, but should be 4: 2 microbatches of 2 layers.",
    ),
    "upside down": (
        lambda rank, p, m, layers: min(m, rank + 1) * layers / p,
        "held(0, 2, 4, 8) is 4, but should be 8: 2 microbatches of 4 layers; yours grows from rank to rank.",
    ),
    "warm-up only": (
        lambda rank, p, m, layers: min(m, p - 1 - rank) * layers / p,
        "held(0, 1, 1, 8) is 0, but should be 8: 1 microbatch of 8 layers; add the forward before the first backward.",
    ),
    "shrinks with p": (
        lambda rank, p, m, layers: layers / p,
        "held(0, 2, 4, 8) is 4, but should be 8: 2 microbatches of 4 layers; yours is one microbatch.",
    ),
    "microbatches": (
        lambda rank, p, m, layers: min(m, p - rank),
        "held(0, 1, 1, 8) is 1, but should be 8: 1 microbatch of 8 layers; yours counts microbatches.",
    ),
    "text": (lambda rank, p, m, layers: "8", "held(0, 1, 1, 8) is '8'; return a number of layers' worth."),
}


@pytest.mark.parametrize("case", WRONG_PEAKS)
def test_a_wrong_peak_gets_the_smallest_case(case: str) -> None:
    answer, sentence = WRONG_PEAKS[case]
    assert told("8.1", answer) == sentence


# 8.2


def right(schedule: str, p: int, kept: int, room: int) -> float:
    return math.inf if schedule == "1f1b" and p * kept <= room else room // kept


@pytest.mark.thorough
def test_the_right_m_is_solved() -> None:
    assert pp.grade("8.2", right)
    assert pp.grade("8.2", lambda schedule, p, kept, room: float(right(schedule, p, kept, room)))
    assert pp.grade("8.2", lambda *case: right(*case) if right(*case) == math.inf else np.int64(right(*case)))


WRONG_COUNTS = {
    "always finite": (
        lambda schedule, p, kept, room: room // kept,
        'largest_m("1f1b", 4, 10, 40) is 4, but with 5 rank 0 still holds 40 bytes, and with any m: return math.inf.',
    ),
    "at most p": (
        lambda schedule, p, kept, room: min(p, room // kept) if schedule == "1f1b" else room // kept,
        'largest_m("1f1b", 4, 10, 40) is 4, but with 5 rank 0 still holds 40 bytes, and with any m: return math.inf.',
    ),
    "always infinite": (
        lambda schedule, p, kept, room: math.inf if schedule == "1f1b" else room // kept,
        'largest_m("1f1b", 4, 10, 35) is inf, but 4 already hold 40 bytes on rank 0: 3 fit.',
    ),
    "gpipe flat too": (
        lambda schedule, p, kept, room: math.inf if p * kept <= room else room // kept,
        'largest_m("gpipe", 4, 10, 85) is inf, but 9 already hold 90 bytes on rank 0: 8 fit.',
    ),
    "shared among ranks": (
        lambda schedule, p, kept, room: right(schedule, p, kept, room // p),
        'largest_m("gpipe", 4, 10, 85) is 2, but 3 fit too, and hold 30 bytes.',
    ),
    "rounded up": (
        lambda schedule, p, kept, room: math.ceil(right(schedule, p, kept, room) if room < p * kept else room / kept),
        'largest_m("gpipe", 4, 10, 85) is 9, but 9 already hold 90 bytes on rank 0: 8 fit.',
    ),
    "not rounded": (
        lambda schedule, p, kept, room: room / kept,
        'largest_m("gpipe", 4, 10, 85) is 8.5; a number of microbatches is a whole number of at least 0.',
    ),
    "at least one": (
        lambda schedule, p, kept, room: max(1, right(schedule, p, kept, room)),
        'largest_m("gpipe", 2, 7, 6) is 1, but 1 already hold 7 bytes on rank 0: 0 fit.',
    ),
    "strictly less": (
        lambda schedule, p, kept, room: math.inf if schedule == "1f1b" and p * kept < room else (room - 1) // kept,
        'largest_m("1f1b", 4, 10, 40) is 3, but with 4 rank 0 still holds 40 bytes, and with any m: return math.inf.',
    ),
    "text": (
        lambda schedule, p, kept, room: "inf",
        "largest_m(\"gpipe\", 4, 10, 85) is 'inf'; return a number, or math.inf.",
    ),
}


@pytest.mark.parametrize("case", WRONG_COUNTS)
def test_a_wrong_count_gets_the_smallest_case(case: str) -> None:
    answer, sentence = WRONG_COUNTS[case]
    assert told("8.2", answer) == sentence


# 8.3


def test_the_right_share_is_solved() -> None:
    assert pp.grade("8.3", lambda d, h: 2 * (d + h) / (d + 2 * h))


WRONG_SHARES = {
    "inputs": (
        lambda d, h: (d + h) / (d + 2 * h),
        "share(64, 256) is 0.555556, but should be 1.11111: a row has 640 numbers left after I, of 576 after F;"
        " yours has either the inputs or the output gradients; W multiplies the ones with the others.",
    ),
    "everything": (
        lambda d, h: 1.0,
        "share(64, 256) is 1, but should be 1.11111: a row has 640 numbers left after I, of 576 after F;"
        " yours is all that F kept, but GELU's input is not needed any more.",
    ),
    "everything and gradients": (
        lambda d, h: (2 * d + 3 * h) / (d + 2 * h),
        "share(64, 256) is 1.55556, but should be 1.11111: a row has 640 numbers left after I, of 576 after F;"
        " yours keeps what F kept, and the output gradients; GELU's input is not needed any more.",
    ),
    "no hidden gradient": (
        lambda d, h: (2 * d + h) / (d + 2 * h),
        "share(64, 256) is 0.666667, but should be 1.11111: a row has 640 numbers left after I, of 576 after F;"
        " the gradient of the hidden vector is missing.",
    ),
    "numbers, not a share": (
        lambda d, h: 2 * (d + h),
        "share(64, 256) is 640, but should be 1.11111: a row has 640 numbers left after I, of 576 after F;"
        " divide by what F kept.",
    ),
    "right for one width": (
        lambda d, h: 10 / 9,
        "share(32, 32) is 1.11111, but should be 1.33333: a row has 128 numbers left after I, of 96 after F.",
    ),
    "nothing": (
        lambda d, h: 0,
        "share(64, 256) is 0, but should be 1.11111: a row has 640 numbers left after I, of 576 after F.",
    ),
    "text": (lambda d, h: "more than 1", "share(64, 256) is 'more than 1'; return one number."),
}


@pytest.mark.parametrize("case", WRONG_SHARES)
def test_a_wrong_share_gets_the_smallest_case(case: str) -> None:
    answer, sentence = WRONG_SHARES[case]
    assert told("8.3", answer) == sentence


# all


@pytest.mark.parametrize("number", ["8.1", "8.2", "8.3"])
def test_what_a_stub_returns_is_not_solved_yet(number: str) -> None:
    def stub(*args: object) -> None: ...

    assert [pp.grade(number, answer).state for answer in (..., None, stub)] == ["unsolved"] * 3


@pytest.mark.parametrize("number", ["8.1", "8.2", "8.3"])
@pytest.mark.parametrize(
    "answer", [3, "min(m, p)", object(), lambda *args: args[9], lambda *args: [1, 2], lambda *args: math.nan]
)
def test_no_answer_raises(number: str, answer: object) -> None:
    assert pp.grade(number, answer).state == "wrong"


def test_an_endless_count_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    import dataclasses

    from ppcourse.lab import graders

    quick = dataclasses.replace(graders.exercises(8)["8.2"], limit=0.3)
    monkeypatch.setitem(graders.registered, "8.2", quick)

    def counting(schedule: str, p: int, kept: int, room: int) -> int:
        m = 1
        while pp.in_flight(pp.build("1f1b", p, 4))[0] * kept <= room:
            m += 1
        return m

    assert told("8.2", counting).startswith("counting('gpipe', 4, 10, 85) still runs after 0.3 s")


# what the lesson says


def test_what_w_needs_of_layers_with_attention() -> None:
    """Below 1 with dropout and kept scores, above 1 where attention is fused and nothing is dropped."""
    torch.manual_seed(0)
    dropped = nn.TransformerEncoderLayer(64, 4, 256, dropout=0.1, batch_first=True)
    fused = gpt(layers=1, width=64, vocab=128)[1]
    shares = []
    for layer in (dropped, fused):
        after_f, after_i = lesson_08.left_behind(layer, (1, 64, 64))
        shares.append(after_i / after_f)
    assert shares[0] < 0.7
    assert shares[1] > 1.1


def test_a_last_relu_keeps_the_output_that_a_last_linear_does_not() -> None:
    """So freeing what was sent gains nothing there."""
    rows, edge = 16, 4 * 16 * 64
    for last, wanted in ((nn.Linear(64, 64), False), (nn.ReLU(), True)):
        stage = nn.Sequential(nn.Linear(64, 64), last)
        seen: list[int] = []

        def note(tensor: torch.Tensor, seen: list[int] = seen) -> torch.Tensor:
            seen.append(tensor.untyped_storage().data_ptr())
            return tensor

        with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
            out = stage(torch.randn(rows, 64))
        assert (out.untyped_storage().data_ptr() in seen) is wanted
        assert out.nbytes == edge


def test_the_whole_formula_replay_and_ranks_agree_to_the_byte() -> None:
    """The lesson's three columns, for another model and other counts; with split backwards too."""
    d, h, rows, p, m = 24, 40, 4, 3, 5
    layers = [nn.Sequential(nn.Linear(d, h), nn.GELU(), nn.Linear(h, d)) for _ in range(p)]
    x, y = torch.randn(2, rows * m, d)
    one, edge = 4 * rows * (d + 2 * h), 4 * rows * d
    stashed = [one - edge, one, one + edge]
    kept = [4 * rows * 2 * (d + h) - (edge if rank == 0 else 0) for rank in range(p)]
    for name in ("1f1b", "gpipe", "zb-h1", "zb-h2"):
        held = pp.run(name, layers, x, y, loss_fn=nn.functional.mse_loss, p=p, m=m, memory=True).held_bytes
        replayed = pp.in_flight_bytes(pp.build(name, p, m), stashed, kept)
        differ = [a - b for a, b in zip(held, replayed, strict=True)]
        assert differ[:2] == [0, 0]
        assert 0 < differ[2] <= 4 * m  # the losses until then
        if name == "1f1b":
            assert replayed == tuple(min(m, p - rank) * stashed[rank] for rank in range(p))
