"""GPipe: all forwards, then all backwards."""

from ppcourse.schedules.action import Action, Op
from ppcourse.schedules.placement import loop
from ppcourse.schedules.schedule import Schedule


def gpipe(p: int, m: int) -> Schedule:
    """Huang et al. 2019, §2.3. Backwards run in microbatch order, as in PyTorch (the paper draws them
    reversed; the makespan is the same).

    p  ranks          p = 3, m = 4     rank 0: F F F F . . . . B B B B     drawn with F = B
    m  microbatches                    rank 1: . F F F F . . B B B B .
    r  rank                            rank 2: . . F F F F B B B B . .
    i  microbatch
    """
    rows = []
    for r in range(p):
        row = [Action(r, Op.F, i) for i in range(m)]
        row += [Action(r, Op.B, i) for i in range(m)]
        rows.append(tuple(row))
    return Schedule("gpipe", loop(p), m, tuple(rows))
