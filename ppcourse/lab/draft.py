"""A plan that somebody is writing: what is still to be placed, and whether it can still become a legal one."""

from dataclasses import dataclass

from ppcourse.schedules.action import Action, Op
from ppcourse.schedules.dependencies import Numbering
from ppcourse.schedules.schedule import Schedule
from ppcourse.schedules.validate import Violation, validate


@dataclass(frozen=True)
class Draft:
    """Rows that are begun.

    plan         what is written so far
    whole        the same with all that is missing at the ends of its rows; the plan itself if something is wrong
                 with what is written, wherever it stands
    left         by rank, what is missing
    violations   what no further actions at the ends of the rows can mend
    """

    plan: Schedule
    whole: Schedule
    left: tuple[tuple[Action, ...], ...]
    violations: tuple[Violation, ...]

    @property
    def done(self) -> bool:
        """True for a legal plan with nothing left to place."""
        return not self.violations and not any(self.left)


def draft(plan: Schedule) -> Draft:
    """Look at a plan that is being written: rows with counts and placement, in which much may be missing."""
    left = _left(plan)
    wrong = tuple(violation for violation in validate(plan) if violation.code != "missing")
    if wrong:
        return Draft(plan, plan, left, wrong)
    rows = _completed(plan, left)
    whole = Schedule(plan.name, plan.placement, plan.num_microbatches, rows, plan.overlapped)
    return Draft(plan, whole, left, validate(whole))


def _left(plan: Schedule) -> tuple[tuple[Action, ...], ...]:
    """What nobody runs, by the rank that should: backwards first, each kind in the order of the microbatches."""
    numbering = Numbering(plan.num_stages, plan.num_microbatches)
    stages, m = range(plan.num_stages), range(plan.num_microbatches)
    inside = (action for row in plan.rows for action in row if action.stage in stages and action.microbatch in m)
    made = {number for action in inside for number in numbering.results(action)}
    left: list[list[Action]] = [[] for _ in plan.rows]
    for op in (Op.B, Op.I, Op.W, Op.F):
        for i in m:
            for stage in stages:
                action = Action(stage, op, i)
                results = numbering.results(action)
                if made.isdisjoint(results):  # so a B is asked for where neither I nor W is there
                    made.update(results)
                    left[plan.rank_of(stage, i)].append(action)
    return tuple(map(tuple, left))


def _completed(plan: Schedule, left: tuple[tuple[Action, ...], ...]) -> tuple[tuple[Action, ...], ...]:
    """The rows, each followed by what it lacks, in an order that gets as far as any can.

    A rank at the end of its row runs whatever of `left` it may: that never keeps another from going on.
    """
    numbering = Numbering(plan.num_stages, plan.num_microbatches)
    made: set[int] = set()
    rows, waiting = [list(row) for row in plan.rows], [list(row) for row in left]
    reached = [0] * plan.num_ranks

    def may_start(action: Action) -> bool:
        return made.issuperset(numbering.needs(action))

    going = True
    while going:
        going = False
        for rank, row in enumerate(rows):
            if reached[rank] == len(row):
                ready = next((action for action in waiting[rank] if may_start(action)), None)
                if ready is None:
                    continue
                waiting[rank].remove(ready)
                row.append(ready)
            if may_start(row[reached[rank]]):
                made.update(numbering.results(row[reached[rank]]))
                reached[rank] += 1
                going = True
    return tuple((*row, *rest) for row, rest in zip(rows, waiting, strict=True))
