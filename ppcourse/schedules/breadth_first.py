"""Breadth-first: GPipe with v stages a rank; all microbatches pass through a chunk before the next chunk begins."""

from ppcourse.schedules.action import Action, Op
from ppcourse.schedules.placement import loop
from ppcourse.schedules.schedule import Schedule


def breadth_first(p: int, m: int, v: int = 2) -> Schedule:
    """Lamy-Poirier 2023 (Breadth-First Pipeline Parallelism). It holds all m microbatches of every chunk; in
    return a chunk's weights are needed, and its gradients ready, in one stretch, which suits sharded weights.

    p  ranks          p = 2, v = 2, m = 2     rank 0: 0F0 0F1 2F0 2F1 2B0 2B1 0B0 0B1
    m  microbatches                           rank 1: 1F0 1F1 3F0 3F1 3B0 3B1 1B0 1B1
    v  chunks, stages a rank
    r  rank
    i  microbatch
    """
    rows = []
    for r in range(p):
        row = [Action(chunk * p + r, Op.F, i) for chunk in range(v) for i in range(m)]
        row += [Action(chunk * p + r, Op.B, i) for chunk in reversed(range(v)) for i in range(m)]
        rows.append(tuple(row))
    return Schedule("breadth-first", loop(p, v), m, tuple(rows))
