"""Lesson 01's exercises: what right answers, plausible wrong ones, and stubs are told."""

import itertools
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn import functional as F
from toys import by_value

import ppcourse as pp
from ppcourse.lab import graders, progress
from ppcourse.lab.graders import lesson_01

by_value(__name__)
Answer = Callable[..., Any]
WIDTH = lesson_01.WIDTH


@pytest.fixture(autouse=True)
def own_progress(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PPCOURSE_PROGRESS", str(tmp_path / "progress.json"))
    monkeypatch.setattr(progress, "unsaved", {})


def cut(num_layers: int, p: int) -> list[range]:
    least, more = divmod(num_layers, p)
    starts = [stage * least + min(stage, more) for stage in range(p + 1)]
    return [range(*pair) for pair in itertools.pairwise(starts)]


def remainder_last(num_layers: int, p: int) -> list[range]:
    least = num_layers // p
    return [range(s * least, num_layers if s == p - 1 else (s + 1) * least) for s in range(p)]


def remainder_late(num_layers: int, p: int) -> list[list[int]]:
    sizes = [len(stage) for stage in cut(num_layers, p)][::-1]
    return [list(range(sum(sizes[:s]), sum(sizes[: s + 1]))) for s in range(p)]


def step(
    rank: int,
    stage: nn.Module,
    x: Tensor,
    y: Tensor,
    leaf: bool = True,
    begin: str = "gradient",
    back: str = "grad",
    loss_of: Callable[[Tensor, Tensor], Tensor] = F.mse_loss,
    number_of: Callable[[Tensor], Any] = Tensor.item,
) -> Any:
    """The right step, with one mistake if asked for."""
    if rank == 0:
        h = stage(x)
        dist.send(h.detach(), 1)
        gradient = torch.zeros(len(x), WIDTH)
        dist.recv(gradient, 1)
        if begin != "nothing":
            h.backward({"gradient": gradient, "ones": torch.ones_like(h), "alone": None}[begin])
        return None
    h = torch.zeros(len(x), WIDTH)
    dist.recv(h, 0)
    h.requires_grad_(leaf)
    loss = loss_of(stage(h), y)
    if back == "too early":
        dist.send(torch.zeros_like(h), 0)
    loss.backward()
    if back != "too early":
        dist.send({"grad": h.grad, "h": h.detach(), "zeros": torch.zeros_like(h)}[back], 0)
    return number_of(loss)


def compact_step(rank: int, stage: nn.Module, x: Tensor, y: Tensor) -> Any:
    """Another right one: a new leaf, the loss as a tensor, autograd.grad in one place, isend."""
    if rank == 0:
        h, back = stage(x), torch.empty(len(x), WIDTH)
        dist.isend(h.detach(), 1).wait()
        dist.recv(back, 1)
        torch.autograd.backward(h, back)
        return 0.0
    arrived = torch.empty(len(x), WIDTH)
    dist.recv(arrived, 0)
    leaf = nn.Parameter(arrived)
    loss = F.mse_loss(stage(leaf), y)
    loss.backward()
    dist.send(leaf.grad, 0)
    return loss.detach()


def with_mistake(**mistake: Any) -> Answer:
    def wrong_step(rank: int, stage: nn.Module, x: Tensor, y: Tensor) -> Any:
        return step(rank, stage, x, y, **mistake)

    return wrong_step


def updates_too(rank: int, stage: nn.Module, x: Tensor, y: Tensor) -> float | None:
    loss: float | None = step(rank, stage, x, y)
    for weight in stage.parameters():
        weight.data -= 0.1 * weight.grad
    return loss


def sum_loss(output: Tensor, target: Tensor) -> Tensor:
    return F.mse_loss(output, target, reduction="sum")


def both_receive(rank: int, stage: nn.Module, x: Tensor, y: Tensor) -> None:
    dist.recv(torch.empty(len(x), WIDTH), 1 - rank)


def no_loss(rank: int, stage: nn.Module, x: Tensor, y: Tensor) -> None:
    step(rank, stage, x, y)


def traffic(rows: int, width: int, parameters: int, d: int, size: int) -> tuple[float, float]:
    return 2 * rows * width * size, 2 * (d - 1) * parameters / d * size


def only(place: int, formula: Callable[..., float]) -> Answer:
    """The right bytes but for one of the two."""

    def wrong(*case: int) -> list[float]:
        both = list(traffic(*case))
        both[place] = formula(*case)
        return both

    return wrong


RIGHT: dict[str, tuple[str, Answer]] = {
    "ranges": ("1.1", cut),
    "lists": ("1.1", lambda num_layers, p: [list(stage) for stage in cut(num_layers, p)]),
    "in place": ("1.2", lambda numbers: numbers.requires_grad_()),
    "a copy": ("1.2", lambda numbers: numbers.clone().requires_grad_()),
    "a parameter": ("1.2", lambda numbers: nn.Parameter(numbers)),
    "step": ("1.3", step),
    "another step": ("1.3", compact_step),
    "bytes": ("1.4", traffic),
    "bytes as an array": ("1.4", lambda *case: np.array(traffic(*case))),
    "bytes, turn by turn": (
        "1.4",
        lambda rows, width, parameters, d, size: [
            sum(rows * width * size for _ in range(2)),
            sum(parameters / d * size for _ in range(2 * (d - 1))),
        ],
    ),
}

WRONG: dict[str, tuple[str, Answer, str]] = {
    "no remainder": (
        "1.1",
        lambda n, p: [range(s * (n // p), (s + 1) * (n // p)) for s in range(p)],
        "cut(3, 2) gives stages of 1, 1 layers, but nobody gets layer 2.",
    ),
    "remainder last": (
        "1.1",
        remainder_last,
        "cut(3, 2) gives stages of 1, 2 layers, but should be 2, 1: the earliest stages take the remainder.",
    ),
    "remainder late": (
        "1.1",
        remainder_late,
        "cut(3, 2) gives stages of 1, 2 layers, but should be 2, 1: the earliest stages take the remainder.",
    ),
    "rounded up": (
        "1.1",
        lambda n, p: [range(min(n, s * -(-n // p)), min(n, (s + 1) * -(-n // p))) for s in range(p)],
        "cut(6, 4) gives stages of 2, 2, 2, 0 layers, but should be 2, 2, 1, 1: the longest stage sets the pace.",
    ),
    "round-robin": (
        "1.1",
        lambda n, p: [range(s, n, p) for s in range(p)],
        "cut(4, 2) gives stages of 2, 2 layers, but not of neighbours in order: each cut more is one more message.",
    ),
    "one too far": (
        "1.1",
        lambda n, p: [range(stage[0], stage[-1] + 2) for stage in cut(n, p)],
        "cut(1, 1) gives stages of 2 layers, 2 in all, but there are 1: does a range name its last layer too?",
    ),
    "the last gets all": (
        "1.1",
        lambda n, p: [*(range(s, s + 1) for s in range(p - 1)), range(p - 1, n)],
        "cut(4, 2) gives stages of 1, 3 layers, but should be 2, 2: the longest stage sets the pace.",
    ),
    "sizes": (
        "1.1",
        lambda n, p: [len(stage) for stage in cut(n, p)],
        "cut(1, 1) returns [1]; return a list of ranges, one a stage.",
    ),
    "one stage": ("1.1", lambda n, p: [range(n)], "cut(4, 2) gives stages of 4 layers; it should be 2 stages."),
    "as it came": (
        "1.2",
        lambda numbers: numbers,
        "what receive returns does not require a gradient, so autograd makes none for it.",
    ),
    "detached again": (
        "1.2",
        lambda numbers: numbers.requires_grad_().detach(),
        "what receive returns does not require a gradient, so autograd makes none for it.",
    ),
    "no leaf": (
        "1.2",
        lambda numbers: numbers.requires_grad_() * 1,
        "what receive returns is no leaf: it is the result of an operation, and autograd keeps .grad only where the"
        " graph begins.",
    ),
    "other numbers": (
        "1.2",
        lambda numbers: torch.zeros_like(numbers, requires_grad=True),
        "receive changes the numbers; the stage must compute with those that arrived.",
    ),
    "no tensor": ("1.2", lambda numbers: True, "receive returns True; return a tensor."),
    "no requires_grad": (
        "1.3",
        with_mistake(leaf=False),
        "step with 6 rows fails. Rank 1 failed: TypeError: Invalid function argument. Expected parameter `tensor` of"
        " type torch.Tensor but got <class 'NoneType'> instead, at line N of test_lesson_01.py:"
        ' dist.send({"grad": h.grad, "h": h.detach(), "zeros": torch.zeros_like(h)}[back], 0).'
        " Is it a gradient that is not there? What arrived must require one before the forward, as in 1.2.",
    ),
    "no backward on rank 0": (
        "1.3",
        with_mistake(begin="nothing"),
        "step with 6 rows: the parameters of stage 0 have no gradient: its backward never ran, though the gradient came"
        " back.",
    ),
    "a backward that begins with ones": (
        "1.3",
        with_mistake(begin="ones"),
        "step with 6 rows: the gradients of stage 0 are not those of the whole model; h.backward(gradient) begins with"
        " the gradient that rank 1 sends, that of its own input.",
    ),
    "a backward that begins with nothing": (
        "1.3",
        with_mistake(begin="alone"),
        "step with 6 rows fails. Rank 0 failed: RuntimeError: grad can be implicitly created only for scalar outputs,"
        ' at line N of test_lesson_01.py: h.backward({"gradient": gradient, "ones": torch.ones_like(h), "alone":'
        " None}[begin]).",
    ),
    "the activation sent back": (
        "1.3",
        with_mistake(back="h"),
        "step with 6 rows: the gradients of stage 0 are not those of the whole model; h.backward(gradient) begins with"
        " the gradient that rank 1 sends, that of its own input.",
    ),
    "zeros sent back": (
        "1.3",
        with_mistake(back="zeros"),
        "step with 6 rows: the gradients of stage 0 are not those of the whole model: they are all 0, as if rank 1"
        " had sent zeros back, or had sent before its backward.",
    ),
    "sent before the backward": (
        "1.3",
        with_mistake(back="too early"),
        "step with 6 rows: the gradients of stage 0 are not those of the whole model: they are all 0, as if rank 1"
        " had sent zeros back, or had sent before its backward.",
    ),
    "a sum": (
        "1.3",
        with_mistake(loss_of=sum_loss),
        "step with 6 rows: the gradients of stage 1 are not those of the whole model, but 18 times as large; the loss"
        " is the mean over all rows and columns.",
    ),
    "a loss with its graph": (
        "1.3",
        with_mistake(number_of=lambda loss: loss),
        "step with 6 rows: rank 1 returns the loss together with its graph; return the number, loss.item().",
    ),
    "an update": (
        "1.3",
        updates_too,
        "step with 6 rows: rank 0 changes its weights; leave gradients only, the update comes next.",
    ),
    "no loss": ("1.3", no_loss, "step with 6 rows: rank 1 returns None; return the loss."),
    "one direction": (
        "1.4",
        only(0, lambda r, w, n, d, s: r * w * s),
        "in traffic(1, 1, 0, 1, 1) the bytes across the cut are 1, but should be 2:"
        " that is one direction; the gradient comes back.",
    ),
    "numbers": (
        "1.4",
        only(0, lambda r, w, n, d, s: 2 * r * w),
        "in traffic(3, 5, 20, 4, 4) the bytes across the cut are 30, but should be 120: those are numbers, not bytes.",
    ),
    "half a ring": (
        "1.4",
        only(1, lambda r, w, n, d, s: (d - 1) * n / d * s),
        "in traffic(0, 0, 12, 2, 1) the bytes of the all-reduce are 6, but should be 12:"
        " that is the first half of the ring; the sums have to go round as well.",
    ),
    "all to all": (
        "1.4",
        only(1, lambda r, w, n, d, s: (d - 1) * n * s),
        "in traffic(3, 5, 20, 4, 4) the bytes of the all-reduce are 240, but should be 120:"
        " in a ring no rank sends everything to everyone.",
    ),
    "twice": (
        "1.4",
        only(1, lambda r, w, n, d, s: 2 * n * s),
        "in traffic(0, 0, 12, 2, 1) the bytes of the all-reduce are 24, but should be 12:"
        " that is all the data twice, but a rank need not send the part that it has already.",
    ),
    "whole numbers in a part": (
        "1.4",
        only(1, lambda r, w, n, d, s: 2 * (d - 1) * (n // d) * s),
        "in traffic(1, 1, 10, 4, 2) the bytes of the all-reduce are 24, but should be 30.",
    ),
    "one number": ("1.4", lambda *case: 3, "traffic(1, 1, 0, 1, 1) returns 3; return two numbers of bytes."),
}


@pytest.mark.parametrize("case", RIGHT)
def test_a_right_answer_is_solved(case: str) -> None:
    number, answer = RIGHT[case]
    verdict = pp.grade(number, answer)
    assert verdict, verdict


@pytest.mark.thorough
@pytest.mark.parametrize("case", WRONG)
def test_a_wrong_answer_is_told_why(case: str) -> None:
    number, answer, sentence = WRONG[case]
    verdict = pp.grade(number, answer)
    first = verdict.message.partition("\n")[0]
    assert verdict.state == "wrong"
    assert re.sub(r"line \d+", "line N", first) == sentence


@pytest.mark.thorough
def test_two_ranks_that_both_receive_are_told_where_they_stand() -> None:
    said = pp.grade("1.3", both_receive).message
    assert said.startswith("step with 6 rows hangs. No end after 4 s: rank 0 waits in line ")
    assert said.count("dist.recv(torch.empty(len(x), WIDTH), 1 - rank)") == 2


def test_a_loop_without_end_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(graders.registered, "1.2", replace(graders.exercises(1)["1.2"], limit=0.5))

    def receive(numbers: Tensor) -> Tensor:
        while True:
            numbers = numbers + 0

    verdict = pp.grade("1.2", receive)
    assert verdict.state == "wrong"
    assert "still runs after 0.5 s" in verdict.message


@pytest.mark.parametrize("number", ["1.1", "1.2", "1.3", "1.4"])
def test_a_stub_is_not_solved_yet(number: str) -> None:
    def stub(*args: Any) -> None: ...

    assert [pp.grade(number, answer).state for answer in (..., None, stub)] == ["unsolved"] * 3


def test_the_grader_walks_the_ring_that_the_lesson_shows() -> None:
    """What it counts is what four ranks really send: 2 · 3 parts of a quarter of the data each."""

    def ring(rank: int) -> int:
        parts, sent = list(torch.ones(40).chunk(4)), 0
        for turn in range(6):
            arrived = torch.empty(10)
            sending = dist.isend(parts[(rank - turn) % 4], (rank + 1) % 4)
            dist.recv(arrived, (rank - 1) % 4)
            sending.wait()
            sent += parts[0].nbytes
            back = (rank - turn - 1) % 4
            parts[back] = parts[back] + arrived if turn < 3 else arrived
        assert torch.equal(torch.cat(parts), torch.full((40,), 4.0))
        return sent

    assert pp.on_ranks(ring, p=4) == [lesson_01._around(0, 0, 40, 4, 4)] * 4
