"""V-Half: a block on a V that keeps its chunks for so long that a rank holds half of what 1F1B holds."""

from ppcourse.schedules.schedule import Schedule
from ppcourse.schedules.v_shape import lay_block, repeat_block


def v_half(p: int, m: int) -> Schedule:
    """Qi et al. 2024 (Pipeline Parallelism with Controllable Memory, arXiv 2405.15362).

    p  ranks          A microbatch moves on in every unit on its way down, in every second on its way up: down
    m  microbatches   and up twice takes 6p units. So a rank holds 6p ÷ 6 chunks, about p ÷ 2 microbatches:
                      never more than (p + 2) // 2.

    Rank r has its I0 3 (2p - 1 - r) units after its F0: on every second rank that is F0's own slot, so the
    block must be delayed by a unit or more. Where p is even the last rank is one of them; then it is better to
    be delayed early, at both turns of the way up (found by trying: 2 units less bubble).
    """
    block = lay_block(p, hops=(1, 2, 1, 2), turns=(1, 1, 1) if p % 2 else (3, 2, 1))
    return repeat_block("v-half", block, m, cap=2 * ((p + 2) // 2), in_order=False)
