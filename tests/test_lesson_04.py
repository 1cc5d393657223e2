"""Lesson 04's exercises: what right answers, plausible wrong ones, and stubs are told; the numbers in its prose."""

from typing import Any

import numpy as np
import pytest
from verdicts import told

import ppcourse as pp
from ppcourse.lab.graders import lesson_04
from ppcourse.schedules.action import Action, Op

pytestmark = pytest.mark.usefixtures("own_progress")


# 4.1, by what the warm-up of a rank is


def three_loops(rank: int, m: int, warm_up: int, steady: str = "FB", drain: int | None = None) -> list[str]:
    row = [f"{rank}F{i}" for i in range(warm_up)]
    for i in range(m - warm_up):
        pair = {"F": f"{rank}F{warm_up + i}", "B": f"{rank}B{i}"}
        row += [pair[op] for op in steady]
    return row + [f"{rank}B{i}" for i in range(m - warm_up, m if drain is None else drain)]


def right(rank: int, p: int, m: int) -> list[str]:
    return three_loops(rank, m, min(m, p - 1 - rank))


def test_a_right_order_is_solved_in_any_form() -> None:
    forms = [
        right,
        lambda rank, p, m: tuple(right(rank, p, m)),
        lambda rank, p, m: " ".join(right(rank, p, m)),
        lambda rank, p, m: [Action.parse(text) for text in right(rank, p, m)],
        lambda rank, p, m: [Action(rank, text[1], int(text[2])) for text in right(rank, p, m)],
    ]
    assert [pp.grade("4.1", form).state for form in forms] == ["solved"] * 5


WRONG_ORDERS = {
    "one forward too many": (
        lambda rank, p, m: three_loops(rank, m, min(m, p - rank)),
        "order(1, 2, 2) runs 2 forwards before its first backward; it should be 1.",
    ),
    "one forward too few": (
        lambda rank, p, m: three_loops(rank, m, min(m, max(0, p - 2 - rank))),
        "order(0, 2, 2) runs 1 forward before its first backward; it should be 2.",
    ),
    "s forwards": (
        lambda rank, p, m: three_loops(rank, m, min(m, rank)),
        "order(0, 2, 2) runs 1 forward before its first backward; it should be 2.",
    ),
    "the same warm-up everywhere": (
        lambda rank, p, m: three_loops(rank, m, min(m, p - 1)),
        "order(1, 2, 2) runs 2 forwards before its first backward; it should be 1.",
    ),
    "gpipe": (
        lambda rank, p, m: three_loops(rank, m, m),
        "order(1, 2, 2) runs 2 forwards before its first backward; it should be 1.",
    ),
    "not clamped": (
        lambda rank, p, m: three_loops(rank, m, p - 1 - rank),
        "order(0, 3, 1) names 0B-1, but microbatches begin at 0. With m = 1, how many can the warm-up take?",
    ),
    "more forwards than there are": (
        lambda rank, p, m: [f"{rank}F{i}" for i in range(p - rank)] + right(rank, p, m)[p - rank :],
        "order(0, 2, 1) names 0F1, but m is 1: there is only microbatch 0.",
    ),
    "a backward first": (
        lambda rank, p, m: three_loops(rank, m, min(m, p - 1 - rank), steady="BF"),
        "order(1, 2, 1) runs 1B0 before 1F0, whose activations it needs.",
    ),
    "backwards reversed": (
        lambda rank, p, m: [f"{rank}F{i}" for i in range(m)] + [f"{rank}B{i}" for i in reversed(range(m))],
        "order(0, 2, 2) has 0B1 at position 2, where 1F1B has 0B0.",
    ),
    "no cool-down": (
        lambda rank, p, m: three_loops(rank, m, min(m, p - 1 - rank), drain=0),
        "order(0, 2, 1) never runs 0B0; the cool-down runs the backwards that are left.",
    ),
    "a cool-down from 0": (
        lambda rank, p, m: (
            three_loops(rank, m, (w := min(m, p - 1 - rank)), drain=0) + [f"{rank}B{i}" for i in range(w)]
        ),
        "order(0, 2, 2) runs 0B0 twice.",
    ),
    "no steady part": (
        lambda rank, p, m: three_loops(rank, m, min(m, p - 1 - rank), steady=""),
        "order(1, 2, 1) never runs 1F0.",
    ),
    "another stage": (
        lambda rank, p, m: three_loops(0, m, min(m, p - 1 - rank)),
        "order(1, 2, 1) names 0F0, but rank 1 holds stage 1 only.",
    ),
    "split backward": (
        lambda rank, p, m: [text.replace("B", "I") for text in right(rank, p, m)],
        "order(0, 2, 1) names 0I0, but here a backward is one action, B.",
    ),
    "no stage": (
        lambda rank, p, m: [text[1:] for text in right(rank, p, m)],
        "order(0, 2, 1) returns a row in which 'F0' is not an action; an action is a stage, one of F, B, I, W,"
        " and a microbatch, as in 2F0.",
    ),
    "a number": (
        lambda rank, p, m: 3,
        'order(0, 2, 1) returns 3; return a list of actions, as in ["0F0", "0B0"].',
    ),
    "nothing on one rank": (
        lambda rank, p, m: [] if rank else right(rank, p, m),
        "order(1, 2, 1) never runs 1F0.",
    ),
    "fewer microbatches forgotten": (
        lambda rank, p, m: right(rank, p, m) if m >= p else three_loops(rank, m, 0),
        "order(0, 3, 2) runs 1 forward before its first backward; it should be 2.",
    ),
}


@pytest.mark.parametrize("case", WRONG_ORDERS)
def test_a_wrong_order_gets_the_smallest_case(case: str) -> None:
    answer, sentence = WRONG_ORDERS[case]
    assert told("4.1", answer) == sentence


def test_below_a_wrong_order_is_what_it_does() -> None:
    gpipe, s_forwards, lost = (WRONG_ORDERS[case][0] for case in ("gpipe", "s forwards", "no cool-down"))
    assert pp.grade("4.1", gpipe).message.splitlines()[1:] == [
        "yours: 1F0 1F1 1B0 1B1",
        "yours · simulated · makespan 6 · bubble rate 33.3%, overhead 50.0%",
        "each column is 1",
        "rank 0  F0 F1 .. .. B0 B1",
        "rank 1  .. F0 F1 B0 B1 ..",
    ]
    assert "\nDeadlock: rank 0 stands at 0B0 and waits for 1B0" in pp.grade("4.1", s_forwards).message
    assert pp.grade("4.1", lost).message.splitlines()[1:] == ["yours: 0F0"]


# 4.2

WRONG_PEAKS = {
    "p": (lambda rank, p, m: p, "most_held(0, 2, 1) is 2, but rank 0 holds 1: there is only 1."),
    "p, clamped": (
        lambda rank, p, m: min(m, p),
        "most_held(1, 2, 2) is 2, but rank 1 holds 1: that is rank 0; later ranks have a shorter warm-up.",
    ),
    "not clamped": (
        lambda rank, p, m: p - rank,
        "most_held(0, 2, 1) is 2, but rank 0 holds 1: there are no more microbatches than m.",
    ),
    "clamped too early": (
        lambda rank, p, m: min(m, p) - rank,
        "most_held(1, 2, 1) is 0, but rank 1 holds 1: m limits each rank, min(m, p − rank), and not p alone.",
    ),
    "warm-up only": (
        lambda rank, p, m: min(m, p - 1 - rank),
        "most_held(1, 2, 1) is 0, but rank 1 holds 1: add the forward before the first backward to the warm-up.",
    ),
    "warm-up of s": (
        lambda rank, p, m: min(m, rank + 1),
        "most_held(0, 2, 2) is 1, but rank 0 holds 2: that grows from rank to rank, but the first one holds most.",
    ),
    "gpipe": (
        lambda rank, p, m: m,
        "most_held(1, 2, 2) is 2, but rank 1 holds 1: that is GPipe, which holds all.",
    ),
    "text": (
        lambda rank, p, m: "p - rank",
        "most_held(0, 2, 1) returns 'p - rank'; return a number of microbatches.",
    ),
}


def test_the_right_peak_is_solved() -> None:
    assert pp.grade("4.2", lambda rank, p, m: min(m, p - rank))


@pytest.mark.parametrize("case", WRONG_PEAKS)
def test_a_wrong_peak_is_counted_along_a_row(case: str) -> None:
    answer, sentence = WRONG_PEAKS[case]
    assert told("4.2", answer) == sentence


def test_below_a_wrong_peak_is_the_count() -> None:
    assert pp.grade("4.2", WRONG_PEAKS["p, clamped"][0]).message.splitlines()[1:] == [
        "runs   1F0 1B0 1F1 1B1",
        "holds    1   0   1   0",
    ]


# 4.3


@pytest.mark.parametrize("answer", [[0, 1, 2, 3], (0, 1, 0, 0), [3, 2, 0, 1], [6, 7, 0, 0], np.arange(4)], ids=str)
def test_warm_ups_that_grow_deadlock(answer: Any) -> None:
    assert pp.grade("4.3", answer)


WRONG_WARM_UPS = {
    "1f1b": ([3, 2, 1, 0], "[3, 2, 1, 0] runs, being 1F1B; rank 0 holds 4 microbatches."),
    "gpipe": ([7, 7, 7, 7], "[7, 7, 7, 7] runs, being GPipe; rank 0 holds 8 microbatches."),
    "none": ([0, 0, 0, 0], "[0, 0, 0, 0] runs, though slowly; rank 0 holds 1 microbatch."),
    "all alike": ([2, 2, 2, 2], "[2, 2, 2, 2] runs; rank 0 holds 3 microbatches."),
    "five": ([0, 1, 2, 3, 4], "[0, 1, 2, 3, 4] is not four warm-ups, one a rank, as in [3, 2, 1, 0]."),
    "one number": (3, "3 is not four warm-ups, one a rank, as in [3, 2, 1, 0]."),
    "too long": ([8, 1, 2, 3], "8 is no warm-up: it is a whole number of forwards, from 0 to 7."),
    "negative": ([0, -1, 2, 3], "-1 is no warm-up: it is a whole number of forwards, from 0 to 7."),
    "half": ([0, 0.5, 2, 3], "0.5 is no warm-up: it is a whole number of forwards, from 0 to 7."),
}


@pytest.mark.parametrize("case", WRONG_WARM_UPS)
def test_warm_ups_that_run_are_shown(case: str) -> None:
    answer, sentence = WRONG_WARM_UPS[case]
    assert told("4.3", answer) == sentence
    if " runs" in sentence:
        assert "\nrank 3  " in pp.grade("4.3", answer).message


# 4.4


def memory(m: int, kept: float, full: float) -> float:
    return (m - 1) * kept + full


def time(p: int, m: int, t_f: float, t_b: float) -> float:
    return (m + p - 1) * (2 * t_f + t_b)


WRONG_RECOMPUTED = {
    "not slower": (
        lambda p, m, t_f, t_b, kept, full: ((m + p - 1) * (t_f + t_b), memory(m, kept, full)),
        "recomputed(1, 1, 1, 2, 1, 10) says that the step lasts 3, but it lasts 4: each B now begins with another F.",
    ),
    "everything twice": (
        lambda p, m, t_f, t_b, kept, full: (2 * (m + p - 1) * (t_f + t_b), memory(m, kept, full)),
        "recomputed(1, 1, 1, 2, 1, 10) says that the step lasts 6, but it lasts 4:"
        " the forward is repeated, the backward is not.",
    ),
    "memory first": (
        lambda p, m, t_f, t_b, kept, full: (memory(m, kept, full), time(p, m, t_f, t_b)),
        "recomputed(1, 1, 1, 2, 1, 10) says that the step lasts 10, but it lasts 4:"
        " give the time first, then the memory.",
    ),
    "1f1b's inputs": (
        lambda p, m, t_f, t_b, kept, full: (time(p, m, t_f, t_b), (min(p, m) - 1) * kept + full),
        "recomputed(1, 3, 1, 2, 1, 10) says that a rank holds 10 at most, but it holds 12:"
        " that is 1F1B; in GPipe the inputs of all m microbatches are there.",
    ),
    "only the work is longer": (
        lambda p, m, t_f, t_b, kept, full: ((m + p - 1) * (t_f + t_b) + m * t_f, memory(m, kept, full)),
        "recomputed(2, 1, 1, 2, 1, 10) says that the step lasts 7, but it lasts 8:"
        " the ranks that wait for these longer backwards become later, too.",
    ),
    "no bubble": (
        lambda p, m, t_f, t_b, kept, full: (m * (2 * t_f + t_b), memory(m, kept, full)),
        "recomputed(2, 1, 1, 2, 1, 10) says that the step lasts 4, but it lasts 8.",
    ),
    "inputs only": (
        lambda p, m, t_f, t_b, kept, full: (time(p, m, t_f, t_b), m * kept),
        "recomputed(1, 1, 1, 2, 1, 10) says that a rank holds 1 at most, but it holds 10:"
        " that is right between actions, but during a B one microbatch is there in full.",
    ),
    "its input twice": (
        lambda p, m, t_f, t_b, kept, full: (time(p, m, t_f, t_b), m * kept + full),
        "recomputed(1, 1, 1, 2, 1, 10) says that a rank holds 11 at most, but it holds 10:"
        " the microbatch that is there in full has its input in `full` already.",
    ),
    "not recomputed": (
        lambda p, m, t_f, t_b, kept, full: (time(p, m, t_f, t_b), m * full),
        "recomputed(1, 3, 1, 2, 1, 10) says that a rank holds 30 at most, but it holds 12:"
        " that would be GPipe without recomputation.",
    ),
    "one microbatch": (
        lambda p, m, t_f, t_b, kept, full: (time(p, m, t_f, t_b), full if m == 1 else kept + full),
        "recomputed(1, 3, 1, 2, 1, 10) says that a rank holds 11 at most, but it holds 12:"
        " every microbatch whose B is still to come has its input there.",
    ),
    "time only": (
        lambda p, m, t_f, t_b, kept, full: time(p, m, t_f, t_b),
        "recomputed(1, 1, 1, 2, 1, 10) returns 4; return two numbers, time and memory.",
    ),
}


def test_the_right_recomputation_is_solved() -> None:
    assert pp.grade("4.4", lambda p, m, t_f, t_b, kept, full: (time(p, m, t_f, t_b), memory(m, kept, full)))
    assert pp.grade("4.4", lambda p, m, t_f, t_b, kept, full: np.array([time(p, m, t_f, t_b), memory(m, kept, full)]))


@pytest.mark.parametrize("case", WRONG_RECOMPUTED)
def test_a_wrong_recomputation_gets_the_smallest_case(case: str) -> None:
    answer, sentence = WRONG_RECOMPUTED[case]
    assert told("4.4", answer) == sentence


# all


@pytest.mark.parametrize("number", ["4.1", "4.2", "4.3", "4.4"])
def test_what_a_stub_returns_is_not_solved_yet(number: str) -> None:
    def stub(*args: object) -> None: ...

    unsolved = [..., None] + ([[..., 1, 2, 3]] if number == "4.3" else [stub])
    assert [pp.grade(number, answer).state for answer in unsolved] == ["unsolved"] * 3


def test_the_lesson_lets_no_wrong_order_pass_that_the_package_would_not_build() -> None:
    """Every swap of two neighbours in 1F1B's rows is found."""
    for swapped in range(2 * 4 - 1):

        def order(rank: int, p: int, m: int, at: int = swapped) -> list[str]:
            row = right(rank, p, m)
            if rank == 1 and (p, m) == (3, 4):
                row[at : at + 2] = row[at + 1], row[at]
            return row

        assert told("4.1", order).startswith("order(1, 3, 4) ")


def test_the_graders_build_1f1b_and_gpipe_from_warm_ups_as_the_package_does() -> None:
    for name, warm_ups in (("1f1b", [3, 2, 1, 0]), ("gpipe", [7, 7, 7, 7])):
        assert [tuple(row) for row in lesson_04._rows(warm_ups, m=8)] == list(pp.build(name, p=4, m=8).rows)
    assert {action.op for row in lesson_04._rows([0, 1], m=2) for action in row} == {Op.F, Op.B}
