"""When each action ran, predicted or measured: one type, so that one figure can show both."""

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from itertools import chain, repeat
from typing import Literal, NamedTuple, TypeAlias

from ppcourse.schedules.action import Action
from ppcourse.schedules.bulk import collector_paused, records

Source: TypeAlias = Literal["simulated", "measured", "paced"]


class Span(NamedTuple):
    """One action of one rank, from `start` to `end`; waiting for its inputs is not part of it."""

    rank: int
    action: Action
    start: float
    end: float


class Track(NamedTuple):
    """What one rank ran: its actions in the order in which they started, and when each of them started and ended."""

    actions: tuple[Action, ...]
    starts: tuple[float, ...]
    ends: tuple[float, ...]


@dataclass(frozen=True)
class Timeline:
    """When each rank ran what in one step, and what that says about idle time.

    tracks[rank]   in columns, since most questions need no Span; these are made when someone asks for them

    Times are in the unit of the costs when simulated, in seconds when measured. A paced timeline is
    measured too, but its actions were made to last their nominal time.

    Two makespans: `makespan` counts from the first start on any rank to the last end on any rank;
    `longest_stage_time` is the most any one rank spends from its own first start to its own last end, which
    is what a step costs when the optimizer's synchronisation is bypassed (Qi et al. 2024, §2 and §4).
    """

    name: str
    tracks: tuple[Track, ...]
    source: Source = "simulated"

    @classmethod
    def of(cls, name: str, num_ranks: int, spans: Iterable[Span], source: Source = "simulated") -> "Timeline":
        """The timeline of spans that come in any order. Raises ValueError for a span of a rank that there is not."""
        rows: list[list[Span]] = [[] for _ in range(num_ranks)]
        for span in sorted(spans, key=lambda span: (span.start, span.end)):
            if not 0 <= span.rank < num_ranks:
                ranks = f"the timeline has ranks 0 to {num_ranks - 1}"
                raise ValueError(f"Rank {span.rank} runs {span.action}, but {ranks}.")
            rows[span.rank].append(span)
        columns = (
            Track(tuple(s.action for s in row), tuple(s.start for s in row), tuple(s.end for s in row)) for row in rows
        )
        return cls(name, tuple(columns), source)

    @property
    def num_ranks(self) -> int:
        return len(self.tracks)

    @cached_property
    def spans(self) -> tuple[Span, ...]:
        """Every span, rank by rank."""
        return tuple(chain.from_iterable(self.by_rank))

    @cached_property
    def by_rank(self) -> tuple[tuple[Span, ...], ...]:
        """The spans of each rank, in the order in which they started."""
        with collector_paused():
            return tuple(tuple(records(Span, repeat(rank), *track)) for rank, track in enumerate(self.tracks))

    @cached_property
    def start(self) -> float:
        return min((track.starts[0] for track in self.tracks if track.starts), default=0.0)

    @cached_property
    def end(self) -> float:
        return max((max(track.ends) for track in self.tracks if track.ends), default=0.0)

    @property
    def makespan(self) -> float:
        """From the first start on any rank to the last end on any."""
        return self.end - self.start

    @cached_property
    def longest_stage_time(self) -> float:
        return max((max(track.ends) - track.starts[0] for track in self.tracks if track.starts), default=0.0)

    @cached_property
    def busy(self) -> tuple[float, ...]:
        """For each rank, the time in which it works (an overlapped pair counts once)."""
        return tuple(_covered(track) for track in self.tracks)

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


def _covered(track: Track) -> float:
    """The length of the union of what a rank ran."""
    total, reached = 0.0, float("-inf")
    for start, end in zip(track.starts, track.ends, strict=True):
        total += max(0.0, end - max(start, reached))
        reached = max(reached, end)
    return total


def _ratio(part: float, whole: float) -> float:
    return part / whole if whole else 0.0
