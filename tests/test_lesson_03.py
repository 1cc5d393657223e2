"""Lesson 03's checks: each exercise takes more than one right answer, and says what is wrong with a wrong one."""

import itertools
import math
from collections.abc import Callable
from fractions import Fraction
from typing import Any

import numpy as np
import pytest

import ppcourse as pp

Answer = Callable[..., Any]


def right_parts(t: pp.Timeline, rank: int) -> tuple[float, float, float]:
    row = t.by_rank[rank]
    before, after = row[0].start - t.start, t.end - row[-1].end
    return before, t.idle[rank] - before - after, after


def parts_by_gaps(t: pp.Timeline, rank: int) -> list[float]:
    row = t.by_rank[rank]
    gaps = sum(later.start - earlier.end for earlier, later in itertools.pairwise(row))
    return [row[0].start - t.start, gaps, t.end - row[-1].end]


def parts_by_phases(t: pp.Timeline, rank: int) -> tuple[float, float, float]:
    """The gap between the last F and the first B, which is all there is in GPipe only."""
    row = t.by_rank[rank]
    last_forward = max(span.end for span in row if span.action.op is pp.Op.F)
    first_backward = min(span.start for span in row if span.action.op is pp.Op.B)
    return row[0].start - t.start, first_backward - last_forward, t.end - row[-1].end


def parts_from_zero(t: pp.Timeline, rank: int) -> tuple[float, float, float]:
    _, between, after = right_parts(t, rank)
    return t.by_rank[rank][0].start, between, after


def parts_up_to_the_makespan(t: pp.Timeline, rank: int) -> tuple[float, float, float]:
    """As if the timeline ended at its makespan, as those do that begin at 0."""
    before, _, _ = right_parts(t, rank)
    after = t.makespan - t.by_rank[rank][-1].end
    return before, t.idle[rank] - before - after, after


def parts_without_the_ends(t: pp.Timeline, rank: int) -> tuple[float, float, float]:
    before, _, after = right_parts(t, rank)
    return before, t.idle[rank], after


def fewest_in_a_loop(p: int, rate: float) -> int:
    m = 1
    while (p - 1) / (m + p - 1) > rate:
        m += 1
    return m


def four(p: int, m: int) -> tuple[float, float, float, float]:
    return (p - 1) / m, (p - 1) / (m + p - 1), p * m / (m + p - 1), m / (m + p - 1)


RIGHT: list[tuple[str, Answer]] = [
    ("3.1", right_parts),
    ("3.1", parts_by_gaps),
    ("3.1", lambda timeline, rank: np.array(right_parts(timeline, rank))),
    ("3.2", lambda p, m, f, b: (m + p - 1) * (f + b)),
    ("3.2", lambda p, m, f, b: Fraction((m + p - 1) * (f + b))),
    ("3.2", lambda p, m, f, b: pp.formulas.step_time(p, m, f, b)),
    ("3.2", lambda p, m, f, b: p * (f + b) + (m - 1) * (f + b)),
    ("3.3", four),
    ("3.3", lambda p, m: [(p - 1) / m, 1 - m / (m + p - 1), p / (1 + (p - 1) / m), 1 / (1 + (p - 1) / m)]),
    ("3.3", lambda p, m: np.array(four(p, m))),
    ("3.4", fewest_in_a_loop),
    ("3.4", lambda p, rate: max(1, math.ceil((p - 1) * (1 / rate - 1)))),
    ("3.4", lambda p, rate: max(1, math.ceil(round((p - 1) * (1 - rate) / rate, 9)))),
]

WRONG: list[tuple[str, Answer, str]] = [
    (
        "3.1",
        lambda t, rank: right_parts(t, rank)[::-1],
        "idle_parts(timeline, 1) is (2, 0, 1) on gpipe with p=2, m=1, but should be (1, 0, 2):"
        " that is after, between, before.",
    ),
    (
        "3.1",
        parts_without_the_ends,
        "idle_parts(timeline, 1) is (1, 3, 2) on gpipe with p=2, m=1, but should be (1, 0, 2):"
        " your middle part counts the two ends as well.",
    ),
    (
        "3.1",
        parts_by_phases,
        "idle_parts(timeline, 0) is (0, -3, 0) on 1f1b with p=3, m=4, but should be (0, 6, 0):"
        " a rank may wait in more than one place between its first and its last action; add them all up.",
    ),
    (
        "3.1",
        parts_from_zero,
        "idle_parts(timeline, 0) is (10, 3, 0) on a timeline whose first action starts at 10,"
        " but should be (0, 3, 0): count from timeline.start, which is 10 here.",
    ),
    (
        "3.1",
        lambda t, rank: (1, 1, 1),
        "idle_parts(timeline, 0) is (1, 1, 1) on gpipe with p=2, m=1, but should be (0, 3, 0):"
        " together the three are this rank's idle time, 3.",
    ),
    (
        "3.1",
        lambda t, rank: right_parts(t, 0),
        "idle_parts(timeline, 1) is (0, 3, 0) on gpipe with p=2, m=1, but should be (1, 0, 2): those are rank 0's.",
    ),
    (
        "3.1",
        lambda t, rank: [part / t.makespan for part in right_parts(t, rank)],
        "idle_parts(timeline, 0) is (0, 0.5, 0) on gpipe with p=2, m=1, but should be (0, 3, 0):"
        " give times, not shares of the makespan.",
    ),
    (
        "3.1",
        parts_up_to_the_makespan,
        "idle_parts(timeline, 0) is (0, 13, -10) on a timeline whose first action starts at 10,"
        " but should be (0, 3, 0): this one begins at timeline.start = 10 and ends at timeline.end = 16.",
    ),
    (
        "3.1",
        lambda t, rank: t.idle[rank],
        "idle_parts(timeline, 0) is 3; return three numbers: before the first action, between actions, after the last.",
    ),
    (
        "3.2",
        lambda p, m, f, b: (m + p) * (f + b),
        "step_time(1, 1, 1, 1) is 4, but the simulator takes 2:"
        " only the p − 1 ranks before the last one have to be passed, not p.",
    ),
    (
        "3.2",
        lambda p, m, f, b: (m + p - 2) * (f + b),
        "step_time(1, 1, 1, 1) is 0, but the simulator takes 2: that is one microbatch too few.",
    ),
    (
        "3.2",
        lambda p, m, f, b: 2 * (m + p - 1) * f,
        "step_time(2, 1, 1, 2) is 4, but the simulator takes 6: that counts every B as long as an F.",
    ),
    (
        "3.2",
        lambda p, m, f, b: p * m * (f + b),
        "step_time(2, 4, 1, 1) is 16, but the simulator takes 10:"
        " that is one rank working at a time; here ranks overlap.",
    ),
    (
        "3.2",
        lambda p, m, f, b: m * (f + b) + (p - 1) * f,
        "step_time(2, 1, 1, 1) is 3, but the simulator takes 4:"
        " you wait before the first action, but not after the last.",
    ),
    (
        "3.2",
        lambda p, m, f, b: (p - 1) * (f + b),
        "step_time(1, 1, 1, 1) is 0, but the simulator takes 2: that is the bubble alone, without the work.",
    ),
    (
        "3.2",
        lambda p, m, f, b: Fraction(m * (f + b)),
        "step_time(2, 1, 1, 1) is 2, but the simulator takes 4: that is the work alone, without the bubble.",
    ),
    ("3.2", lambda p, m, f, b: "long", "step_time(1, 1, 1, 1) is 'long'; return one number."),
    ("3.2", lambda p, m, f, b: math.nan, "step_time(1, 1, 1, 1) is nan; return one number."),
    ("3.2", lambda p, m, f, b: 2.5 * m, "step_time(1, 1, 1, 1) is 2.5, but the simulator takes 2:"),
    (
        "3.3",
        lambda p, m: (four(p, m)[1], *four(p, m)[1:]),
        "in four_numbers(2, 1) the overhead is 0.5, but should be 1: that is the rate.",
    ),
    (
        "3.3",
        lambda p, m: (four(p, m)[0], four(p, m)[0], *four(p, m)[2:]),
        "in four_numbers(2, 1) the rate is 1, but should be 0.5: that is the overhead.",
    ),
    (
        "3.3",
        lambda p, m: (*four(p, m)[:2], four(p, m)[3], four(p, m)[2]),
        "in four_numbers(2, 1) the speed-up is 0.5, but should be 1: that is the efficiency.",
    ),
    (
        "3.3",
        lambda p, m: (*four(p, m)[:3], four(p, m)[2]),
        "in four_numbers(2, 1) the efficiency is 1, but should be 0.5: that is the speed-up.",
    ),
    (
        "3.3",
        lambda p, m: (*four(p, m)[:3], 1 - four(p, m)[0]),
        "in four_numbers(2, 1) the efficiency is 0, but should be 0.5:"
        " that is 1 − overhead; what is left of 1 goes with the rate.",
    ),
    (
        "3.3",
        lambda p, m: four(m, p),
        "in four_numbers(1, 4) the overhead is 3, but should be 0: p and m have changed places.",
    ),
    (
        "3.3",
        lambda p, m: (p / m, *four(p, m)[1:]),
        "in four_numbers(1, 1) the overhead is 1, but should be 0: that is p ÷ m; the bubble comes from p − 1 ranks.",
    ),
    (
        "3.3",
        lambda p, m: (four(p, m)[0], (p - 1) / (m + p), *four(p, m)[2:]),
        "in four_numbers(2, 1) the rate is 0.3333, but should be 0.5:"
        " that is (p − 1) ÷ (m + p); a step is m + p − 1 long.",
    ),
    (
        "3.3",
        lambda p, m: [100 * number for number in four(p, m)],
        "in four_numbers(2, 1) the overhead is 100, but should be 1: give a fraction, not per cent.",
    ),
    (
        "3.3",
        lambda p, m: (p - 1) / m,
        "four_numbers(1, 1) is 0; return four numbers: overhead, rate, speed-up, efficiency.",
    ),
    (
        "3.4",
        lambda p, rate: p * math.ceil(fewest_in_a_loop(p, rate) / p),
        "fewest(2, 0.5) is 2, but m = 1 already brings the bubble rate to 50.0%.",
    ),
    (
        "3.4",
        lambda p, rate: 4 * p,
        "fewest(1, 0.2) is 4, but m = 1 already brings the bubble rate to 0.0%:"
        " m = 4p is a rule of thumb, not the least.",
    ),
    (
        "3.4",
        lambda p, rate: max(1, math.ceil((p - 1) / rate)),
        "fewest(2, 0.5) is 2, but m = 1 already brings the bubble rate to 50.0%:"
        " that keeps the overhead at the target, which is stricter.",
    ),
    (
        "3.4",
        lambda p, rate: math.floor((p - 1) * (1 / rate - 1)) + 1,
        "fewest(2, 0.5) is 2, but m = 1 already brings the bubble rate to 50.0%: at most includes equal.",
    ),
    (
        "3.4",
        lambda p, rate: max(1, math.ceil(p * (1 / rate - 1))),
        "fewest(1, 0.2) is 4, but m = 1 already brings the bubble rate to 0.0%: that is for p instead of p − 1.",
    ),
    (
        "3.4",
        lambda p, rate: max(1, round((p - 1) * (1 / rate - 1))),
        "fewest(4, 0.4) is 4, but with m = 4 the bubble rate is 42.9%, above 40%.",
    ),
    (
        "3.4",
        lambda p, rate: max(1, (p - 1) * (1 / rate - 1)),
        "fewest(4, 0.4) is 4.5; a number of microbatches is a whole number: round up.",
    ),
    (
        "3.4",
        lambda p, rate: max(1, math.ceil((p - 1) * (1 - rate) / rate)),
        "fewest(4, 0.2) is 13, but m = 12 already brings the bubble rate to 20.0%:"
        " if the formula is right, the computer's rounding lifts it just above; round(..., 9) first.",
    ),
    (
        "3.4",
        lambda p, rate: math.ceil((p - 1) * (1 / rate - 1)),
        "fewest(1, 0.2) is 0; a step has at least 1 microbatch.",
    ),
]


@pytest.mark.parametrize(("number", "answer"), RIGHT)
def test_a_right_answer_is_solved(number: str, answer: Answer) -> None:
    verdict = pp.grade(number, answer)
    assert verdict, verdict


@pytest.mark.parametrize(("number", "answer", "sentence"), WRONG)
def test_a_wrong_answer_is_told_why(number: str, answer: Answer, sentence: str) -> None:
    verdict = pp.grade(number, answer)
    assert (verdict.state, verdict.message.partition("\n")[0]) == ("wrong", sentence)


@pytest.mark.parametrize("number", ["3.1", "3.2"])
def test_a_wrong_time_comes_with_a_picture(number: str) -> None:
    wrong: dict[str, Answer] = {"3.1": lambda t, rank: (1, 1, 1), "3.2": lambda p, m, f, b: 0}
    assert "\nrank 0  F0" in pp.grade(number, wrong[number]).message


@pytest.mark.parametrize("number", ["3.1", "3.2", "3.3", "3.4"])
def test_a_stub_is_not_solved_yet(number: str) -> None:
    def stub(*args: Any) -> None: ...

    assert pp.grade(number, stub).state == "unsolved"
