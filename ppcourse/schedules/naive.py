"""Naive: one microbatch at a time, so that one rank works while the others wait."""

from ppcourse.schedules.action import Action, Op
from ppcourse.schedules.placement import loop
from ppcourse.schedules.schedule import Schedule


def naive(p: int, m: int) -> Schedule:
    """Each microbatch goes all the way down and back before the next one starts.

    p  ranks          p = 3, m = 1     rank 0: F . . . . B     drawn with F = B
    m  microbatches                    rank 1: . F . . B .
    r  rank                            rank 2: . . F B . .
    i  microbatch
    """
    rows = []
    for r in range(p):
        row = []
        for i in range(m):
            row += [Action(r, Op.F, i), Action(r, Op.B, i)]
        rows.append(tuple(row))
    return Schedule("naive", loop(p), m, tuple(rows))
