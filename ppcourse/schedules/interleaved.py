"""Interleaved 1F1B: each rank holds v stages, so a microbatch comes round v times and the bubble is 1/v as long."""

from itertools import chain

from ppcourse.schedules.action import Op
from ppcourse.schedules.bulk import lane
from ppcourse.schedules.placement import loop
from ppcourse.schedules.schedule import Schedule


def interleaved(p: int, m: int, v: int = 2) -> Schedule:
    """Narayanan et al. 2021, §2.2. Depth first: p microbatches pass through a chunk, then through the next one.

    p  ranks          p = 2, v = 2, m = 4     rank 0: 0F0 0F1 2F0 2F1 0F2 2B0 0F3 2B1 2F2 0B0 2F3 0B1 2B2 2B3 0B2 0B3
    m  microbatches                           rank 1: 1F0 1F1 3F0 3B0 3F1 3B1 1F2 1B0 1F3 1B1 3F2 3B2 3F3 3B3 1B2 1B3
    v  chunks, stages a rank
    r  rank
    g  groups of p microbatches; in each, forwards go chunk after chunk, backwards the last chunk first
    w  warm-up: forwards before F and B take turns. The last rank does all its chunks but one, for p microbatches;
       each rank before it needs two more than the next one, one for the way down and one for the way back

    Any m: if it is no multiple of p, this is the plan for the next multiple, without the microbatches that are
    not there. That is legal, since an action needs only actions of its own microbatch, and in the same order.
    """
    whole = p * -(-m // p)
    groups = range(0, whole, p)  # by the first microbatch of each
    rows = []
    for r in range(p):
        w = min(v * whole, 2 * (p - 1 - r) + (v - 1) * p)
        forwards, backwards = ([lane(c * p + r, op, whole) for c in range(v)] for op in (Op.F, Op.B))
        down = list(chain.from_iterable(forwards[c][g : g + p] for g in groups for c in range(v)))
        back = list(chain.from_iterable(backwards[c][g : g + p] for g in groups for c in reversed(range(v))))
        row = down + back
        end = len(row) - w  # from w to here forwards and backwards take turns
        row[w:end:2], row[w + 1 : end : 2] = down[w:], back[: len(down) - w]
        rows.append(tuple(row if m == whole else [action for action in row if action.microbatch < m]))
    return Schedule("interleaved", loop(p, v), m, tuple(rows))
