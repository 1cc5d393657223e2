"""Lesson 14's exercises: what right answers, plausible wrong ones, and stubs are told; the numbers in its prose."""

import re
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from verdicts import told

import ppcourse as pp
from ppcourse.lab import drills
from ppcourse.lab.graders import lesson_14

pytestmark = pytest.mark.usefixtures("own_progress")

SOURCE = (Path(__file__).parents[1] / "solutions" / "14_drill_for_interviews.py").read_text(encoding="utf-8")
PROSE = " ".join(SOURCE.replace("\n# ", " ").split())


# 14.1


def test_the_right_hand_is_solved_as_numbers_or_texts() -> None:
    right = [card.answer for card in lesson_14.hand()]
    assert pp.grade("14.1", right)
    assert pp.grade("14.1", tuple(f"{number:.4f}" for number in right))
    assert pp.grade("14.1", [f" {card.shown} " for card in lesson_14.hand()])
    assert pp.grade("14.1", np.array(right))
    assert len({card.lesson for card in lesson_14.hand()}) == 6


@pytest.mark.parametrize("place", range(6))
def test_a_wrong_card_is_named_with_its_mistake(place: int) -> None:
    card = lesson_14.hand()[place]
    for sentence, wrong in card.confusions.items():
        answers: list[object] = [one.answer for one in lesson_14.hand()]
        answers[place] = f"{wrong} %" if card.unit == "%" else wrong
        assert told("14.1", answers).startswith(f"card {place + 1}, {card.kind}: ")
        assert sentence in told("14.1", answers)


@pytest.mark.parametrize("answer", [3, "3", [1, 2, 3], {1: 2}])
def test_a_hand_needs_six_answers(answer: object) -> None:
    assert told("14.1", answer) == "Give 6 answers, one a card, in a list."


def test_a_hand_of_guesses_is_wrong_at_the_first_card() -> None:
    assert told("14.1", ["?"] * 6) == "card 1, bubble-rate: an answer is a number in %, as in 12 or 12.5."


# 14.2


def formulas(p: int, m: int) -> dict[str, float]:
    slots = m + p - 1
    return {"overhead": (p - 1) / m, "rate": (p - 1) / slots, "efficiency": m / slots, "speed-up": p * m / slots}


def near(p: int, m: int, value: float, within: float = 0.01, **other: float) -> str | None:
    known = formulas(p, m) | {word.replace("_", "-"): number for word, number in other.items()}
    return next((word for word, number in known.items() if abs(number - value) <= within * number), None)


WRONG_NAMES = {
    "exact only": (
        lambda p, m, value: near(p, m, value, 1e-9),
        "name(2, 3, 0.333), which is rounded, is None, but that is the overhead.",
    ),
    "always a name": (
        lambda p, m, value: min(formulas(p, m), key=lambda word: abs(formulas(p, m)[word] - value)),
        "name(2, 3, 12) is 'speed-up', but it is none of the four: return None.",
    ),
    "bubble for both": (
        lambda p, m, value: "overhead" if near(p, m, value) in ("overhead", "rate") else near(p, m, value),
        "name(2, 3, 0.25) is 'overhead', but that is the rate.",
    ),
    "efficiency and speed-up changed": (
        lambda p, m, value: {"efficiency": "speed-up", "speed-up": "efficiency"}.get(
            str(near(p, m, value)), near(p, m, value)
        ),
        "name(2, 3, 0.75) is 'speed-up', but that is the efficiency.",
    ),
    "overhead from p": (
        lambda p, m, value: near(p, m, value, overhead=p / m) or "nothing",
        "name(2, 3, 0.333333) is 'nothing', but that is the overhead.",
    ),
}


def test_the_right_names_are_solved() -> None:
    assert pp.grade("14.2", near)


@pytest.mark.parametrize("case", WRONG_NAMES)
def test_a_wrong_name_gets_the_smallest_case(case: str) -> None:
    answer, sentence = WRONG_NAMES[case]
    assert told("14.2", answer) == sentence


def test_no_two_of_the_four_numbers_are_near_in_the_sizes_that_are_tried() -> None:
    for size in lesson_14.SIZES:
        values = sorted(lesson_14._four(*size).values())
        assert all(b / a > 1.02 for a, b in pairwise(values))


# 14.3

WRONG_GAINS = {
    "v": (lambda p, m, v: v, "gain(1, 2, 3) is 3, but should be 6 ÷ 6 = 1: that is what becomes of the bubble"),
    "the other way round": (
        lambda p, m, v: (m + (p - 1) / v) / (m + p - 1),
        "gain(2, 2, 2) is 0.833333, but should be 9 ÷ 7.5 = 1.2: that is the ratio the other way round.",
    ),
    "rates": (
        lambda p, m, v: (v * m + p - 1) / (m + p - 1),
        "gain(1, 2, 3) is 3, but should be 6 ÷ 6 = 1: that is the ratio of the two rates.",
    ),
    "the rate divided": (
        lambda p, m, v: (1 - (p - 1) / (m + p - 1) / v) / (1 - (p - 1) / (m + p - 1)),
        "gain(2, 2, 2) is 1.25, but should be 9 ÷ 7.5 = 1.2: a rate is divided, but v divides the overhead.",
    ),
    "text": (lambda p, m, v: "1.2", "gain(1, 1, 1) is '1.2'; return a number."),
}


def test_the_right_gain_is_solved() -> None:
    assert pp.grade("14.3", lambda p, m, v: (m + p - 1) / (m + (p - 1) / v))
    assert pp.grade("14.3", lambda p, m, v: pp.formulas.step_time(p, m, 1, 2) / pp.formulas.step_time(p, m, 1, 2, v))


@pytest.mark.parametrize("case", WRONG_GAINS)
def test_a_wrong_gain_is_told_what_it_is(case: str) -> None:
    answer, sentence = WRONG_GAINS[case]
    assert told("14.3", answer).startswith(sentence)


# all


@pytest.mark.parametrize("number", ["14.1", "14.2", "14.3"])
def test_what_a_stub_returns_is_not_solved_yet(number: str) -> None:
    def stub(*args: object) -> None: ...

    unsolved = [..., None, [1, 2, ..., 4, 5, 6] if number == "14.1" else stub]
    assert [pp.grade(number, answer).state for answer in unsolved] == ["unsolved"] * 3


def test_the_numbers_in_the_prose_are_right() -> None:
    rate, overhead = pp.formulas.bubble_rate, pp.formulas.bubble_overhead
    assert f"| {len(drills.questions())} at four levels |" in PROSE
    assert f"| {len(drills.kinds())}, drawn anew from a seed |" in PROSE
    assert f"With p = 4 and m = 8 the bubble rate, idle ÷ all time, is {rate(4, 8):.1%}" in PROSE
    assert f"7 ÷ 23 = {rate(8, 16):.1%}" in PROSE
    assert f"Your efficiency is {pp.formulas.speed_up(4, 8):.0%}?" in PROSE
    assert f"The last one, {round(100 * overhead(4, 8, 2)):g}%, is the *overhead* with v = 2" in PROSE
    woven = pp.simulate(pp.build("interleaved", 4, 8, 2), pp.Costs(0.5, 0.5, 0.5)).makespan
    plain = pp.simulate(pp.build("1f1b", 4, 8)).makespan
    assert f"1F1B in {plain:g} slots of t_f, interleaved in {woven:g}" in PROSE
    assert (
        f"p = 8, m = 32, overhead {overhead(8, 32):.1%}, and rank 0 holds 8 microbatches in 1F1B, 32 in GPipe" in PROSE
    )
    assert (pp.in_flight(pp.build("1f1b", 8, 32))[0], pp.in_flight(pp.build("gpipe", 8, 32))[0]) == (8, 32)
    assert f"v = 4 makes the overhead {overhead(8, 32, 4):.1%} for a little more than 4 times the messages" in PROSE
    slow = [1.0, 1.0, 1.0, 1.5]
    assert pp.simulate(pp.build("1f1b", 4, 8), pp.Costs(slow, slow, slow)).makespan == 45
    assert "costs 45 instead of 33" in PROSE
    assert f"{overhead(4, 8):.1%} of the busy time, {rate(4, 8):.1%} of all time" in PROSE


def test_the_mock_interview_is_what_the_prose_says() -> None:
    talk = drills.mock(seed=14)
    assert "six questions of 6 minutes and three cards of 3" in PROSE
    assert repr(talk) == "Interview 14: 6 questions and 3 cards in 45 minutes"
    assert isinstance(talk.items[0], drills.Question)  # the cell after next() asks a follow-up and scores
    assert len(talk.items[0].rubric) >= 4
    assert re.search(r"points = 4  # solution\nif points is not \.\.\.:\n    talk\.score\(points\)", SOURCE)
