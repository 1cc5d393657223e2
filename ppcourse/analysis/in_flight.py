"""How much activation memory a plan makes each rank hold, counted in microbatches."""

from itertools import accumulate

from ppcourse.schedules.action import Op
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
