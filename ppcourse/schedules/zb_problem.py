"""What zb-auto has to solve: costs and memory, and what a row of letters means for them."""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import NamedTuple

F_OR_I = re.compile("[FI]")

NOTHING = 1e-9
"""A share of a microbatch too small to count: sums of `kept` are not exact."""


@dataclass(frozen=True)
class Problem:
    """p ranks with one stage each, m microbatches.

    A rank's row is a string of the letters F, I and W. Which microbatch a letter is for need not be said: each
    rank takes them in order, so the third F is microbatch 2.

    forward, input_grad, weight_grad   what each letter takes, rank by rank
    comm                               what a hop takes
    limit                              the most a rank may hold, in microbatches of its full activation
    kept                               the share of a microbatch that stays from its I until its W
    """

    p: int
    m: int
    forward: tuple[float, ...]
    input_grad: tuple[float, ...]
    weight_grad: tuple[float, ...]
    comm: float
    limit: float
    kept: float

    @cached_property
    def first_start(self) -> tuple[float, ...]:
        """When each rank starts its first F. No order changes that."""
        starts = [0.0]
        for forward in self.forward[:-1]:
            starts.append(starts[-1] + forward + self.comm)
        return tuple(starts)

    @cached_property
    def busy(self) -> tuple[float, ...]:
        """How long each rank works."""
        each = zip(self.forward, self.input_grad, self.weight_grad, strict=True)
        return tuple(self.m * (forward + input_grad + weight_grad) for forward, input_grad, weight_grad in each)

    @cached_property
    def most_ahead(self) -> int:
        """The most microbatches a rank may have between their F and their I.

        If more than all is kept, I needs room too: a rank without that room could never go on.
        """
        room = self.limit - max(0.0, self.kept - 1) + NOTHING
        return self.m if room >= self.m else int(room)

    def held(self, forwards: int, input_grads: int, weight_grads: int) -> float:
        """What a rank holds after so many of each letter, in microbatches."""
        return forwards - input_grads * (1 - self.kept) - weight_grads * self.kept

    def fits(self, row: str) -> bool:
        """Does each letter come after those it needs on its own rank, and is the limit held throughout?"""
        forwards = input_grads = weight_grads = 0
        freed, kept, most = 1 - self.kept, self.kept, self.limit + NOTHING
        for letter in row:
            if letter == "F":
                forwards += 1
            elif letter == "I":
                input_grads += 1
            else:
                weight_grads += 1
            if not weight_grads <= input_grads <= forwards:
                return False
            if forwards - input_grads * freed - weight_grads * kept > most:
                return False
        return True


class Times(NamedTuple):
    """When the letters of some rows are done.

    forwards      forwards[rank][microbatch]: when that F is done
    input_grads   the same for I
    stage_times   how long each rank takes, from its own first start to its own last end
    """

    forwards: list[list[float]]
    input_grads: list[list[float]]
    stage_times: list[float]

    @property
    def longest(self) -> float:
        """The longest stage time: what the search makes short."""
        return max(self.stage_times)


def clock(problem: Problem, rows: Sequence[str]) -> Times | None:
    """Every letter as soon as its rank is free and what it needs has arrived; None if the ranks get stuck.

    As in analysis.simulate, for rows that fit; the search times thousands of plans and needs no more than this.
    """
    p, comm = problem.p, problem.comm
    order = _order(tuple(row.replace("W", "") for row in rows))
    if order is None:
        return None
    forwards: list[list[float]] = [[] for _ in range(p)]
    input_grads: list[list[float]] = [[] for _ in range(p)]
    # By rank for F, then by rank for I: what a letter lasts, those done on its rank, and those it needs.
    lasts = problem.forward + problem.input_grad
    done = forwards + input_grads
    needed = [None, *forwards[:-1], *input_grads[1:], None]
    before = [_weight_grads_before(row, lasts) for row, lasts in zip(rows, problem.weight_grad, strict=True)]
    end = [0.0] * p
    for rank, which in order:
        now, mine, theirs = end[rank] + next(before[rank]), done[which], needed[which]
        if theirs is not None:
            arrival = theirs[len(mine)] + comm
            if arrival > now:
                now = arrival
        now += lasts[which]
        end[rank] = now
        mine.append(now)
    end = [now + next(last) for now, last in zip(end, before, strict=True)]
    return Times(forwards, input_grads, [last - first for last, first in zip(end, problem.first_start, strict=True)])


def _weight_grads_before(row: str, lasts: float) -> Iterator[float]:
    """What the W take that stand right before each F or I, and last those that stand at the end."""
    return iter([len(run) * lasts for run in F_OR_I.split(row)])


@lru_cache(maxsize=32)
def _order(rows: tuple[str, ...]) -> list[tuple[int, int]] | None:
    """The F and I of all ranks, each after those it needs; None if there is no such order.

    As (rank, rank) for an F and (rank, p + rank) for an I. Rows without W, of which the search asks for the
    same ones again and again. Ranks are visited down and up, each going as far as it can: as the work flows.
    """
    p, left = len(rows), sum(map(len, rows))
    counts, at = [0] * (2 * p), [0] * p
    order: list[tuple[int, int]] = []
    while len(order) < left:
        before = len(order)
        for rank in (*range(p), *reversed(range(1, p - 1))):
            for letter in rows[rank][at[rank] :]:
                which, first, source = (rank, 0, rank - 1) if letter == "F" else (p + rank, 2 * p - 1, p + rank + 1)
                if which != first and counts[which] == counts[source]:
                    break
                counts[which] += 1
                order.append((rank, which))
                at[rank] += 1
        if len(order) == before:
            return None
    return order
