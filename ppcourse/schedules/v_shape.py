"""What v-half and v-min share: a block for one microbatch, repeated, under a cap on what a rank holds.

On a V each rank holds two stages: chunk 0, which a microbatch passes on its way down the ranks, and chunk 1,
which it passes on its way up. Lay out in time how one microbatch passes every rank, and you have a block.
v-min's for four ranks (here F0 is the forward of chunk 0):

    rank 0: F0 .  .  .  .  .  .  F1 I1 .  .  .  .  .  .  I0
    rank 1: .  F0 .  .  .  .  F1 .  .  I1 .  .  .  .  I0 .
    rank 2: .  .  F0 .  .  F1 .  .  .  .  I1 .  .  I0 .  .
    rank 3: .  .  .  F0 F1 .  .  .  .  .  .  I1 I0 .  .  .

A microbatch is six units of work for a rank, so the block is repeated every six units, and W goes where
nothing else is. The longer the block keeps a chunk, from F to W, the more chunks a rank holds at once: one
for every six units. A short block saves memory; a long one saves time, for with more microbatches underway
there is more to do for a rank that waits for one of them.

Source: Qi et al. 2024 (Pipeline Parallelism with Controllable Memory, arXiv 2405.15362).
"""

from typing import TypeAlias

from ppcourse.schedules.action import Action, Op
from ppcourse.schedules.dependencies import RESULTS, RULES
from ppcourse.schedules.placement import vee
from ppcourse.schedules.schedule import Schedule

PERIOD = 6

Block: TypeAlias = tuple[tuple[int, ...], ...]
"""For each rank, when it starts F0, F1, I1 and I0 of the first microbatch."""

Progress: TypeAlias = dict[Op, list[int]]
"""For each op, of how many microbatches each stage has done it."""


def lay_block(p: int, hops: tuple[int, int, int, int], turns: tuple[int, int, int] = (1, 1, 1)) -> Block:
    """The block in which a microbatch goes its way, and waits only where its slot is taken.

    hops    units from a rank to its neighbour, for each way: F0 down, F1 up, I1 down, I0 up
    turns   units from one way to the next: F0 to F1 on the last rank, F1 to I1 on rank 0, I1 to I0 on the last
    slot    a time modulo 6; where a slot is taken on a rank, the repeated block would meet itself there, so
            the microbatch, and with it the rest of the block, is delayed to the next slot that is free
    """
    starts: list[list[int]] = [[] for _ in range(p)]
    time = 0
    for way, turn, hop in zip(("down", "up", "down", "up"), (0, *turns), hops, strict=True):
        for n in range(p):
            rank = n if way == "down" else p - 1 - n
            time = _free_slot(starts[rank], time + (hop if n else turn))
            starts[rank].append(time)
    return tuple(map(tuple, starts))


def _free_slot(taken: list[int], time: int) -> int:
    while any((time - start) % PERIOD == 0 for start in taken):
        time += 1
    return time


def repeat_block(name: str, block: Block, m: int, cap: int, in_order: bool) -> Schedule:
    """The plan of ranks that follow the repeated block, but work wherever it lets them idle.

    In each unit a rank looks at its next F0, F1, I1 and I0, takes the one that comes first in the block, and
    runs it if it may start. If it may not, `in_order` ranks let nothing overtake it; others run the first of
    them that may. If there is none, the W that has waited longest runs.

    cap   the most chunks that a rank holds, each from its F to its W; F waits while there are so many

    Raises ValueError if ranks come to a halt under that cap.
    """
    p = len(block)
    ranks = [_Rank(r, times, p, m, cap, in_order) for r, times in enumerate(block)]
    done: Progress = {op: [0] * (2 * p) for op in (Op.F, Op.I, Op.W)}
    rows: list[list[Action]] = [[] for _ in range(p)]
    while any(len(row) < PERIOD * m for row in rows):
        chosen = [rank.choose(done) for rank in ranks]
        if not any(chosen):
            raise ValueError(f"{name} comes to a halt: cap is {cap}, and the block needs more chunks than that.")
        for row, choice in zip(rows, chosen, strict=True):
            if choice:
                op, stage = choice
                row.append(Action(stage, op, done[op][stage]))
                done[op][stage] += 1
    return Schedule(name, vee(p), m, tuple(map(tuple, rows)))


class _Rank:
    """What one rank may run next.

    room   the most it holds of chunk 0: as many as the block starts from one F0 to its I0. If F0 ran ahead
           until memory was full, none would be left for F1, without which nothing ever comes back
    """

    def __init__(self, rank: int, times: tuple[int, ...], p: int, m: int, cap: int, in_order: bool) -> None:
        zero, one = self.stages = rank, 2 * p - 1 - rank
        f0, f1, i1, i0 = times
        self.passes = ((f0, Op.F, zero), (f1, Op.F, one), (i1, Op.I, one), (i0, Op.I, zero))
        self.weights = ((i1, Op.W, one), (i0, Op.W, zero))
        self.looks_at = 1 if in_order else 4
        self.m, self.cap = m, cap
        self.room = cap if in_order else (i0 - f0) // PERIOD + 1
        made_by = {RESULTS[op][0]: op for op in (Op.F, Op.I, Op.W)}
        self.needs = {
            (op, stage): [(made_by[need], stage + hop) for hop, need in RULES[op] if 0 <= stage + hop < 2 * p]
            for _, op, stage in self.passes + self.weights
        }

    def choose(self, done: Progress) -> tuple[Op, int] | None:
        """The op and the stage to run now; None: the rank must wait."""
        for actions, looks_at in ((self.passes, self.looks_at), (self.weights, 2)):
            left = ((time, op, stage) for time, op, stage in actions if done[op][stage] < self.m)
            coming = sorted((time + PERIOD * done[op][stage], op, stage) for time, op, stage in left)
            for _, op, stage in coming[:looks_at]:
                if self._may_start(op, stage, done):
                    return op, stage
        return None

    def _may_start(self, op: Op, stage: int, done: Progress) -> bool:
        microbatch = done[op][stage]
        if any(done[maker][where] <= microbatch for maker, where in self.needs[op, stage]):
            return False
        if op is not Op.F:
            return True
        held = [done[Op.F][s] - done[Op.W][s] for s in self.stages]
        return sum(held) < self.cap and (stage != self.stages[0] or held[0] < self.room)
