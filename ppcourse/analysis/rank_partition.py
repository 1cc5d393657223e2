"""Cutting a model for ranks that hold several stages: what counts is the sum of a rank's stages."""

from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import TypeAlias

Fits: TypeAlias = Callable[[int, Sequence[tuple[int, int]]], bool]
"""fits(rank, stretches): whether the rank can hold the layers from a up to b, for each (a, b) in stretches."""

PATIENCE = 2_000  # how many sizes of stages are tried for one bound
TRIES = 10  # how many bounds may be given up


@dataclass(frozen=True)
class Load:
    """What is to be spread.

    costs   one whole number a layer
    homes   homes[stage] are the ranks that run it: more than one in DualPipe, where each has half the microbatches
    fixed   sizes that are given, by stage
    fits    what a rank's memory allows
    """

    costs: Sequence[int]
    homes: Sequence[tuple[int, ...]]
    fixed: dict[int, int]
    fits: Fits


def least_busy(load: Load, patience: int = PATIENCE) -> tuple[int, ...]:
    """Layers per stage so that the busiest rank is as little busy as the search can make it; empty if none fits.

    The answer is bracketed: no better than an even share, no worse than the best found so far. Whether a bound in
    between can be kept is tried by `_Search`, which may give up; so the answer is the optimum where the search never
    does (small models), and the best found elsewhere.
    """
    num_ranks = 1 + max(map(max, load.homes))
    total = sum(load.costs) * len(load.homes[0])
    low, steps = -(-total // num_ranks), TRIES * patience
    search = _Search(load, total, steps)  # whatever the memory allows
    best = search.sizes()
    high = _busiest(load, best) if best else low
    while low < high and steps > 0:
        bound = (low + high) // 2
        search = _Search(load, bound, min(steps, patience))
        if sizes := search.sizes():
            best, high = sizes, _busiest(load, sizes)
        else:
            low = bound + 1
        steps -= search.steps
    return best


def _busiest(load: Load, sizes: Sequence[int]) -> int:
    busy: dict[int, int] = {}
    ends = list(accumulate(sizes, initial=0))
    for homes, a, b in zip(load.homes, ends, ends[1:], strict=False):
        for rank in homes:
            busy[rank] = busy.get(rank, 0) + sum(load.costs[a:b])
    return max(busy.values())


class _Search:
    """A partition that keeps every rank within `bound`: stage after stage, taking a size back where it leads nowhere.

    The sizes of a stage are tried from the fair one on: an even part of what its rank has left for its stages. On a
    rank's last stage what is left over is lost, and no more may be lost than all ranks have together beyond what
    there is to do.
    """

    def __init__(self, load: Load, bound: int, patience: int) -> None:
        self.load, self.patience, self.steps = load, patience, 0
        self.until = list(accumulate(load.costs, initial=0))
        self.stages, self.layers = len(load.homes), len(load.costs)
        self.room = [bound] * (1 + max(map(max, load.homes)))
        self.stretches: list[list[tuple[int, int]]] = [[] for _ in self.room]
        self.spare = sum(self.room) - self.until[-1] * len(load.homes[0])
        self.left = [sum(rank in homes for homes in load.homes) for rank in range(len(self.room))]

    def sizes(self) -> tuple[int, ...]:
        """Empty if there is none, or none was found in so many steps."""
        if self.spare < 0:
            return ()
        chosen: list[int] = []
        waiting = [self._choices(0, 0)]
        while waiting and self.steps < self.patience:
            stage, start = len(waiting) - 1, sum(chosen)
            if len(chosen) == len(waiting):
                start -= chosen[-1]
                self._give_back(stage, start, start + chosen.pop())
            size = next(waiting[-1], None)
            if size is None:
                waiting.pop()
                continue
            self.steps += 1
            if self._take(stage, start, start + size):
                chosen.append(size)
                if stage + 1 == self.stages:
                    return tuple(chosen)
                waiting.append(self._choices(stage + 1, start + size))
        return ()

    def _choices(self, stage: int, start: int) -> Iterator[int]:
        """The sizes to try, the fairest first."""
        homes, after, at_end = self.load.homes[stage], self.stages - 1 - stage, self.load.fixed.get(self.stages - 1)
        most = self.layers - start - (after - 1 + (at_end or 1) if after else 0)
        rest = not after or (after == 1 and at_end)  # all that is left, but for what the last stage is given
        wanted = most if rest else self.load.fixed.get(stage)
        if wanted is not None:
            return iter([wanted] if 1 <= wanted <= most else [])
        room = min(self.room[rank] for rank in homes)
        fair = self.until[start] + min(self.room[rank] // self.left[rank] for rank in homes)
        largest = min(bisect_right(self.until, self.until[start] + room) - 1 - start, most)
        return iter(sorted(range(1, largest + 1), key=lambda size: (abs(self.until[start + size] - fair), size)))

    def _take(self, stage: int, a: int, b: int) -> bool:
        """Give the layers to the stage's ranks; nothing changes if one of them cannot take them."""
        cost = self.until[b] - self.until[a]
        homes = self.load.homes[stage]
        if any(self.room[rank] < cost for rank in homes):
            return False
        if sum(self.room[rank] - cost for rank in homes if self.left[rank] == 1) > self.spare:
            return False
        if not all(self.load.fits(rank, [*self.stretches[rank], (a, b)]) for rank in homes):
            return False
        for rank in homes:
            self.room[rank] -= cost
            self.left[rank] -= 1
            self.spare -= 0 if self.left[rank] else self.room[rank]
            self.stretches[rank].append((a, b))
        return True

    def _give_back(self, stage: int, a: int, b: int) -> None:
        for rank in self.load.homes[stage]:
            self.spare += 0 if self.left[rank] else self.room[rank]
            self.room[rank] += self.until[b] - self.until[a]
            self.left[rank] += 1
            self.stretches[rank].pop()
