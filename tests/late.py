"""A GPU's streams and NCCL without a GPU: stand-ins that keep the rules, and end a run that breaks one.

Memory is the CPU's. The stream that computes is the thread itself; a side stream is a thread that does what it is told
late and in order, so that whatever is not waited for is not there yet: memory is full of NaN until it is filled.

What the thread itself has made is there at once, as on a GPU it would not be. So of memory that one stream has made and
another one uses, two things are written down, in `broken` if they lack: that the other one was told to wait for the
first in the same breath, and that the allocator was told who uses it (record_stream).
"""

import queue
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.utils.weak import WeakTensorKeyDictionary

from ppcourse.schedules.channels import Channel

LATE = 0.0005  # seconds that a side stream takes for each thing it is told
HANGS = 20.0  # seconds after which a transfer without its other end counts as a hang


class Side:
    """A side stream."""

    def __init__(self) -> None:
        self.told: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        threading.Thread(target=self._run, daemon=True).start()

    def _run(self) -> None:
        while True:
            work = self.told.get()
            time.sleep(LATE)
            work()


class Mark(threading.Event):
    """of: the side stream that it is a point of, or None for the one that computes."""

    def __init__(self, of: Side | None) -> None:
        super().__init__()
        self.of = of


class LateStreams:
    """Of one rank. Counts what it is asked for.

    made     {memory of the GPU: the side stream that it was made on}; what is not in here, the thread itself has made
    pinned   memory of the host that a GPU can copy from and to
    untold   memory that a stream uses which did not make it, as long as the allocator has not been told
    """

    def __init__(self) -> None:
        self.sides: dict[Hashable, Side] = defaultdict(Side)
        self.current = threading.local()
        self.host_waits: list[int] = []  # the threads that waited
        self.made: Any = WeakTensorKeyDictionary()
        self.pinned: Any = WeakTensorKeyDictionary()
        self.untold: dict[int, str] = {}
        self.wires: dict[Side, Wire] = {}
        self.wrong: list[str] = []

    @property
    def broken(self) -> list[str]:
        return [*self.wrong, *self.untold.values()]

    def holds(self, tensor: Tensor) -> bool:
        return True

    def new(self, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        memory = self._unfilled(shape, dtype)
        self.made[memory] = self.side
        if self.side:  # it will be used by the stream that computes, or what for?
            self.untold[id(memory)] = f"memory of {list(shape)} was made on a side stream, and its user is not told"
        return memory

    def new_on_host(self, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        memory = self._unfilled(shape, dtype)
        self.pinned[memory] = True
        return memory

    def _unfilled(self, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        memory = torch.empty(shape, dtype=dtype)
        memory.view(-1).view(torch.uint8).fill_(255)  # NaN in every floating dtype
        return memory

    @contextmanager
    def aside(self, name: Hashable) -> Iterator[None]:
        before, self.current.side, self.current.waited = self.side, self.sides[name], set[Side | None]()
        try:
            yield
        finally:
            self.current.side = before

    @property
    def side(self) -> Side | None:
        return getattr(self.current, "side", None)

    def tell(self, work: Callable[[], None]) -> None:
        """Put work on the current stream."""
        self.side.told.put(work) if self.side else work()

    def touch(self, memory: Tensor) -> None:
        """The current stream uses memory of the GPU."""
        owner = self.made.get(memory)
        if owner is not self.side:
            if self.side and owner not in self.current.waited:
                self.wrong.append(f"memory of {list(memory.shape)} is used before it is waited for")
            self.untold[id(memory)] = f"memory of {list(memory.shape)} is used, and its allocator is not told"

    def copy(self, into: Tensor, source: Tensor) -> None:
        for memory in (into, source):
            if memory not in self.pinned:
                self.touch(memory)
        if (into in self.pinned) == (source in self.pinned):
            self.wrong.append("a copy needs memory of the GPU on one end and pinned memory of the host on the other")
        self.tell(lambda: into.detach().copy_(source))

    def mark(self) -> Mark:
        mark = Mark(self.side)
        self.tell(mark.set)
        return mark

    def wait(self, mark: Mark) -> None:
        if self.side:
            self.current.waited.add(mark.of)
        self.tell(lambda: self.reach(mark))

    @staticmethod
    def reach(mark: threading.Event) -> None:
        assert mark.wait(3 * HANGS), "a stream waits for ever"

    def reached(self, mark: threading.Event) -> bool:
        return mark.is_set()

    def wait_on_host(self, mark: threading.Event) -> None:
        self.host_waits.append(threading.get_ident())
        self.reach(mark)

    def uses(self, tensor: Tensor) -> None:
        if self.made.get(tensor) is not self.side:
            self.untold.pop(id(tensor), None)


class Wire:
    """What lies between the two ends of a communicator: matched by order alone, and nobody goes on alone."""

    def __init__(self, channel: Channel) -> None:
        self.channel, self.offered, self.taken = channel, queue.SimpleQueue[Tensor](), queue.SimpleQueue[None]()
        self.sizes: list[int] = []
        self.broken: list[str] = []


class Rules:
    """NCCL between the ranks of a test."""

    def __init__(self) -> None:
        self.wires: dict[Channel, Wire] = {}
        self.lock = threading.Lock()

    def wire(self, channel: Channel) -> Wire:
        with self.lock:
            return self.wires.setdefault(channel, Wire(channel))

    @property
    def broken(self) -> list[str]:
        return [sentence for wire in self.wires.values() for sentence in wire.broken]


class End:
    """One rank's end of a communicator."""

    def __init__(self, rules: Rules, streams: LateStreams, channel: Channel) -> None:
        self.wire, self.streams = rules.wire(channel), streams
        self.stream: Side | None = None

    def send(self, flat: Tensor) -> None:
        self._one_stream()
        self.streams.touch(flat)
        self.streams.tell(lambda: self._send(flat))

    def receive(self, flat: Tensor) -> None:
        self._one_stream()
        self.streams.touch(flat)
        self.streams.tell(lambda: self._receive(flat))

    def _one_stream(self) -> None:
        """NCCL allows a communicator one stream at a time; and on a stream of two, one would wait for the other."""
        self.stream = self.stream or self.streams.side
        if self.stream is None or self.streams.side is not self.stream:
            self.wire.broken.append(f"{self.wire.channel} is used on two streams, or on the one that computes")
        elif self.streams.wires.setdefault(self.stream, self.wire) is not self.wire:
            self.wire.broken.append(
                f"{self.wire.channel} shares its stream with {self.streams.wires[self.stream].channel}"
            )

    def _send(self, flat: Tensor) -> None:
        self.wire.offered.put(flat)
        self._meet(self.wire.taken)  # a send ends when its receive has taken it, and not before

    def _receive(self, flat: Tensor) -> None:
        sent = self._meet(self.wire.offered)
        if sent is None:
            return
        if sent.numel() != flat.numel():
            self.wire.broken.append(f"{self.wire.channel}: {sent.numel()} bytes meet a receive of {flat.numel()}")
        flat[: sent.numel()].copy_(sent[: flat.numel()])
        self.wire.sizes.append(sent.numel())
        self.wire.taken.put(None)

    def _meet(self, other: "queue.SimpleQueue[Any]") -> Any:
        try:
            return other.get(timeout=HANGS)
        except queue.Empty:
            self.wire.broken.append(f"{self.wire.channel} hangs")
            return None
