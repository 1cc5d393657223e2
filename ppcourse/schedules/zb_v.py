"""ZB-V: on a V, with the memory of 1F1B, no rank is idle between its first action and its last."""

from collections import Counter

from ppcourse.schedules.action import Action, Op
from ppcourse.schedules.placement import vee
from ppcourse.schedules.schedule import Schedule


def zb_v(p: int, m: int) -> Schedule:
    """Qi et al. 2024 (Zero Bubble Pipeline Parallelism, arXiv 2401.10241), §6.

    No bubble if F, I and W last equally long, hops are free and m is at least 2p - 1; a rank never holds more
    than p microbatches. The order is the same for all costs; its authors' program searches one for given
    costs, and found none that is shorter for the two sets of measured costs that it is published with.

        p = 2, m = 4     rank 0: f0 f0 f0 f1 i1 w1 f1 i1 w1 f0 i0 w0 f1 i1 w1 i0 w0 f1 i1 w1 i0 w0 i0 w0 .
                         rank 1: .  f0 f1 f0 f1 i1 w1 f0 i0 w0 f1 i1 w1 f0 i0 w0 f1 i1 i0 i1 i0 w0 w1 w1 w0

    p, m   ranks, microbatches
    r      rank
    f0     forward of chunk 0, stage r, on the way down; i0 and w0 its backward
    f1     forward of chunk 1, stage 2p - 1 - r, on the way up; i1 and w1 its backward
    n      microbatches of the order as it stands here; those from m on are then left out, and what is left
           is legal, for no microbatch needs another
    """
    n = max(m, 2 * p - 1)
    rows = []
    for r in range(p):
        f0, i0, w0 = ((r, op) for op in (Op.F, Op.I, Op.W))
        f1, i1, w1 = ((2 * p - 1 - r, op) for op in (Op.F, Op.I, Op.W))
        row = [f0] * (2 * (p - r) - 1)  # until the first microbatch is back from the last rank
        row += [f1, f0] * r  # until it is back from rank 0; memory is full from here on
        row += [f1, i1, w1] * (p - r)  # until it is back from the last rank again
        row += [f0, i0, w0, f1, i1, w1] * (n - 2 * p + 1 + r)  # as long as there are new microbatches
        row += [i0, w0, f1, i1, w1] * (p - 1 - r)  # as long as there are forwards
        if r:  # from the last forward on W waits, for other ranks need what I makes; rank 0 has no more of that
            row.pop()
            row += [i0, i1] * r
        row += [i0, w0] * (p - r)
        row += [w1] * (r + 1 if r else 0) + [w0] * r
        rows.append(_numbered(row, m))
    return Schedule("zb-v", vee(p), m, tuple(rows))


def _numbered(row: list[tuple[int, Op]], m: int) -> tuple[Action, ...]:
    """Each stage does each op for microbatch 0 first, then for 1, and so on up to m - 1."""
    seen: Counter[tuple[int, Op]] = Counter()
    actions = []
    for stage, op in row:
        actions.append(Action(stage, op, seen[stage, op]))
        seen[stage, op] += 1
    return tuple(action for action in actions if action.microbatch < m)
