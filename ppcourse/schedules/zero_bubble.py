"""ZB-H1 and ZB-H2: the backward split in two, and weight gradients put where 1F1B would wait.

Only I is on the way of a gradient to the rank before. W needs nothing from other ranks and nobody waits for it:
it can fill the slots in which 1F1B has nothing to do.
"""

from ppcourse.schedules.action import Action, Op
from ppcourse.schedules.placement import loop
from ppcourse.schedules.schedule import Schedule


def zb_h1(p: int, m: int) -> Schedule:
    """1F1B's warm-up, so at most p microbatches on a rank; a third of 1F1B's bubble if F = I = W and m >= p.

        p = 3, m = 6     rank 0: F F F . . I W F I W F I W F I W I W I W     drawn with F = I = W
                         rank 1: . F F . I F I W F I W F I W F I W I W W
                         rank 2: . . F I F I F I W F I W F I W F I W W W

    Qi et al. 2024 (Zero Bubble, arXiv 2401.10241), §2.
    """
    return _zero_bubble("zb-h1", p, m, 1)


def zb_h2(p: int, m: int) -> Schedule:
    """Twice the warm-up: no idle slot between a rank's first action and its last if F = I = W and m >= 2p - 1.

        p = 3, m = 6     rank 0: F F F F F I W F I W I W I W I W I W . .     drawn with F = I = W
                         rank 1: . F F F I F I F I W F I W I W I W W W .
                         rank 2: . . F I F I F I F I F I W F I W W W W W

    It holds up to 2p - 1 microbatches. The makespan is then that of ZB-H1; what falls is the longest stage time, for
    ranks now start and end one after the other. Qi et al. 2024 (Zero Bubble, arXiv 2401.10241), §2.
    """
    return _zero_bubble("zb-h2", p, m, 2)


def _zero_bubble(name: str, p: int, m: int, deep: int) -> Schedule:
    """p  ranks           w     warm-up: deep forwards for each rank that comes after
    m  microbatches    held  microbatches whose W is put off, (p - 1) · deep on every rank: where the warm-up is
    r  rank                  short, W is put off for longer
    i  microbatch
    """
    rows = []
    for r in range(p):
        w, held = (p - 1 - r) * deep, (p - 1) * deep
        row = [Action(r, Op.F, i) for i in range(min(w, m))]
        for i in range(m):
            row += [Action(r, Op.F, w + i)] if w + i < m else []
            row.append(Action(r, Op.I, i))
            row += [Action(r, Op.W, w + i - held)] if w + i >= held else []
        row += [Action(r, Op.W, i) for i in range(max(0, m + w - held), m)]
        rows.append(tuple(row))
    return Schedule(name, loop(p), m, tuple(rows))
