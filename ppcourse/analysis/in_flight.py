"""How much activation memory a plan makes each rank hold, counted in microbatches or in bytes."""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from itertools import accumulate

from ppcourse.schedules.action import Action, Op
from ppcourse.schedules.costs import PerStage, is_size, per_stage
from ppcourse.schedules.schedule import Schedule
from ppcourse.schedules.validate import check, demand_schedule

WHOLE = {Op.F: 1, Op.B: -1, Op.I: -1, Op.W: 0}  # how many more microbatches wait for their I or B
REST = {Op.F: 0, Op.B: 0, Op.I: 1, Op.W: -1}  # how many more wait for their W only


def in_flight(plan: Schedule, kept_for_w: float = 1.0) -> tuple[float, ...]:
    """For each rank, the most it ever holds, in microbatches of one rank's full activation.

    F adds p ÷ num_stages of it, its stage's share; B gives all of that back; I gives back all but
    `kept_for_w` of it (measured, that share may exceed 1: output gradients are kept too), and W the rest.

    Raises ValueError if `kept_for_w` is not a number of at least 0.
    """
    demand_schedule(plan)
    if not is_size(kept_for_w):
        raise ValueError(f"kept_for_w is {kept_for_w!r}; it must be a share of at least 0 (1.0: I frees nothing).")
    share = plan.num_ranks / plan.num_stages
    with _told_by_the_rules(plan):
        return tuple(share * _most(row, float(kept_for_w)) for row in plan.rows)


def _most(row: Iterable[Action], kept_for_w: float) -> float:
    """Counted in whole numbers, so that a thousand additions of a share leave no error."""
    ops = [action.op for action in row]
    whole = accumulate((WHOLE[op] for op in ops), initial=0)
    rest = accumulate((REST[op] for op in ops), initial=0)
    return max(held + kept_for_w * left for held, left in zip(whole, rest, strict=True))


def in_flight_bytes(plan: Schedule, stashed: PerStage, kept_for_w: PerStage = 0.0) -> tuple[float, ...]:
    """For each rank, the most it ever holds at the end of an action, in bytes.

    stashed      what F of a stage keeps for one microbatch, in bytes; one number, or one a stage
    kept_for_w   what is left of it after I, until W (more than `stashed` is possible, as output gradients are
                 kept too)

    The actions on either side of a peak may hold more while they run: that is for a measurement.
    Raises ValueError for sizes of another number of stages, or that are negative.
    """
    demand_schedule(plan)
    kept = per_stage("stashed", stashed, plan.num_stages), per_stage("kept_for_w", kept_for_w, plan.num_stages)
    change = {
        Op.F: kept[0],
        Op.B: [-size for size in kept[0]],
        Op.I: [after - before for before, after in zip(*kept, strict=True)],
        Op.W: [-size for size in kept[1]],
    }
    held = (accumulate((change[op][stage] for stage, op, _ in row), initial=0.0) for row in plan.rows)
    with _told_by_the_rules(plan):
        return tuple(max(row) for row in held)


@contextmanager
def _told_by_the_rules(plan: Schedule) -> Iterator[None]:
    """Plans that break a rule are counted too; one with what is no action, or of no stage, is told as `check` does."""
    try:
        yield
    except (AttributeError, IndexError, KeyError, TypeError, ValueError):
        check(plan)
        raise
