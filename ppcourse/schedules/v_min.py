"""V-Min: the shortest block on a V, for the least memory: about a third of what 1F1B holds."""

from ppcourse.schedules.schedule import Schedule
from ppcourse.schedules.v_shape import lay_block, repeat_block


def v_min(p: int, m: int) -> Schedule:
    """Qi et al. 2024 (Pipeline Parallelism with Controllable Memory, arXiv 2405.15362).

    p  ranks          A microbatch moves on in every unit: down and up twice takes 4p units. So a rank holds
    m  microbatches   4p ÷ 6 chunks, about p ÷ 3 microbatches: never more than (p + 4) // 3.

    Every rank has its I1 2p units after its F0, and its I0 2p units after its F1. Where p is a multiple of 3
    those are their own slots, and the block is delayed. There a rank that would wait for the delayed block
    runs ahead of it instead, and the last rank is delayed once more (found by trying: F0 runs further
    ahead, and the bubble is smaller).
    """
    fits = p % 3 != 0
    block = lay_block(p, hops=(1, 1, 1, 1), turns=(1, 1, 1) if fits else (1, 1, 2))
    return repeat_block("v-min", block, m, cap=2 * ((p + 4) // 3), in_order=fits)
