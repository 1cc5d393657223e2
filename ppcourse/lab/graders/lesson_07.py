"""Lesson 07, bend the pipeline: stages on a V, a forward across a backward, DualPipe's bubble, when it wins."""

import math
from collections.abc import Callable, Sequence
from functools import cache
from itertools import permutations, product
from numbers import Real
from typing import Any, TypeAlias

from ppcourse.analysis import formulas
from ppcourse.analysis.simulate import simulate
from ppcourse.lab.gantt_text import gantt_text
from ppcourse.lab.graders import grader
from ppcourse.lab.graders.numbers import as_numbers
from ppcourse.schedules import build
from ppcourse.schedules.costs import Costs
from ppcourse.schedules.placement import vee
from ppcourse.schedules.schedule import Schedule
from ppcourse.schedules.validate import validate

Formula: TypeAlias = Callable[..., float]


# 7.1


OTHER_HOMES: dict[str, Callable[[int, int], int]] = {
    "that deals the stages round the ranks; a V turns at the last rank": lambda stage, p: stage % p,
    "that puts neighbouring stages on a rank; on a V they are on neighbouring ranks": lambda stage, p: stage // 2,
    "that is one rank too far: stages begin at 0, so the last one is 2p − 1": lambda s, p: s if s < p else 2 * p - s,
    "that begins at the last rank": lambda stage, p: max(p - 1 - stage, stage - p),
}


@grader("7.1", minutes=4, difficulty=1)
def place_stages_on_a_v(home: Callable[[int, int], Any]) -> str | None:
    """down the ranks and up again, for 1 to 8 ranks."""
    cases = [(stage, p) for p in (2, 1, *range(3, 9)) for stage in range(2 * p)]
    answers = [as_numbers(home(*case)) for case in cases]
    for (stage, p), got in zip(cases, answers, strict=True):
        said, want = f"home({stage}, {p}) is {_text(got)}", vee(p).rank_of(stage, 0)
        if not _whole(got):
            return f"{said}; return the number of a rank."
        if got != want:
            why = [text for text, rule in OTHER_HOMES.items() if answers == [rule(*case) for case in cases]]
            outside = f"ranks are 0 to {p - 1}" if not 0 <= got < p else "down the ranks and up again"
            stages = " ".join(str(s) for s in vee(p).stages_of(want))
            return f"{said}, but rank {want} holds stages {stages}: {(why or [outside])[0]}."
    return None


# 7.2


PARTS = Costs(forward=1, input_grad=1, weight_grad=[1, 0, 1, 0])
MOVES = ((("0F1", "2F1"), ("2B0", "0B0")), (("1F1", "3F1"), ("3B0", "1B0")))  # of compute, of the network
WHO = ("compute", "network")


@grader("7.2", minutes=8, difficulty=2)
def cross_a_forward_with_a_backward(answer: Any) -> str | None:
    """as early as any of the orders that do not deadlock; the network is hidden."""
    if not (isinstance(answer, list | tuple) and len(answer) == 2):
        return f"{_text(answer)} is not two rows, [compute, network]."
    rows = []
    for who, given, (forward, backward) in zip(WHO, answer, MOVES, strict=True):
        if isinstance(given, str):  # the lesson puts the row among other actions, and would take it letter by letter
            return (
                f"{who} is {_text(given)}; give a list of actions, as in [{', '.join(map(repr, backward + forward))}]."
            )
        row = [str(cell) for cell in given] if isinstance(given, list | tuple) else []
        if sorted(row) != sorted(forward + backward):
            return f"{who} is {_text(given)}; order these four: {' '.join(forward + backward)}."
        for first, then in (forward, backward):
            if row.index(first) > row.index(then):
                return f"{who} runs {then} before {first}; a microbatch keeps its own order."
        rows.append(row)
    plan = crossing(*rows)
    if broken := validate(plan):
        return f"this never ends.\n{broken[0].message}"
    took, least = simulate(plan, PARTS).makespan, fastest_crossing()
    if took > least:
        return f"all is done at {took:g}, but it can be at {least:g}.\n{gantt_text(simulate(plan, PARTS))}"
    return None


def crossing(compute: Sequence[str], network: Sequence[str]) -> Schedule:
    """F of microbatch 0, what is given, B of microbatch 1; rank 0 is compute, rank 1 the network."""
    rows = [["0F0", "2F0", *compute, "2B1", "0B1"], ["1F0", "3F0", *network, "3B1", "1B1"]]
    return Schedule.from_rows(rows, name="yours")


@cache
def fastest_crossing() -> float:
    """The least makespan of all orders."""
    orders = [
        [list(row) for row in permutations(forward + backward) if all(_in_order(row, of) for of in (forward, backward))]
        for forward, backward in MOVES
    ]
    plans = (crossing(*rows) for rows in product(*orders))
    return min(simulate(plan, PARTS).makespan for plan in plans if not validate(plan))


def _in_order(row: Sequence[str], pair: tuple[str, str]) -> bool:
    return row.index(pair[0]) < row.index(pair[1])


# 7.3


BUBBLES = [(2, 1, 1, 3), (4, 1, 1, 3), (4, 1, 1, 2), (8, 1, 1, 3), (8, 4, 2, 6), (8, 3, 1, 5)]  # p, t_i, t_w, F&B
OTHER_BUBBLES: dict[str, Formula] = {
    "your B is the input gradient, but the report's is the full backward, t_i + t_w": lambda p, i, w, o: (
        (p / 2 - 1) * (o + i - 3 * w)
    ),
    "B is t_i + t_w, so of 3 W only 2 are left": lambda p, i, w, o: (p / 2 - 1) * (o + i - w),
    "it is PP ÷ 2 − 1: both streams meet in the middle": lambda p, i, w, o: (p - 1) * (o + i - 2 * w),
    "it is PP ÷ 2 − 1, not (PP − 1) ÷ 2": lambda p, i, w, o: (p - 1) / 2 * (o + i - 2 * w),
    "it is PP ÷ 2 − 1, not PP ÷ 2": lambda p, i, w, o: p / 2 * (o + i - 2 * w),
    "it counts F&B as well": lambda p, i, w, o: (p / 2 - 1) * (i - 2 * w),
}


@grader("7.3", minutes=6, difficulty=2)
def translate_the_bubble(bubble: Formula) -> str | None:
    """the published formula in our letters, and the simulator's bubble where t_f = t_i = t_w."""
    answers = [as_numbers(bubble(*case)) for case in BUBBLES]
    for case, got in zip(BUBBLES, answers, strict=True):
        p, i, w, pair = case
        said, want = f"bubble{case} is {_text(got)}", formulas.dualpipe_bubble_time(p, i + w, w, pair)
        if not _number(got):
            return f"{said}; return one number."
        if not math.isclose(got, want, abs_tol=1e-9):
            known = (text for text, rule in OTHER_BUBBLES.items() if _always(rule, BUBBLES, answers))
            exact = f"; the simulator has {_idle(*case):g} too" if i == w else ""
            return f"{said}, but should be {want:g}{exact}{next((f': {text}' for text in known), '')}."
    return None


def _idle(p: int, i: float, w: float, pair: float) -> float:
    """The simulated bubble, for t_f = t_i = t_w."""
    return max(simulate(build("dualpipe", p, 2 * p), Costs(i, i, w, overlap=pair)).idle)


def _always(rule: Formula, cases: Sequence[tuple[Any, ...]], answers: Sequence[Any]) -> bool:
    pairs = zip(cases, answers, strict=True)
    return all(_number(got) and math.isclose(got, rule(*case), abs_tol=1e-9) for case, got in pairs)


# 7.4


SIZES = [(4, 8), (6, 12), (8, 16)]
FINE = 0.011  # the exercise asks for 0.01


@grader("7.4", minutes=8, difficulty=3, limit=60)
def find_the_break_even(break_even: Callable[[int, int], Any]) -> str | None:
    """with a little longer F&B ZB-V is faster, with a little shorter DualPipe is."""
    for p, m in SIZES:
        got, rival = as_numbers(break_even(p, m)), _step("zb-v", p, m)
        said = f"break_even({p}, {m}) is {_text(got)}"
        if not _number(got) or got < 0:
            return f"{said}; return one number, F&B where F + B is 3."
        if got < 1:
            return f"{said}; give F&B in the unit in which F + B is 3, not as a share."
        at, longer = _step("dualpipe", p, m, got), _step("dualpipe", p, m, got + FINE)
        if _step("dualpipe", p, m, max(0.0, got - FINE)) > rival:
            hint = " (at F&B = 3 nothing is hidden)" if got >= 3 else ""
            return f"{said}, where DualPipe takes {at:.6g} and ZB-V {rival:g}: F&B must be shorter{hint}."
        if longer <= rival:
            return f"{said}, but with {got + FINE:.4g} DualPipe still takes only {longer:.6g}, ZB-V {rival:g}."
    return None


def _step(name: str, p: int, m: int, pair: float | None = None) -> float:
    """The makespan if F, I and W of a rank last 1."""
    part = 1.0 if name == "dualpipe" else 0.5
    return simulate(build(name, p, m), Costs(part, part, part, overlap=pair)).makespan


def _whole(value: Any) -> bool:
    return isinstance(value, Real) and not isinstance(value, bool) and value % 1 == 0


def _number(value: Any) -> bool:
    return isinstance(value, Real) and not isinstance(value, bool) and math.isfinite(value)


def _text(value: Any) -> str:
    return f"{float(value):.6g}" if _number(value) else f"{value!r:.80}"
