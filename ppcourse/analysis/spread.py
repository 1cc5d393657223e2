"""The partition whose stages differ least: as a comparison, for a pipeline is as slow as its slowest stage."""

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from itertools import accumulate, combinations


def least_spread(costs: Sequence[int], num_stages: int, fixed: dict[int, int], upper: int) -> tuple[int, ...]:
    """The smallest (most expensive − least expensive stage), as DeepSpeed's balanced partition aims at; of equal
    spreads, the one with the smaller maximum.

    fixed   sizes that are given, by stage (the first and the last)
    upper   the least maximum of all partitions, where the search begins

    Two bounds close in: for each maximum, in ascending order, the minimum is raised as far as there are partitions
    between the two. It never passes the mean, so maxima beyond mean + best spread need no look.
    """
    until = list(accumulate(costs, initial=0))
    sums = sorted({b - a for a, b in combinations(until, 2)})
    between = _Between(until, num_stages, fixed)
    low = bisect_left(range(len(sums)), True, key=lambda place: not between.sizes(sums[place], upper)) - 1
    best, found = upper - sums[low], between.sizes(sums[low], upper)
    for high in sums[bisect_right(sums, upper) :]:
        if (high - best) * num_stages >= until[-1]:
            break
        while low + 1 < len(sums) and (sizes := between.sizes(sums[low + 1], high)):
            low += 1
            if high - sums[low] < best:
                best, found = high - sums[low], sizes
    return found


class _Between:
    """Partitions all of whose stages cost between two bounds."""

    def __init__(self, until: Sequence[int], num_stages: int, fixed: dict[int, int]) -> None:
        self.until, self.num_stages, self.layers = until, num_stages, len(until) - 1
        self.first, self.last = fixed.get(0), fixed.get(num_stages - 1)

    def sizes(self, least: int, most: int) -> tuple[int, ...]:
        """The sizes of one, empty if there is none; of several, the one with the smallest last stages.

        counts[n]: a bit for each number of stages that the first n layers can make.
        """
        counts = [1, *[0] * self.layers]
        for n in range(1, self.layers + 1):
            for start in self._starts(n, least, most):
                counts[n] |= counts[start] << 1
        if not counts[-1] >> self.num_stages & 1:
            return ()
        taken: list[int] = []
        n = self.layers
        for left in range(self.num_stages - 1, -1, -1):
            start = next(s for s in reversed(self._starts(n, least, most)) if counts[s] >> left & 1)
            taken.append(n - start)
            n = start
        return tuple(reversed(taken))

    def _starts(self, n: int, least: int, most: int) -> Sequence[int]:
        """Where a stage may begin that ends before layer n."""
        cost_from = self.until[n] - most, self.until[n] - least
        starts = range(bisect_left(self.until, cost_from[0]), min(n, bisect_right(self.until, cost_from[1])))
        if n == self.layers and self.last is not None:
            return [n - self.last] if n - self.last in starts else []
        if self.first is not None:
            return [s for s in starts if s or n == self.first]
        return starts
