"""A GPU in virtual time, without a GPU: streams and events that keep CUDA's rules, and end a test that breaks one.

    work on one stream is done in the order in which it is told, and takes GPU time, not the host's
    work on two streams is unordered, unless one has waited for an event of the other: to use what is not sure to be
    there is an error, also where it happens to be
    an event can be read once it has happened, and the host must wait for that

Stands in for Streams, for Moments, and, within the clock's module, for time.
"""

from collections.abc import Hashable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

TOLD = 0.001  # seconds that the host takes to tell the GPU something


@dataclass
class Stream:
    """free: when it has done all it was told; after: the work that is sure to be done before what it is told next."""

    free: float = 0.0
    after: frozenset[int] = frozenset()


@dataclass(frozen=True)
class Event:
    at: float
    after: frozenset[int]


@dataclass(frozen=True)
class Work:
    name: str
    stream: Hashable
    start: float
    end: float
    told: float


@dataclass
class VirtualGpu:
    """now: the host's time; known: the work that the host knows to be done."""

    now: float = 0.0
    known: frozenset[int] = frozenset()
    streams: dict[Hashable, Stream] = field(default_factory=lambda: {"trunk": Stream()})
    names: list[Hashable] = field(default_factory=lambda: ["trunk"])
    done: list[Work] = field(default_factory=list)
    host_waits: list[float] = field(default_factory=list)
    used: set[tuple[int, Hashable]] = field(default_factory=set)

    @property
    def current(self) -> Stream:
        return self.streams[self.names[-1]]

    def work(self, name: str, lasts: float, needs: list[int]) -> int:
        """Tell the current stream to do something with the results of other work; the number of this work."""
        self.now += TOLD
        stream = self.current
        for number in needs:
            made_by = self.done[number]
            assert number in stream.after | self.known, f"{name} uses what {made_by.name} may not have made yet"
            mine = made_by.stream == self.names[-1] or (number, self.names[-1]) in self.used
            assert mine, f"{name} uses memory of another stream, which may be given away: {made_by.name}"
        start = max(stream.free, self.now)
        stream.free = start + lasts
        self.done.append(Work(name, self.names[-1], start, stream.free, self.now))
        stream.after |= {len(self.done) - 1}
        return len(self.done) - 1

    # Streams

    def holds(self, tensor: Any) -> bool:
        return True

    @contextmanager
    def aside(self, name: Hashable) -> Iterator[None]:
        self.streams.setdefault(name, Stream())
        self.names.append(name)
        try:
            yield
        finally:
            self.names.pop()

    def uses(self, tensor: Any) -> None:
        self.used.add((int(tensor), self.names[-1]))

    # Moments

    def record(self) -> Event:
        return Event(max(self.current.free, self.now), self.current.after | self.known)

    mark = record

    def wait(self, event: Event) -> None:
        """A stream's wait; `Host` has the host's."""
        self.current.free = max(self.current.free, event.at)
        self.current.after |= event.after


class Host:
    """What the host can ask of its GPU's moments, and its time."""

    def __init__(self, gpu: VirtualGpu) -> None:
        self.gpu = gpu

    def record(self) -> Event:
        return self.gpu.record()

    def reached(self, event: Event) -> bool:
        return event.at <= self.gpu.now

    def wait(self, event: Event) -> None:
        if not self.reached(event):
            self.gpu.host_waits.append(event.at)
        self.gpu.now = max(self.gpu.now, event.at)
        self.gpu.known |= event.after

    def seconds(self, first: Event, second: Event) -> float:
        for event in (first, second):
            assert self.reached(event), "an event was read before it happened"
        return second.at - first.at

    def perf_counter(self) -> float:
        self.gpu.now += 1e-9  # who looks at a clock long enough sees it move
        return self.gpu.now

    def sleep(self, seconds: float) -> None:
        self.gpu.now += seconds
