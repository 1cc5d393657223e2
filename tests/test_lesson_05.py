"""Lesson 05's exercises: what right answers, plausible wrong ones, and stubs are told."""

import math
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import jupytext
import numpy as np
import pytest
import torch
from torch import nn
from verdicts import told

import ppcourse as pp
from ppcourse.schedules.action import Action

pytestmark = pytest.mark.usefixtures("own_progress")


# 5.1


def dealt(rank: int, p: int, v: int, num_layers: int) -> list[int]:
    each = num_layers // (p * v)
    return [(c * p + rank) * each + n for c in range(v) for n in range(1, each + 1)]


WRONG_DEALS = {
    "one block": (
        lambda rank, p, v, n: list(range(rank * n // p + 1, (rank + 1) * n // p + 1)),
        "layers_of(0, 2, 2, 4) is [1, 2], but should be [1, 3]: that is one block;"
        " a rank's chunks are p stages apart, so that a microbatch comes round.",
    ),
    "from 0": (
        lambda *a: [n - 1 for n in dealt(*a)],
        "layers_of(0, 1, 2, 4) is [0, 1, 2, 3], but should be [1, 2, 3, 4]: layers are numbered from 1.",
    ),
    "single layers": (
        lambda rank, p, v, n: [k for k in range(1, n + 1) if (k - 1) % p == rank],
        "layers_of(0, 2, 1, 4) is [1, 3], but should be [1, 2]: you deal single layers; here a stage has 2.",
    ),
    "on a V": (
        lambda rank, p, v, n: [
            stage * n // (p * v) + k
            for stage in (c * p + (p - 1 - rank if c % 2 else rank) for c in range(v))
            for k in range(1, n // (p * v) + 1)
        ],
        "layers_of(0, 2, 2, 4) is [1, 4], but should be [1, 3]: that turns at the last rank, as the V of lesson 07;"
        " here every round begins at rank 0.",
    ),
    "the first chunk": (
        lambda rank, p, v, n: dealt(rank, p, 1, n // v),
        "layers_of(0, 1, 2, 4) is [1, 2], but should be [1, 2, 3, 4]: that is chunk 0 only, and a rank holds 2.",
    ),
    "layers that are not there": (
        lambda rank, p, v, n: [k + n * (c > 0) for c in range(v) for k in range(1, n // (p * v) + 1)],
        "layers_of(0, 1, 2, 4) is [1, 2, 5, 6], but should be [1, 2, 3, 4]: there are layers 1 to 4.",
    ),
    "later chunk first": (
        lambda rank, p, v, n: dealt(rank, p, v, n)[::-1],
        "layers_of(0, 1, 2, 4) is [4, 3, 2, 1], but should be [1, 2, 3, 4]: in the order of the model.",
    ),
    "a number": (
        lambda *a: 4,
        "layers_of(0, 1, 2, 4) returns 4; return a list of layer numbers, as in [1, 2].",
    ),
}


@pytest.mark.parametrize("form", [list, tuple, set, np.array])
def test_the_right_layers_are_solved_in_any_form(form: Callable[..., object]) -> None:
    assert pp.grade("5.1", lambda *counts: form(dealt(*counts)))


@pytest.mark.parametrize("case", WRONG_DEALS)
def test_wrong_layers_get_the_smallest_case(case: str) -> None:
    answer, sentence = WRONG_DEALS[case]

    def layers_of(*counts: int) -> object:
        return answer(*counts)

    assert told("5.1", layers_of) == sentence


# 5.2, by what may be different about it


def row(
    rank: int,
    p: int,
    m: int,
    v: int,
    warm_up: int | None = None,
    forward_chunks: Callable[..., Iterator[int]] = lambda chunks: iter(chunks),
    backward_chunks: Callable[..., Iterator[int]] = lambda chunks: reversed(chunks),
    group: int | None = None,
    stage: Callable[[int, int, int, int], int] = lambda c, rank, p, v: c * p + rank,
) -> list[str]:
    size = group or p
    groups, chunks = range(0, m, size), range(v)
    down = [f"{stage(c, rank, p, v)}F{g + i}" for g in groups for c in forward_chunks(chunks) for i in range(size)]
    back = [f"{stage(c, rank, p, v)}B{g + i}" for g in groups for c in backward_chunks(chunks) for i in range(size)]
    w = min(m * v, 2 * (p - 1 - rank) + (v - 1) * p) if warm_up is None else warm_up
    pairs = [action for pair in zip(down[w:], back, strict=False) for action in pair]
    return down[:w] + pairs + back[len(down) - w :]


WRONG_ORDERS = {
    "1f1b's warm-up": (
        lambda rank, p, m, v: row(rank, p, m, v, warm_up=p - 1 - rank),
        "order(0, 2, 2, 2) runs 2 forwards before its first backward; it should be 4.",
    ),
    "one forward too many": (
        lambda rank, p, m, v: row(rank, p, m, v, warm_up=min(m * v, 2 * (p - 1 - rank) + (v - 1) * p + 1)),
        "order(1, 2, 2, 1) runs 2 forwards before its first backward; it should be 1.",
    ),
    "one forward too few": (
        lambda rank, p, m, v: row(rank, p, m, v, warm_up=max(0, 2 * (p - 1 - rank) + (v - 1) * p - 1)),
        "order(1, 2, 2, 2) runs 2 forwards before its first backward; it should be 3.",
    ),
    "chunks not reversed in backward": (
        lambda rank, p, m, v: row(rank, p, m, v, backward_chunks=iter),
        "order(0, 2, 2, 2) runs 0B0 where 2B0 is due: gradients come to the last chunk first.",
    ),
    "chunks reversed in forward": (
        lambda rank, p, m, v: row(rank, p, m, v, forward_chunks=reversed),
        "order(0, 2, 2, 2) runs 2F0 where 0F0 is due: after 2 microbatches chunk after chunk goes on.",
    ),
    "breadth first": (
        lambda rank, p, m, v: row(rank, p, m, v, group=m),
        "order(0, 2, 4, 2) runs 0F2 where 2F0 is due: after 2 microbatches the next chunk has its turn.",
    ),
    "chunk after chunk for each microbatch": (
        lambda rank, p, m, v: row(rank, p, m, v, group=1),
        "order(0, 2, 2, 2) runs 2F0 where 0F1 is due: after 2 microbatches chunk after chunk goes on.",
    ),
    "neighbouring stages": (
        lambda rank, p, m, v: row(rank, p, m, v, stage=lambda c, r, p, v: r * v + c),
        "order(0, 2, 2, 2) names 1F0, but this rank holds stages 0 and 2: chunk c of rank r is stage c·p + r.",
    ),
    "1f1b": (
        lambda rank, p, m, v: [str(action) for action in pp.build("1f1b", p=p, m=m).rows[rank]],
        "order(0, 2, 2, 2) never runs 2F0.",
    ),
    "too many microbatches": (
        lambda rank, p, m, v: row(rank, p, m + p, v),
        "order(0, 2, 2, 1) names 0F2, but m is 2: the last microbatch is 1.",
    ),
    "no cool-down": (
        lambda rank, p, m, v: row(rank, p, m, v)[:-1],
        "order(0, 2, 2, 1) never runs 0B1.",
    ),
    "split": (
        lambda rank, p, m, v: [text.replace("B", "I") for text in row(rank, p, m, v)],
        "order(0, 2, 2, 1) names 0I0, but here a backward is one action, B.",
    ),
    "a number": (
        lambda rank, p, m, v: 3,
        'order(0, 2, 2, 1) returns 3; return a list of actions, as in ["0F0", "2F0"].',
    ),
    "no stage": (
        lambda rank, p, m, v: [text[1:] for text in row(rank, p, m, v)],
        "order(0, 2, 2, 1) returns a row in which 'F0' is not an action;"
        " an action is a stage, one of F, B, I, W, and a microbatch, as in 2F0.",
    ),
    "below 0": (
        lambda rank, p, m, v: ["0F0", "0B-1"],
        "order(0, 2, 2, 1) names 0B-1; stages and microbatches count from 0.",
    ),
}


def test_a_right_order_is_solved_in_any_form() -> None:
    forms = [
        row,
        lambda *counts: " ".join(row(*counts)),
        lambda *counts: tuple(Action.parse(text) for text in row(*counts)),
    ]
    assert [pp.grade("5.2", form).state for form in forms] == ["solved"] * 3


@pytest.mark.parametrize("case", WRONG_ORDERS)
def test_a_wrong_order_gets_the_smallest_case(case: str) -> None:
    answer, sentence = WRONG_ORDERS[case]

    def order(*counts: int) -> object:
        return answer(*counts)

    assert told("5.2", order) == sentence


def test_below_a_wrong_order_is_what_it_does() -> None:
    later, stuck = (WRONG_ORDERS[case][0] for case in ("one forward too many", "chunks not reversed in backward"))
    assert "rank 1  .. F0 F1 B0 B1 .." in pp.grade("5.2", later).message
    assert "\nDeadlock: " in pp.grade("5.2", stuck).message


def test_no_swap_of_two_neighbours_passes() -> None:
    for at in range(15):

        def order(rank: int, p: int, m: int, v: int, at: int = at) -> list[str]:
            mine = row(rank, p, m, v)
            if (rank, p, m, v) == (1, 2, 4, 2):
                mine[at : at + 2] = mine[at + 1], mine[at]
            return mine

        assert told("5.2", order).startswith("order(1, 2, 4, 2) ")


# 5.3


def messages(p: int, m: int, v: int) -> int:
    return 2 * (p * v - 1) * m


def held(p: int, m: int, v: int) -> float:
    return (2 * (p - 1) + (v - 1) * p + 1) / v


WRONG_PRICES = {
    "one way": (
        lambda p, m, v: (messages(p, m, v) / 2, held(p, m, v)),
        "price(3, 6, 2) says 30 messages, but the plan has 60: every activation has a gradient that comes back.",
    ),
    "one microbatch": (
        lambda p, m, v: (messages(p, 1, v), held(p, m, v)),
        "price(3, 6, 2) says 10 messages, but the plan has 60: that is for one microbatch.",
    ),
    "v times 1f1b": (
        lambda p, m, v: (2 * v * (p - 1) * m, held(p, m, v)),
        "price(3, 6, 2) says 48 messages, but the plan has 60:"
        " from the last rank back to the first there are messages, too.",
    ),
    "1f1b": (
        lambda p, m, v: (2 * (p - 1) * m, held(p, m, v)),
        "price(3, 6, 2) says 24 messages, but the plan has 60: that is 1F1B; with v stages a rank there are"
        " p·v − 1 cuts.",
    ),
    "as many cuts as stages": (
        lambda p, m, v: (2 * p * v * m, held(p, m, v)),
        "price(3, 6, 2) says 72 messages, but the plan has 60: between p·v stages there are p·v − 1 cuts.",
    ),
    "chunks": (
        lambda p, m, v: (messages(p, m, v), v * held(p, m, v)),
        "price(3, 6, 2) says that rank 0 holds 8, but it holds 4:"
        " these are chunks, and a chunk is 1/v of a microbatch.",
    ),
    "warm-up only": (
        lambda p, m, v: (messages(p, m, v), held(p, m, v) - 1 / v),
        "price(3, 6, 2) says that rank 0 holds 3.5, but it holds 4:"
        " add the forward between the warm-up and the first backward.",
    ),
    "the ratio": (
        lambda p, m, v: (messages(p, m, v), 1 + (p - 1) / (p * v)),
        "price(3, 6, 2) says that rank 0 holds 1.33333, but it holds 4:"
        " that is how many times as much as 1F1B, which holds p.",
    ),
    "messages of a chunk": (
        lambda p, m, v: (messages(p, m, v) / v, held(p, m, v)),
        "price(3, 6, 2) says 30 messages, but the plan has 60: a message is as large as before, however short the"
        " stage.",
    ),
    "rounded down": (
        lambda p, m, v: (messages(p, m, v), held(p, m, v) // 1),
        "price(2, 4, 2) says that rank 0 holds 2, but it holds 2.5:"
        " a chunk is 1/v of a microbatch, so that need not be a whole number.",
    ),
    "the ratio added": (
        lambda p, m, v: (messages(p, m, v), p + (p - 1) / (p * v)),
        "price(3, 6, 2) says that rank 0 holds 3.33333, but it holds 4:"
        " 1 + (p − 1)/(p·v) is a factor: it is p times that.",
    ),
    "gpipe": (
        lambda p, m, v: (messages(p, m, v), m),
        "price(3, 6, 2) says that rank 0 holds 6, but it holds 4: that is GPipe, or breadth-first.",
    ),
    "messages only": (
        messages,
        "price(3, 6, 2) returns 60; return two numbers, messages and microbatches held.",
    ),
}


def test_the_right_price_is_solved() -> None:
    assert pp.grade("5.3", lambda p, m, v: (messages(p, m, v), held(p, m, v)))
    assert pp.grade("5.3", lambda p, m, v: np.array([messages(p, m, v), held(p, m, v)]))


@pytest.mark.parametrize("case", WRONG_PRICES)
def test_a_wrong_price_gets_the_smallest_case(case: str) -> None:
    answer, sentence = WRONG_PRICES[case]

    def price(*counts: int) -> object:
        return answer(*counts)

    assert told("5.3", price) == sentence


# 5.4


def time(name: str, p: int, m: int, v: int, hop: float, share: float = 1) -> float:
    plan = pp.build(name, p=p, m=m, v=v if name == "interleaved" else None)
    each = share / v if name == "interleaved" else 1
    return pp.simulate(plan, pp.Costs(each, each, each, comm=hop)).makespan


def bisected(wins: Callable[[float], bool]) -> float:
    low, high = 0.0, 100.0
    for _ in range(20):
        middle = (low + high) / 2
        low, high = (middle, high) if wins(middle) else (low, middle)
    return low


def crossing(p: int, m: int, v: int) -> float:
    return bisected(lambda hop: time("interleaved", p, m, v, hop) <= time("1f1b", p, m, v, hop))


WRONG_CROSSINGS = {
    "hops only in one": (
        lambda p, m, v: bisected(lambda hop: time("interleaved", p, m, v, hop) <= time("1f1b", p, m, v, 0)),
        "interleaving wins: ",
        "; 1F1B has to wait for its hops, too.",
    ),
    "costs not divided": (
        lambda p, m, v: bisected(lambda hop: time("interleaved", p, m, v, hop, v) <= time("1f1b", p, m, v, hop)),
        "interleaving wins: ",
        "; a stage is only 1/v of a rank's layers.",
    ),
    "in units of a chunk": (
        lambda p, m, v: v * crossing(p, m, v),
        "interleaving loses: ",
        "; in t_f of the whole rank, not of a chunk.",
    ),
    "where it stops": (lambda p, m, v: 100.0, "interleaving loses: ", "."),
    "always the same": (lambda p, m, v: 0.375, "interleaving wins: ", "."),
}


def test_the_right_crossing_is_solved_even_if_it_is_rough() -> None:
    assert pp.grade("5.4", crossing)
    assert pp.grade("5.4", lambda p, m, v: crossing(p, m, v) + 0.009)
    assert pp.grade("5.4", lambda p, m, v: crossing(p, m, v) - 0.0101)  # who walks up by 0.01 may stop before it


@pytest.mark.parametrize("case", WRONG_CROSSINGS)
def test_a_wrong_crossing_is_simulated(case: str) -> None:
    answer, verb, end = WRONG_CROSSINGS[case]
    sentence = told("5.4", answer)
    assert verb in sentence
    assert sentence.endswith(end)


def test_a_crossing_that_is_no_hop_is_told() -> None:
    for wrong in (-1, math.nan, "1.4"):
        sentence = f"crossing(2, 2, 2) returns {wrong!r}; return a hop in t_f, a number of at least 0."

        def answer(p: int, m: int, v: int, wrong: object = wrong) -> object:
            return wrong

        answer.__name__ = "crossing"
        assert told("5.4", answer) == sentence


# all


@pytest.mark.parametrize("number", ["5.1", "5.2", "5.3", "5.4"])
def test_what_a_stub_returns_is_not_solved_yet(number: str) -> None:
    def stub(*args: object) -> None: ...

    assert [pp.grade(number, answer).state for answer in (..., None, stub)] == ["unsolved"] * 3


@pytest.mark.parametrize("number", ["5.1", "5.2", "5.3", "5.4"])
def test_an_answer_of_another_kind_or_that_fails_is_wrong_and_raises_nothing(number: str) -> None:
    for answer in (3, "0F0", [], lambda: 3, lambda *args: 1 / 0, lambda *args: object(), lambda *args: [None]):
        assert pp.grade(number, answer).state == "wrong"


def test_a_loop_without_end_is_ended() -> None:
    def crossing(p: int, m: int, v: int) -> float:
        low, high = 0.0, 100.0
        while low != high:
            low, high = low, high  # forgot to move either
        return low

    from ppcourse.lab.graders import exercises

    limit = exercises(5)["5.4"].limit
    assert limit <= 30
    object.__setattr__(exercises(5)["5.4"], "limit", 0.5)
    try:
        assert told("5.4", crossing).startswith("crossing(2, 2, 2) still runs after 0.5 s")
    finally:
        object.__setattr__(exercises(5)["5.4"], "limit", limit)


# numbers that the prose states


def test_the_numbers_in_the_prose() -> None:
    assert time("1f1b", 4, 8, 1, 0) == 33
    assert time("interleaved", 4, 8, 2, 0) == 28.5
    assert messages(4, 8, 2) == 112
    assert round(crossing(4, 8, 2), 1) == 1.4
    assert held(8, 32, 4) == 9.75 == 8 * (1 + 7 / 32)
    assert (pp.formulas.bubble_overhead(8, 32, 4), (8 * 4 - 1) / (8 - 1)) == (7 / 128, 31 / 7)


def test_two_neighbouring_chunks_have_the_bubble_of_one() -> None:
    """Exit question 2."""
    rows = []
    for rank, one in enumerate(pp.build("1f1b", p=3, m=6).rows):
        halves = {"F": (2 * rank, 2 * rank + 1), "B": (2 * rank + 1, 2 * rank)}
        rows.append([f"{stage}{op}{i}" for _, op, i in one for stage in halves[op]])
    plan = pp.Schedule.from_rows(rows)
    assert pp.simulate(plan).bubble_overhead == pp.formulas.bubble_overhead(3, 6)


# the cells behind them

LESSON = Path(__file__).parents[1] / "solutions" / "05_interleave.py"


def measured(name: str, p: int, m: int, v: int = 1, **_: Any) -> SimpleNamespace:
    """What real ranks would say of a step, from its plan."""
    held = pp.in_flight(pp.build(name, p=p, m=m, v=v))
    return SimpleNamespace(messages=2 * (p * v - 1) * m, peak_in_flight=held, held_bytes=[1] * p)


def stamped(*_: Any, **counts: int) -> SimpleNamespace:
    homes = {layer: rank for rank in range(3) for layer in dealt(rank, 3, 2, 24)}
    return SimpleNamespace(outputs=torch.tensor([[homes[layer] for layer in range(1, 25)]]))


LAYERS, PRICES = "passports = pp.evaluate", "metered = {v: pp.run"


@pytest.mark.parametrize(
    ("part", "form"), [(LAYERS, tuple), (LAYERS, set), (LAYERS, np.array), (PRICES, list), (PRICES, np.array)]
)
def test_the_cell_behind_an_exercise_takes_every_form_that_is_solved(part: str, form: Callable[..., object]) -> None:
    (source,) = [cell.source for cell in jupytext.read(LESSON).cells if cell.source.startswith(part)]
    pipeline = SimpleNamespace(run=measured, evaluate=stamped, build=pp.build, in_flight=pp.in_flight)
    answers = {
        "layers_of": lambda *counts: form(dealt(*counts)),
        "price": lambda p, m, v: form([2 * (p * v - 1) * m, pp.in_flight(pp.build("interleaved", p=p, m=m, v=v))[0]]),
    }
    before = {"pp": pipeline, "torch": torch, "Stamp": nn.Identity, "task": {}, "dealt": True, "priced": True}
    exec(source, before | answers)
