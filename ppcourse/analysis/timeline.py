"""When each action ran, predicted or measured: one type, so that one figure can show both."""

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import Literal, NamedTuple, TypeAlias

from ppcourse.schedules.action import Action

Source: TypeAlias = Literal["simulated", "measured", "paced"]


class Span(NamedTuple):
    """One action of one rank, from `start` to `end`; waiting for its inputs is not part of it."""

    rank: int
    action: Action
    start: float
    end: float


@dataclass(frozen=True)
class Timeline:
    """The spans of one step, and what they say about idle time.

    Times are in the unit of the costs when simulated, in seconds when measured. A paced timeline is
    measured too, but its actions were made to last their nominal time.

    Two makespans: `makespan` counts from the first start on any rank to the last end on any rank;
    `longest_stage_time` is the most any one rank spends from its own first start to its own last end, which
    is what a step costs when the optimizer's synchronisation is bypassed (Qi et al. 2024, §2 and §4).
    """

    name: str
    num_ranks: int
    spans: tuple[Span, ...]
    source: Source = "simulated"

    @cached_property
    def by_rank(self) -> tuple[tuple[Span, ...], ...]:
        """The spans of each rank, in the order in which they started."""
        rows: list[list[Span]] = [[] for _ in range(self.num_ranks)]
        for span in self.spans:
            rows[span.rank].append(span)
        return tuple(tuple(sorted(row, key=lambda span: (span.start, span.end))) for row in rows)

    @cached_property
    def start(self) -> float:
        return min((span.start for span in self.spans), default=0.0)

    @cached_property
    def end(self) -> float:
        return max((span.end for span in self.spans), default=0.0)

    @property
    def makespan(self) -> float:
        return self.end - self.start

    @cached_property
    def longest_stage_time(self) -> float:
        return max((max(s.end for s in row) - row[0].start for row in self.by_rank if row), default=0.0)

    @cached_property
    def busy(self) -> tuple[float, ...]:
        """For each rank, the time in which it works (an overlapped pair counts once)."""
        return tuple(_covered(row) for row in self.by_rank)

    @property
    def idle(self) -> tuple[float, ...]:
        """For each rank, makespan − busy."""
        return tuple(self.makespan - busy for busy in self.busy)

    @property
    def bubble_overhead(self) -> float:
        """Idle ÷ busy time, over all ranks: Megatron's bubble time fraction (Narayanan et al. 2021, §2.2)."""
        return _ratio(sum(self.idle), sum(self.busy))

    @property
    def bubble_rate(self) -> float:
        """Idle ÷ (ranks × makespan): the bubble of GPipe (Huang et al. 2019, §2.3)."""
        return _ratio(sum(self.idle), self.num_ranks * self.makespan)

    @property
    def stage_bubble_rate(self) -> float:
        """1 − busy ÷ (ranks × longest_stage_time): in the Zero Bubble tables for ZB-H2, ZB-auto and ZB-V."""
        total = self.num_ranks * self.longest_stage_time
        return _ratio(total - sum(self.busy), total)

    def __str__(self) -> str:
        return (
            f"{self.name} ({self.source}): makespan {self.makespan:.4g},"
            f" longest stage {self.longest_stage_time:.4g},"
            f" bubble overhead {self.bubble_overhead:.1%}, bubble rate {self.bubble_rate:.1%}"
        )

    __repr__ = __str__


def _covered(row: Iterable[Span]) -> float:
    """The length of the union of spans that are sorted by start."""
    total, reached = 0.0, float("-inf")
    for span in row:
        total += max(0.0, span.end - max(span.start, reached))
        reached = max(reached, span.end)
    return total


def _ratio(part: float, whole: float) -> float:
    return part / whole if whole else 0.0
