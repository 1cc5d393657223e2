"""What is left of a plan for fewer microbatches."""

from ppcourse.schedules.schedule import Schedule


def fewer(plan: Schedule, m: int) -> Schedule:
    """The plan without the actions of the microbatches from `m` on; each of the others runs where and when it did.

    A legal plan stays legal: what an action needs is of its own microbatch, and with others out of its way nobody waits
    longer. Of an overlapped pair that loses one, the other runs alone.
    """
    kept = [[position for position, action in enumerate(row) if action.microbatch < m] for row in plan.rows]
    place = [{old: new for new, old in enumerate(positions)} for positions in kept]
    both = frozenset((rank, place[rank][at]) for rank, at in plan.overlapped if {at, at + 1} <= place[rank].keys())
    rows = tuple(tuple(plan.rows[rank][position] for position in positions) for rank, positions in enumerate(kept))
    return Schedule(plan.name, plan.placement, m, rows, both)
