"""Lesson 05, interleave: who holds what, the order, messages and memory, the hop on which it loses."""

import math
from collections.abc import Callable, Sequence
from itertools import starmap
from numbers import Integral, Real
from typing import Any, TypeAlias

from ppcourse.analysis.in_flight import in_flight
from ppcourse.analysis.simulate import simulate
from ppcourse.lab.gantt_text import gantt_text
from ppcourse.lab.graders import grader
from ppcourse.lab.graders.numbers import as_numbers
from ppcourse.lab.graders.rows import read_row
from ppcourse.schedules import build
from ppcourse.schedules.action import Action, Op
from ppcourse.schedules.channels import channels
from ppcourse.schedules.costs import Costs
from ppcourse.schedules.placement import loop, vee
from ppcourse.schedules.schedule import Schedule
from ppcourse.schedules.validate import validate

Order: TypeAlias = Callable[[int, int, int, int], Any]
Formula: TypeAlias = Callable[[int, int, int], float]

DEALS = [(1, 2, 4), (2, 1, 4), (2, 2, 4), (2, 2, 8), (3, 2, 24), (4, 3, 48)]  # p, v, layers
COUNTS = [(2, 2, 1), (2, 2, 2), (2, 4, 2), (2, 6, 2), (2, 4, 3), (3, 3, 2), (3, 6, 3), (4, 8, 2), (4, 12, 4), (1, 2, 2)]
PRICES = [(3, 6, 2), (3, 9, 2), (2, 4, 2), (4, 8, 2), (4, 8, 4), (8, 32, 4)]
RACES = [(2, 2, 2), (2, 4, 2), (3, 6, 3), (4, 8, 2), (4, 8, 4)]
CLOSE = 0.011  # t_f; the exercise asks for 0.01
EXAMPLE = '["0F0", "2F0"]'


# 5.1


@grader("5.1", minutes=5, difficulty=1)
def deal_the_layers(layers_of: Callable[[int, int, int, int], Any]) -> str | None:
    """every rank's layers are those of its stages, and each layer lives on one rank."""
    for p, v, num_layers in DEALS:
        for rank in range(p):
            given, want = as_numbers(layers_of(rank, p, v, num_layers)), _layers(rank, p, v, num_layers)
            said = f"layers_of({rank}, {p}, {v}, {num_layers})"
            if not isinstance(given, list | tuple | range | set) or not all(isinstance(n, Integral) for n in given):
                return f"{said} returns {given!r:.60}; return a list of layer numbers, as in [1, 2]."
            got = sorted(given) if isinstance(given, set) else list(given)
            if got != want:
                why = _why_not_dealt(got, rank, p, v, num_layers)
                return f"{said} is {got!r:.80}, but should be {want!r:.80}{why}."
    return None


def _layers(rank: int, p: int, v: int, num_layers: int) -> list[int]:
    return [n for stage in loop(p, v).stages_of(rank) for n in _layers_in(stage, p, v, num_layers)]


def _layers_in(stage: int, p: int, v: int, num_layers: int) -> range:
    each = num_layers // (p * v)
    return range(stage * each + 1, (stage + 1) * each + 1)


def _why_not_dealt(got: list[int], rank: int, p: int, v: int, num_layers: int) -> str:
    want = _layers(rank, p, v, num_layers)
    if got == [n - 1 for n in want]:
        return ": layers are numbered from 1"
    if any(not 1 <= n <= num_layers for n in got):
        return f": there are layers 1 to {num_layers}"
    if v > 1 and got == _layers(rank, p, 1, num_layers):
        return ": that is one block; a rank's chunks are p stages apart, so that a microbatch comes round"
    if got == [n for n in range(1, num_layers + 1) if (n - 1) % p == rank]:
        return f": you deal single layers; here a stage has {num_layers // (p * v)}"
    if sorted(got) == want:
        return ": in the order of the model"
    if v > 1 and got == want[: len(want) // v]:
        return f": that is chunk 0 only, and a rank holds {v}"
    if v == 2 and got == [n for stage in vee(p).stages_of(rank) for n in _layers_in(stage, p, v, num_layers)]:
        return ": that turns at the last rank, as the V of lesson 07; here every round begins at rank 0"
    return ""


# 5.2


@grader("5.2", minutes=15, difficulty=3)
def build_interleaved_1f1b(order: Order) -> str | None:
    """interleaved 1F1B on every rank, for up to 4 ranks, 12 microbatches and 4 chunks."""
    for p, m, v in COUNTS:
        want = build("interleaved", p=p, m=m, v=v).rows
        for rank in range(p):
            given, said = order(rank, p, m, v), f"order({rank}, {p}, {m}, {v})"
            row = read_row(given, EXAMPLE)
            if isinstance(row, str):
                return f"{said} {row}"
            if wrong := _unfit(row, want[rank], m) or _misplaced(row, want[rank], p):
                return f"{said} {wrong}\nyours: {' '.join(map(str, row)) or 'nothing'}{_picture(order, p, m, v)}"
    return None


def _unfit(row: Sequence[Action], want: Sequence[Action], m: int) -> str | None:
    """Work that is not this rank's, that is there twice, or that is not there."""
    stages = sorted({action.stage for action in want})
    held = f"stage{'s' * (len(stages) > 1)} {' and '.join(map(str, stages))}"
    for n, action in enumerate(row):
        if action.stage not in stages:
            return f"names {action}, but this rank holds {held}: chunk c of rank r is stage c·p + r."
        if action.op not in (Op.F, Op.B):
            return f"names {action}, but here a backward is one action, B."
        if action.microbatch >= m:
            return f"names {action}, but m is {m}: the last microbatch is {m - 1}."
        if action in row[:n]:
            return f"runs {action} twice."
    lost = [action for action in want if action not in row]
    return f"never runs {lost[0]}." if lost else None


def _misplaced(row: Sequence[Action], want: Sequence[Action], p: int) -> str | None:
    """All the work, in an order that is not that of interleaved 1F1B."""
    if row == want:
        return None
    downs, backs = ([a for a in want if a.op is op] for op in (Op.F, Op.B))
    for mine, due in zip((a for a in row if a.op is Op.F), downs, strict=True):
        if mine != due:
            next_ = "the next chunk has its turn" if due.stage > mine.stage else "chunk after chunk goes on"
            return f"runs {mine} where {due} is due: after {p} microbatches {next_}."
    for mine, due in zip((a for a in row if a.op is Op.B), backs, strict=True):
        if mine != due:
            last = ": gradients come to the last chunk first" if mine.stage < due.stage else f": groups of {p} again"
            return f"runs {mine} where {due} is due{last}."
    before, due_before = _first_backward(row), _first_backward(want)
    if before != due_before:
        plural = "s" * (before != 1)
        return f"runs {before} forward{plural} before its first backward; it should be {due_before}."
    here = next(n for n, pair in enumerate(zip(row, want, strict=True)) if pair[0] != pair[1])
    return f"has {row[here]} at position {here}, where {want[here]} is due."


def _first_backward(row: Sequence[Action]) -> int:
    return next(n for n, action in enumerate(row) if action.op is Op.B)


def _picture(order: Order, p: int, m: int, v: int) -> str:
    """What the whole plan would do; nothing if it is not even a plan."""
    want = build("interleaved", p=p, m=m, v=v).rows
    rows = [read_row(order(rank, p, m, v), EXAMPLE) for rank in range(p)]
    if any(isinstance(row, str) or _unfit(row, want[rank], m) for rank, row in enumerate(rows)):
        return ""
    plan = Schedule.from_rows(rows, name="yours")
    broken = validate(plan)
    return "\n" + (broken[0].message if broken else gantt_text(simulate(plan, Costs(1, 0.5, 0.5))))


# 5.3


@grader("5.3", minutes=6, difficulty=2)
def price_of_interleaving(price: Callable[[int, int, int], Any]) -> str | None:
    """the messages of the plan and what it holds, for six sizes."""
    answers = [as_numbers(price(*case)) for case in PRICES]
    for case, got in zip(PRICES, answers, strict=True):
        if not (isinstance(got, tuple | list) and len(got) == 2 and all(map(_number, got))):
            return f"price{case} returns {got!r:.60}; return two numbers, messages and microbatches held."
    for (p, m, v), got in zip(PRICES, answers, strict=True):
        said = f"price({p}, {m}, {v})"
        plan = build("interleaved", p=p, m=m, v=v)
        messages, held = sum(len(traffic.sent) for traffic in channels(plan).values()), in_flight(plan)[0]
        if not math.isclose(got[0], messages):
            why = _known(OTHER_MESSAGES, [answer[0] for answer in answers])
            return f"{said} says {float(got[0]):g} messages, but the plan has {messages}{why}."
        if not math.isclose(got[1], held):
            why = _known(OTHER_HELD, [answer[1] for answer in answers])
            return f"{said} says that rank 0 holds {float(got[1]):g}, but it holds {held:g}{why}."
    return None


OTHER_MESSAGES: dict[str, Formula] = {
    "every activation has a gradient that comes back": lambda p, m, v: (p * v - 1) * m,
    "that is for one microbatch": lambda p, m, v: 2 * (p * v - 1),
    "from the last rank back to the first there are messages, too": lambda p, m, v: 2 * v * (p - 1) * m,
    "that is 1F1B; with v stages a rank there are p·v − 1 cuts": lambda p, m, v: 2 * (p - 1) * m,
    "between p·v stages there are p·v − 1 cuts": lambda p, m, v: 2 * p * v * m,
    "a message is as large as before, however short the stage": lambda p, m, v: 2 * (p * v - 1) * m / v,
}
OTHER_HELD: dict[str, Formula] = {
    "these are chunks, and a chunk is 1/v of a microbatch": lambda p, m, v: p * v + p - 1,
    "add the forward between the warm-up and the first backward": lambda p, m, v: p + (p - 2) / v,
    "that is how many times as much as 1F1B, which holds p": lambda p, m, v: 1 + (p - 1) / (p * v),
    "1 + (p − 1)/(p·v) is a factor: it is p times that": lambda p, m, v: p + (p - 1) / (p * v),
    "that is 1F1B": lambda p, m, v: p,
    "that is GPipe, or breadth-first": lambda p, m, v: m,
    "that is v times 1F1B, but most chunks are on their way back again": lambda p, m, v: p * v,
    "a chunk is 1/v of a microbatch, so that need not be a whole number": lambda p, m, v: (p * v + p - 1) // v,
}


def _known(rules: dict[str, Formula], column: Sequence[float]) -> str:
    """What all answers are, as the end of a sentence; "" if nothing that is known here."""
    same = (why for why, rule in rules.items() if all(map(math.isclose, column, starmap(rule, PRICES))))
    return next((f": {why}" for why in same), "")


# 5.4


@grader("5.4", minutes=8, difficulty=2, limit=30)
def find_the_crossing(crossing: Callable[[int, int, int], Any]) -> str | None:
    """a hundredth of t_f below it interleaving is not slower, a hundredth above it is."""
    for p, m, v in RACES:
        got, said = crossing(p, m, v), f"crossing({p}, {m}, {v})"
        if not _number(got) or got < 0:
            return f"{said} returns {got!r:.60}; return a hop in t_f, a number of at least 0."
        low, high = max(0.0, float(got) - CLOSE), float(got) + CLOSE
        for hop, wins in ((low, True), (high, False)):
            plain, interleaved = _times(p, m, v, hop)
            if wins is not (interleaved <= plain * (1 + 1e-12)):
                verb = "loses" if wins else "wins"
                why = _why_not_there(float(got), p, m, v)
                times = f"{interleaved:.4g} against {plain:.4g}"
                return f"{said} is {float(got):.4g}, but at a hop of {hop:.4g} interleaving {verb}: {times}{why}."
    return None


def _times(p: int, m: int, v: int, hop: float, share: float = 1.0) -> tuple[float, float]:
    """The steps of 1F1B and of interleaved 1F1B; `share`: how long an F of the latter is, times v."""
    each = share / v
    plain = simulate(build("1f1b", p=p, m=m), Costs(comm=hop))
    return plain.makespan, simulate(build("interleaved", p=p, m=m, v=v), Costs(each, each, each, comm=hop)).makespan


def _why_not_there(got: float, p: int, m: int, v: int) -> str:
    """A crossing of something else."""
    free = _times(p, m, v, 0.0)[0]
    if got <= CLOSE:
        return "; a stage is only 1/v of a rank's layers"
    if abs(_bisect(lambda hop: _times(p, m, v, hop)[1] <= free) - got) <= CLOSE:
        return "; 1F1B has to wait for its hops, too"
    if abs(_bisect(lambda hop: _times(p, m, v, hop)[1] <= _times(p, m, v, hop)[0]) * v - got) <= CLOSE:
        return "; in t_f of the whole rank, not of a chunk"
    return ""


def _bisect(below: Callable[[float], bool]) -> float:
    low, high = 0.0, 100.0
    for _ in range(20):
        middle = (low + high) / 2
        low, high = (middle, high) if below(middle) else (low, middle)
    return low


def _number(value: Any) -> bool:
    return isinstance(value, Real) and not isinstance(value, bool) and math.isfinite(value)
