"""1F1B: as soon as a microbatch has come back, each forward is followed by a backward."""

from ppcourse.schedules.action import Action, Op
from ppcourse.schedules.placement import loop
from ppcourse.schedules.schedule import Schedule


def one_f_one_b(p: int, m: int) -> Schedule:
    """Narayanan et al. 2019 (PipeDream), §3.3 of the 2018 preprint; with a flush, Narayanan et al. 2021, §2.2.

    p  ranks          p = 3, m = 4     rank 0: F F F . . B F B . B . B
    m  microbatches                    rank 1: . F F . B F B F B . B .
    r  rank                            rank 2: . . F B F B F B F B . .
    i  microbatch
    w  warm-up: forwards before the first backward; the last rank needs none, each rank before it one more
    """
    rows = []
    for r in range(p):
        w = min(m, p - 1 - r)
        row = [Action(r, Op.F, i) for i in range(w)]
        for i in range(m - w):
            row += [Action(r, Op.F, w + i), Action(r, Op.B, i)]
        row += [Action(r, Op.B, i) for i in range(m - w, m)]
        rows.append(tuple(row))
    return Schedule("1f1b", loop(p), m, tuple(rows))
