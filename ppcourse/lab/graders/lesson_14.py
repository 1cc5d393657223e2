"""Lesson 14, drill for interviews: a hand of cards, naming a number, two formulas in one."""

import math
from collections.abc import Callable, Sequence
from numbers import Real
from typing import Any

from ppcourse.analysis.simulate import simulate
from ppcourse.lab import drills
from ppcourse.lab.gantt_text import gantt_text
from ppcourse.lab.graders import Unsolved, grader
from ppcourse.lab.graders.numbers import as_numbers
from ppcourse.schedules import build
from ppcourse.schedules.costs import Costs

HAND = ("bubble-rate", "held-in-1f1b", "training-state", "interleaved-overhead", "zb-h1-bubble", "slow-last-stage")
SEED = 2
# the four numbers differ by more than rounding in each of them
SIZES = [(2, 3), (2, 8), (3, 5), (4, 6), (4, 8), (4, 16), (8, 8), (8, 32)]
GAINS = [(1, 1, 1), (1, 2, 3), (2, 2, 1), (2, 2, 2), (2, 8, 2), (4, 4, 2), (4, 8, 2), (4, 8, 4), (3, 9, 3), (8, 16, 2)]


def hand() -> list[drills.Card]:
    """The cards of exercise 14.1."""
    return [drills.card(kind, SEED) for kind in HAND]


# 14.1


@grader("14.1", minutes=12, difficulty=2)
def answer_a_hand_of_cards(answers: Any) -> str | None:
    """All six cards, each as the simulator or a count has it."""
    cards, answers = hand(), as_numbers(answers)
    if not isinstance(answers, Sequence) or isinstance(answers, str) or len(answers) != len(cards):
        return f"Give {len(cards)} answers, one a card, in a list."
    for place, (card, given) in enumerate(zip(cards, answers, strict=True), 1):
        told = card.judge(given)
        if not told.right:
            return f"card {place}, {card.kind}: {told.sentence[0].lower()}{told.sentence[1:]}"
    return None


# 14.2


def _four(p: int, m: int) -> dict[str, float]:
    """The four numbers as the simulator has them: one rank alone against p of them."""
    timeline = simulate(build("gpipe", p, m))
    alone = simulate(build("gpipe", 1, m), Costs(p, p, p))
    return {
        "overhead": timeline.bubble_overhead,
        "rate": timeline.bubble_rate,
        "efficiency": sum(timeline.busy) / (p * timeline.makespan),
        "speed-up": alone.makespan / timeline.makespan,
    }


@grader("14.2", minutes=8, difficulty=2)
def name_a_number(name: Callable[[int, int, float], Any]) -> str | None:
    """Every overhead, rate, efficiency and speed-up by its name, also rounded as people say them."""
    for p, m in SIZES:
        for right, value in _four(p, m).items():
            for said in (value, round(value, 3)):
                got = name(p, m, said)
                if got is None and said is value and (p, m) == SIZES[0] and right == "overhead":
                    raise Unsolved
                if got != right:
                    rounded = "" if said == value else ", which is rounded,"
                    return f"name({p}, {m}, {said:.6g}){rounded} is {got!r:.40}, but that is the {right}."
        got = name(p, m, 10.0 + p)
        if got is not None:
            return f"name({p}, {m}, {10 + p}) is {got!r:.40}, but it is none of the four: return None."
    return None


# 14.3


WRONG_GAINS: dict[str, Callable[[int, int, int], float]] = {
    "that is what becomes of the bubble; the work stays": lambda p, m, v: v,
    "that is the ratio of the two rates": lambda p, m, v: (v * m + p - 1) / (m + p - 1),
    "that is the ratio the other way round": lambda p, m, v: (m + (p - 1) / v) / (m + p - 1),
    "that divides the whole step by v, the work too": lambda p, m, v: (m + p - 1) / ((m + p - 1) / v),
    "a rate is divided, but v divides the overhead": lambda p, m, v: (
        (1 - (p - 1) / (m + p - 1) / v) / (1 - (p - 1) / (m + p - 1))
    ),
}


@grader("14.3", minutes=8, difficulty=3)
def put_two_formulas_together(gain: Callable[[int, int, int], Any]) -> str | None:
    """The simulator's ratio for every p, m and v tried."""
    got = [as_numbers(gain(*case)) for case in GAINS]
    for case, mine in zip(GAINS, got, strict=True):
        p, m, v = case
        plain = simulate(build("1f1b", p, m))
        woven = simulate(build("interleaved", p, m, v), Costs(1 / v, 1 / v, 1 / v))
        want = plain.makespan / woven.makespan
        if not isinstance(mine, Real) or isinstance(mine, bool):
            return f"gain{case} is {mine!r:.40}; return a number."
        if not math.isclose(mine, want, rel_tol=1e-6):
            why = next((f": {said}" for said, wrong in WRONG_GAINS.items() if _always(wrong, got)), "")
            steps = f"{plain.makespan:g} ÷ {woven.makespan:g}"
            return f"gain{case} is {float(mine):.6g}, but should be {steps} = {want:.6g}{why}.\n{gantt_text(woven)}"
    return None


def _always(wrong: Callable[[int, int, int], float], got: list[Any]) -> bool:
    return all(math.isclose(mine, wrong(*case)) for mine, case in zip(got, GAINS, strict=True))
