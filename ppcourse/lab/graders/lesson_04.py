"""Lesson 04, compare GPipe and 1F1B: its order, what it holds, what makes it deadlock, recomputation."""

import math
from collections.abc import Callable, Iterable, Sequence
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
from ppcourse.schedules.costs import Costs
from ppcourse.schedules.schedule import Schedule
from ppcourse.schedules.validate import validate

Order: TypeAlias = Callable[[int, int, int], Any]

SMALL = sorted(((p, m) for p in range(2, 7) for m in range(1, 9)), key=lambda pm: (sum(pm), pm))
COUNTS = [*SMALL, (1, 1), (1, 3)]  # one rank last: nothing is wrong there that is not seen better with two
STEPS = [(1, 1, 1, 2, 1, 10), (1, 3, 1, 2, 1, 10), (2, 1, 1, 2, 1, 10), (2, 3, 5, 7, 2, 9), (4, 8, 1, 2, 0.25, 4.5)]


# 4.1


@grader("4.1", minutes=12, difficulty=2)
def build_1f1b(order: Order) -> str | None:
    """1F1B on every rank, for p and m up to 8, with fewer microbatches than ranks too."""
    for p, m in [*COUNTS, (8, 3), (8, 8)]:
        want = build("1f1b", p=p, m=m).rows
        for rank in range(p):
            given = order(rank, p, m)
            said = f"order({rank}, {p}, {m})"
            row = _read(given, m)
            if isinstance(row, str):
                return f"{said} {row}"
            wrong = _unfit(row, rank, m) or _misplaced(row, want[rank])
            if wrong:
                return f"{said} {wrong}\nyours: {' '.join(map(str, row)) or 'nothing'}{_picture(order, p, m)}"
    return None


def _read(given: Any, m: int) -> tuple[Action, ...] | str:
    """The row that an answer stands for, or what is wrong with it."""
    negative = f", but microbatches begin at 0. With m = {m}, how many can the warm-up take?"
    return read_row(given, '["0F0", "0B0"]', negative)


def _unfit(row: Sequence[Action], rank: int, m: int) -> str | None:
    """Work that is not this rank's, that is there twice, or that is not there."""
    work = {Action(rank, op, i) for op in (Op.F, Op.B) for i in range(m)}
    for n, action in enumerate(row):
        if action.stage != rank:
            return f"names {action}, but rank {rank} holds stage {rank} only."
        if action.op not in (Op.F, Op.B):
            return f"names {action}, but here a backward is one action, B."
        if action.microbatch >= m:
            last = "there is only microbatch 0" if m == 1 else f"the last microbatch is {m - 1}"
            return f"names {action}, but m is {m}: {last}."
        if action in row[:n]:
            return f"runs {action} twice."
    lost = sorted(work - set(row), key=lambda action: (action.op is Op.B, action.microbatch))
    if not lost:
        return None
    drains = "; the cool-down runs the backwards that are left" if lost[0].op is Op.B else ""
    return f"never runs {lost[0]}{drains}."


def _misplaced(row: Sequence[Action], want: Sequence[Action]) -> str | None:
    """All the work, in an order that is not 1F1B's."""
    if row == want:
        return None
    for n, action in enumerate(row):
        if action.op is Op.B and action._replace(op=Op.F) not in row[:n]:
            return f"runs {action} before {action._replace(op=Op.F)}, whose activations it needs."
    before, due = _first_backward(row), _first_backward(want)
    if before != due:
        plural = "s" * (before != 1)
        return f"runs {before} forward{plural} before its first backward; it should be {due}."
    here = next(n for n, pair in enumerate(zip(row, want, strict=True)) if pair[0] != pair[1])
    return f"has {row[here]} at position {here}, where 1F1B has {want[here]}."


def _first_backward(row: Sequence[Action]) -> int:
    return next(n for n, action in enumerate(row) if action.op is Op.B)


def _picture(order: Order, p: int, m: int) -> str:
    """What the whole plan would do; nothing if it is not even a plan."""
    rows = [_read(order(rank, p, m), m) for rank in range(p)]
    if any(isinstance(row, str) or _unfit(row, rank, m) for rank, row in enumerate(rows)):
        return ""
    return "\n" + _shown(Schedule.from_rows(rows, name="yours"))


def _shown(plan: Schedule) -> str:
    """The plan's Gantt chart in letters, in slots, or the sentence that says why it stops."""
    broken = validate(plan)
    return broken[0].message if broken else gantt_text(simulate(plan, Costs(1, 0.5, 0.5)))


# 4.2


@grader("4.2", minutes=4, difficulty=1)
def most_held(answer: Callable[[int, int, int], Any]) -> str | None:
    """what the simulated plans hold, for every rank and p and m up to 8."""
    cases = [(rank, p, m) for p, m in [*COUNTS, (8, 3), (8, 8)] for rank in range(p)]
    answers = [as_numbers(answer(*case)) for case in cases]
    known = [why for why, rule in OTHER_PEAKS.items() if answers == [rule(*case) for case in cases]]
    for (rank, p, m), got in zip(cases, answers, strict=True):
        plan = build("1f1b", p=p, m=m)
        most, said = in_flight(plan)[rank], f"most_held({rank}, {p}, {m})"
        if not _number(got):
            return f"{said} returns {got!r:.60}; return a number of microbatches."
        if got != most:
            only = [f"there {'is' if m == 1 else 'are'} only {m}"] if got > m else []
            why = "".join(f": {one}" for one in (known or only)[:1])
            picture = _counted(plan.rows[rank])
            return f"{said} is {float(got):g}, but rank {rank} holds {most:g}{why}.\n{picture}"
    return None


OTHER_PEAKS: dict[str, Callable[[int, int, int], int]] = {
    "there are no more microbatches than m": lambda rank, p, m: p - rank,
    "add the forward before the first backward to the warm-up": lambda rank, p, m: min(m, p - 1 - rank),
    "that is GPipe, which holds all": lambda rank, p, m: m,
    "that is rank 0; later ranks have a shorter warm-up": lambda rank, p, m: min(m, p),
    "that grows from rank to rank, but the first one holds most": lambda rank, p, m: min(m, rank + 1),
    "m limits each rank, min(m, p − rank), and not p alone": lambda rank, p, m: min(m, p) - rank,
}


def _counted(row: Sequence[Action]) -> str:
    """A row, and below it what is held after each action."""
    held, counts = 0, []
    for action in row:
        held += 1 if action.op is Op.F else -1
        counts.append(held)
    cells = [str(action) for action in row]
    width = max(map(len, cells))
    return (
        f"runs   {' '.join(cell.rjust(width) for cell in cells)}\n"
        f"holds  {' '.join(str(count).rjust(width) for count in counts)}"
    )


# 4.3


@grader("4.3", minutes=6, difficulty=2)
def make_it_deadlock(warm_ups: Any) -> str | None:
    """a deadlock: every rank waits for another one, and none of them breaks a rule of its own."""
    warm_ups = as_numbers(warm_ups)
    if not isinstance(warm_ups, list | tuple) or len(warm_ups) != 4:
        return f"{warm_ups!r:.60} is not four warm-ups, one a rank, as in [3, 2, 1, 0]."
    wrong = [w for w in warm_ups if not (isinstance(w, Integral) and int(w) in range(8)) or isinstance(w, bool)]
    if wrong:
        return f"{wrong[0]!r:.60} is no warm-up: it is a whole number of forwards, from 0 to 7."
    plan = Schedule.from_rows(list(_rows(warm_ups, m=8)), name=f"warm-ups {list(warm_ups)}")
    if validate(plan):
        return None
    held = f"{in_flight(plan)[0]:g} microbatch{'es' * (in_flight(plan)[0] != 1)}"
    known = {(3, 2, 1, 0): ", being 1F1B", (7, 7, 7, 7): ", being GPipe", (0, 0, 0, 0): ", though slowly"}
    return f"{list(warm_ups)} runs{known.get(tuple(warm_ups), '')}; rank 0 holds {held}.\n{_shown(plan)}"


def _rows(warm_ups: Iterable[int], m: int) -> Iterable[list[Action]]:
    for r, w in enumerate(warm_ups):
        row = [Action(r, Op.F, i) for i in range(w)]
        for i in range(w, m):
            row += [Action(r, Op.F, i), Action(r, Op.B, i - w)]
        yield row + [Action(r, Op.B, i) for i in range(m - w, m)]


# 4.4


@grader("4.4", minutes=6, difficulty=2)
def recompute(answer: Callable[..., Any]) -> str | None:
    """the simulator's time and the most that is there at once, for five sets of numbers."""
    for case in STEPS:
        got, said = as_numbers(answer(*case)), f"recomputed({', '.join(map(str, case))})"
        if not (isinstance(got, tuple | list) and len(got) == 2 and all(map(_number, got))):
            return f"{said} returns {got!r:.60}; return two numbers, time and memory."
        time, memory = _simulated(*case)
        if not math.isclose(got[0], time, rel_tol=1e-9):
            why = _why_not_time(got[0], *case)
            return f"{said} says that the step lasts {float(got[0]):g}, but it lasts {time:g}{why}."
        if not math.isclose(got[1], memory, rel_tol=1e-9):
            why = _why_not_memory(got[1], *case)
            return f"{said} says that a rank holds {float(got[1]):g} at most, but it holds {memory:g}{why}."
    return None


def _simulated(p: int, m: int, t_f: float, t_b: float, kept: float, full: float) -> tuple[float, float]:
    """The simulator's time, F being part of B, and the most that is there while rank 0 goes through its row."""
    plan = build("gpipe", p=p, m=m)
    now = most = 0.0
    for action in plan.rows[0]:
        now += kept if action.op is Op.F else full - kept
        most = max(most, now)
        now -= 0 if action.op is Op.F else full
    return simulate(plan, Costs(forward=t_f, input_grad=t_f + t_b, weight_grad=0)).makespan, most


def _why_not_time(got: float, p: int, m: int, t_f: float, t_b: float, kept: float, full: float) -> str:
    slots = m + p - 1
    if math.isclose(got, slots * (t_f + t_b)):
        return ": each B now begins with another F"
    if math.isclose(got, 2 * slots * (t_f + t_b)):
        return ": the forward is repeated, the backward is not"
    if math.isclose(got, (m - 1) * kept + full):
        return ": give the time first, then the memory"
    if math.isclose(got, slots * (t_f + t_b) + m * t_f):
        return ": the ranks that wait for these longer backwards become later, too"
    return ""


def _why_not_memory(got: float, p: int, m: int, t_f: float, t_b: float, kept: float, full: float) -> str:
    if math.isclose(got, m * full):
        return ": that would be GPipe without recomputation"
    if math.isclose(got, m * kept):
        return ": that is right between actions, but during a B one microbatch is there in full"
    if math.isclose(got, m * kept + full):
        return ": the microbatch that is there in full has its input in `full` already"
    if math.isclose(got, (min(p, m) - 1) * kept + full):
        return ": that is 1F1B; in GPipe the inputs of all m microbatches are there"
    if math.isclose(got, kept + full):
        return ": every microbatch whose B is still to come has its input there"
    return ""


def _number(value: Any) -> bool:
    return isinstance(value, Real) and not isinstance(value, bool)
