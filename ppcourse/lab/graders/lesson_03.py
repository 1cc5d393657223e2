"""Lesson 03, derive the bubble: where idle time is, how long a step takes, four numbers, how many microbatches."""

import math
from collections.abc import Callable, Iterable
from fractions import Fraction
from numbers import Real
from typing import Any, TypeAlias

from ppcourse.analysis import formulas
from ppcourse.analysis.simulate import simulate
from ppcourse.analysis.timeline import Timeline
from ppcourse.lab.gantt_text import gantt_text
from ppcourse.lab.graders import grader
from ppcourse.lab.graders.numbers import as_numbers
from ppcourse.schedules import build
from ppcourse.schedules.costs import Costs

Formula: TypeAlias = Callable[..., float]

STEPS = [(1, 1, 1, 1), (1, 4, 1, 1), (2, 1, 1, 1), (2, 4, 1, 1), (2, 1, 1, 2), (3, 2, 3, 1), (4, 8, 10, 20)]
SIZES = [(1, 1), (1, 4), (2, 1), (2, 4), (3, 2), (4, 6), (4, 8), (8, 32)]
TARGETS = [(1, 0.2), (2, 0.5), (2, 0.2), (4, 0.4), (4, 0.2), (3, 0.15), (8, 0.1)]


# 3.1


@grader("3.1", minutes=8, difficulty=2)
def split_the_idle_time(idle_parts: Callable[[Timeline, int], Any]) -> str | None:
    """before, between and after are right on GPipe, 1F1B and one microbatch at a time."""
    for timeline, called in _timelines():
        for rank in range(timeline.num_ranks):
            got, want = as_numbers(idle_parts(timeline, rank)), _idle_parts(timeline, rank)
            said = f"idle_parts(timeline, {rank}) is {_text(got)}"
            if not _numbers(got, 3):
                return f"{said}; return three numbers: before the first action, between actions, after the last."
            if not _same(got, want):
                why = _why_not_these_parts(tuple(map(float, got)), want, timeline, rank)
                return f"{said} on {called}, but should be {_text(want)}: {why}\n{gantt_text(timeline)}"
    return None


def _timelines() -> Iterable[tuple[Timeline, str]]:
    """Small ones first; F lasts 1 and B lasts 2, so that before and after differ."""
    plans = [("gpipe", 2, 1), ("gpipe", 2, 2), ("gpipe", 3, 2), ("1f1b", 3, 4), ("naive", 2, 2)]
    for name, p, m in plans:
        yield simulate(build(name, p=p, m=m)), f"{name} with p={p}, m={m}"
    spans = simulate(build("gpipe", p=2, m=1)).spans
    later = tuple(span._replace(start=span.start + 10, end=span.end + 10) for span in spans)
    yield Timeline.of("gpipe", 2, later), "a timeline whose first action starts at 10"


def _idle_parts(timeline: Timeline, rank: int) -> tuple[float, float, float]:
    row = timeline.by_rank[rank]
    before, after = row[0].start - timeline.start, timeline.end - row[-1].end
    return before, timeline.idle[rank] - before - after, after


def _why_not_these_parts(
    got: tuple[float, ...], want: tuple[float, float, float], timeline: Timeline, rank: int
) -> str:
    if _same(got, want[::-1]):
        return "that is after, between, before."
    ends_right = _same((got[0], got[2]), (want[0], want[2]))
    if ends_right and math.isclose(got[1], timeline.idle[rank]):
        return "your middle part counts the two ends as well."
    if timeline.start and _same(got[1:], want[1:]):
        return f"count from timeline.start, which is {timeline.start:g} here."
    if timeline.start:  # those that begin at 0 were right
        return f"this one begins at timeline.start = {timeline.start:g} and ends at timeline.end = {timeline.end:g}."
    if _same([timeline.makespan * part for part in got], want):
        return "give times, not shares of the makespan."
    others = (other for other in range(timeline.num_ranks) if _same(got, _idle_parts(timeline, other)))
    if (other := next(others, None)) is not None:
        return f"those are rank {other}'s."
    if ends_right:
        return "a rank may wait in more than one place between its first and its last action; add them all up."
    return f"together the three are this rank's idle time, {timeline.idle[rank]:g}."


# 3.2


WRONG_STEPS: dict[str, Formula] = {
    "only the p − 1 ranks before the last one have to be passed, not p": lambda p, m, f, b: (p + m) * (f + b),
    "that is one microbatch too few": lambda p, m, f, b: (p + m - 2) * (f + b),
    "that is the work alone, without the bubble": lambda p, m, f, b: m * (f + b),
    "that is the bubble alone, without the work": lambda p, m, f, b: (p - 1) * (f + b),
    "that is one rank working at a time; here ranks overlap": lambda p, m, f, b: p * m * (f + b),
    "you wait before the first action, but not after the last": lambda p, m, f, b: m * (f + b) + (p - 1) * f,
    "you wait after the last action, but not before the first": lambda p, m, f, b: m * (f + b) + (p - 1) * b,
    "that counts every B as long as an F": lambda p, m, f, b: 2 * (p + m - 1) * f,
    "that counts every F as long as a B": lambda p, m, f, b: 2 * (p + m - 1) * b,
    "that is the time of the forwards": lambda p, m, f, b: (p + m - 1) * f,
}


@grader("3.2", minutes=8, difficulty=2)
def derive_the_step_time(step_time: Formula) -> str | None:
    """(m + p − 1)(t_f + t_b), equal to the simulator for every p, m, t_f and t_b tried."""
    answers = [as_numbers(step_time(*case)) for case in STEPS]
    for case, got in zip(STEPS, answers, strict=True):
        p, m, forward, backward = case
        costs = Costs(forward=forward, input_grad=backward / 2, weight_grad=backward / 2)
        timeline = simulate(build("gpipe", p=p, m=m), costs)
        said = f"step_time{case} is {_text(got)}"
        if not _is_number(got):
            return f"{said}; return one number."
        if not math.isclose(got, timeline.makespan):
            why = next((f": {name}." for name, f in WRONG_STEPS.items() if _always(f, STEPS, answers)), ":")
            return f"{said}, but the simulator takes {timeline.makespan:g}{why}\n{gantt_text(timeline)}"
    return None


# 3.3


NUMBERS: dict[str, Formula] = {
    "overhead": formulas.bubble_overhead,
    "rate": formulas.bubble_rate,
    "speed-up": formulas.speed_up,
    "efficiency": formulas.efficiency,
}
WRONG_NUMBERS: dict[str, Formula] = {
    "p ÷ m; the bubble comes from p − 1 ranks": lambda p, m: p / m,
    "p ÷ (m + p); the bubble comes from p − 1 ranks": lambda p, m: p / (m + p),
    "(p − 1) ÷ (m + p); a step is m + p − 1 long": lambda p, m: (p - 1) / (m + p),
    "m ÷ (m + p); a step is m + p − 1 long": lambda p, m: m / (m + p),
    "p m ÷ (m + p); a step is m + p − 1 long": lambda p, m: p * m / (m + p),
    "1 − overhead; what is left of 1 goes with the rate": lambda p, m: 1 - (p - 1) / m,
    "p, the speed-up of a pipeline without a bubble": lambda p, m: p,
    "m, the speed-up of as many ranks as microbatches, without a bubble": lambda p, m: m,
}


@grader("3.3", minutes=6, difficulty=2)
def tell_four_numbers_apart(four_numbers: Callable[[int, int], Any]) -> str | None:
    """overhead, rate, speed-up and efficiency all equal the simulator's."""
    answers = [as_numbers(four_numbers(*case)) for case in SIZES]
    for case, got in zip(SIZES, answers, strict=True):
        if not _numbers(got, 4):
            return f"four_numbers{case} is {_text(got)}; return four numbers: overhead, rate, speed-up, efficiency."
    for place, name in enumerate(NUMBERS):
        column = [answer[place] for answer in answers]
        for case, got in zip(SIZES, column, strict=True):
            want = _measure(*case)[place]
            if not math.isclose(got, want, abs_tol=1e-12):
                said = f"in four_numbers{case} the {name} is {float(got):.4g}, but should be {want:.4g}"
                return said + _what_number(name, column)
    return None


def _measure(p: int, m: int) -> tuple[float, float, float, float]:
    """The four numbers as the simulator has them: one rank alone against p of them."""
    share = Costs(forward=1, input_grad=1, weight_grad=1)
    whole = Costs(forward=p, input_grad=p, weight_grad=p)
    timeline = simulate(build("gpipe", p=p, m=m), share)
    alone = simulate(build("gpipe", p=1, m=m), whole)
    efficiency = sum(timeline.busy) / (p * timeline.makespan)
    return timeline.bubble_overhead, timeline.bubble_rate, alone.makespan / timeline.makespan, efficiency


def _what_number(name: str, column: list[float]) -> str:
    """What a wrong column of numbers is, as the end of a sentence."""
    known = {f"that is the {other}": formula for other, formula in NUMBERS.items() if other != name}
    known |= {f"that is {what}": formula for what, formula in WRONG_NUMBERS.items()}
    known["p and m have changed places"] = lambda p, m: NUMBERS[name](m, p)
    known["give a fraction, not per cent"] = lambda p, m: 100 * NUMBERS[name](p, m)
    return next((f": {what}." for what, formula in known.items() if _always(formula, SIZES, column)), ".")


# 3.4


WRONG_COUNTS: dict[str, Formula] = {
    "m = 4p is a rule of thumb, not the least": lambda p, rate: 4 * p,
    "that keeps the overhead at the target, which is stricter": lambda p, rate: max(1, math.ceil((p - 1) / rate)),
    "that is for p instead of p − 1": lambda p, rate: math.ceil(p * (1 / rate - 1)),
    "at most includes equal": lambda p, rate: math.floor((p - 1) * (1 / rate - 1)) + 1,
}
ROUNDED_UP = "if the formula is right, the computer's rounding lifts it just above; round(..., 9) first"


@grader("3.4", minutes=6, difficulty=2)
def find_the_fewest_microbatches(fewest: Callable[[int, float], Any]) -> str | None:
    """the fewest microbatches for every target, and one fewer would miss it."""
    answers = [as_numbers(fewest(*case)) for case in TARGETS]
    for (p, rate), got in zip(TARGETS, answers, strict=True):
        want = max(1, math.ceil((p - 1) * (1 / Fraction(str(rate)) - 1)))
        said = f"fewest({p}, {rate}) is {_text(got)}"
        if not _is_number(got) or got != int(got):
            return f"{said}; a number of microbatches is a whole number: round up."
        if got < 1:
            return f"{said}; a step has at least 1 microbatch."
        reached = formulas.bubble_rate(p, min(got, want))
        if got < want:
            return f"{said}, but with m = {float(got):g} the bubble rate is {reached:.1%}, above {rate:.0%}."
        if got > want:
            inexact = Fraction(rate) != Fraction(str(rate))  # 0.5 is exact, so nothing is lifted there
            equal = got == want + 1 and math.isclose(reached, rate) and inexact
            known = [why for why, formula in WRONG_COUNTS.items() if _always(formula, TARGETS, answers)]
            why = "".join(f": {one}" for one in (known or [ROUNDED_UP] * equal)[:1])
            return f"{said}, but m = {want} already brings the bubble rate to {reached:.1%}{why}."
    return None


def _numbers(value: Any, count: int) -> bool:
    """True for a tuple or list of so many numbers."""
    return isinstance(value, tuple | list) and len(value) == count and all(map(_is_number, value))


def _is_number(value: Any) -> bool:
    return isinstance(value, Real) and math.isfinite(value)


def _same(got: Iterable[float], want: Iterable[float]) -> bool:
    return all(math.isclose(one, other, abs_tol=1e-9) for one, other in zip(got, want, strict=True))


def _always(formula: Formula, cases: Iterable[tuple[Any, ...]], answers: Iterable[Any]) -> bool:
    """True if the answers to all cases are what this formula gives."""
    answers = list(answers)
    return _numbers(answers, len(answers)) and _same(answers, [formula(*case) for case in cases])


def _text(value: Any) -> str:
    if _is_number(value):
        return f"{float(value):.6g}"
    if isinstance(value, tuple | list):
        return f"({', '.join(_text(one) for one in value)})"
    return f"{value!r:.80}"
