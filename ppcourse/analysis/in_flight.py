"""How much activation memory a plan makes each rank hold, counted in microbatches or in bytes."""

from itertools import accumulate

from ppcourse.schedules.action import Op
from ppcourse.schedules.costs import PerStage, per_stage
from ppcourse.schedules.schedule import Schedule


def in_flight(plan: Schedule, kept_for_w: float = 1.0) -> tuple[float, ...]:
    """For each rank, the most it ever holds, in microbatches of one rank's full activation.

    F adds p ÷ num_stages of it, its stage's share; B gives all of that back; I gives back all but
    `kept_for_w` of it (measured, that share may exceed 1: output gradients are kept too), and W the rest.

    Raises ValueError if `kept_for_w` is negative.
    """
    if not kept_for_w >= 0:
        raise ValueError(f"kept_for_w is {kept_for_w}; it must be a share of at least 0 (1.0: I frees nothing).")
    share = plan.num_ranks / plan.num_stages
    change = {Op.F: 1.0, Op.B: -1.0, Op.I: kept_for_w - 1, Op.W: -kept_for_w}
    held = (accumulate((change[action.op] for action in row), initial=0.0) for row in plan.rows)
    return tuple(share * max(row) for row in held)


def in_flight_bytes(plan: Schedule, stashed: PerStage, kept_for_w: PerStage = 0.0) -> tuple[float, ...]:
    """For each rank, the most it ever holds at the end of an action, in bytes.

    stashed      what F of a stage keeps for one microbatch, in bytes; one number, or one a stage
    kept_for_w   what is left of it after I, until W (more than `stashed` is possible, as output gradients are
                 kept too)

    The actions on either side of a peak may hold more while they run: that is for a measurement.
    Raises ValueError for sizes of another number of stages, or that are negative.
    """
    kept = per_stage("stashed", stashed, plan.num_stages), per_stage("kept_for_w", kept_for_w, plan.num_stages)
    change = {
        Op.F: kept[0],
        Op.B: [-size for size in kept[0]],
        Op.I: [after - before for before, after in zip(*kept, strict=True)],
        Op.W: [-size for size in kept[1]],
    }
    held = (accumulate((change[op][stage] for stage, op, _ in row), initial=0.0) for row in plan.rows)
    return tuple(max(row) for row in held)
