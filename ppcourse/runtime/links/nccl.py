"""The NCCL link's ferry: from GPU to GPU, each channel with a communicator and a stream of its own.

NCCL matches by order alone, and a send ends only when its receive is posted. So

    a communicator joins two ranks for one channel: a send that waits holds up neither compute nor another channel
    all ranks make all communicators of a plan before its first step, in one order, and each carries a byte at once:
    a first send between ranks of which one has no receive yet would hang while NCCL introduces them
    a transfer is one operation, and never one of a group: a group of many hundreds hangs

The cargo of a message goes as one flat tensor, so it is one transfer however many tensors a layer hands on.
"""

import threading
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple, Protocol

import torch
import torch.distributed as dist
from torch import Tensor

from ppcourse.runtime.links.device_link import Form
from ppcourse.runtime.machine.streams import Streams
from ppcourse.runtime.machine.system import FOREVER
from ppcourse.runtime.values.wire import ALIGN
from ppcourse.schedules.channels import Channel, Kind, channels
from ppcourse.schedules.schedule import Schedule

MAX_CTAS = 4  # blocks that a transfer may occupy while it waits; the rest of the GPU computes


class Communicator(Protocol):
    """Two ranks, one channel. Each puts a transfer on the current stream, and returns at once."""

    def send(self, flat: Tensor) -> None: ...

    def receive(self, flat: Tensor) -> None: ...


class Nccl:
    """A rank's transfers. The sending thread sends, the receiving thread receives: a channel has one user here."""

    def __init__(self, streams: Streams, communicators: dict[Channel, Communicator]) -> None:
        self._streams, self._communicators = streams, communicators
        self._underway: deque[tuple[Any, Tensor]] = deque()
        self._lock = threading.Lock()

    def carries(self, tensor: Tensor) -> bool:
        return self._streams.holds(tensor)

    def load(self, channel: Channel, cargo: Sequence[Tensor]) -> "Flat":
        flat = self._streams.new((_room([_nbytes(tensor) for tensor in cargo]),), torch.uint8)
        start = 0
        for tensor in cargo:
            _at(flat, start, tensor.dtype, tuple(tensor.shape)).copy_(tensor)
            start += _aligned(_nbytes(tensor))
        return Flat(flat, partial(self._send, channel, flat, self._streams.mark()))

    def unload(self, channel: Channel, forms: Sequence[Form], aboard: Sequence[Tensor]) -> Callable[[], list[Tensor]]:
        streams = self._streams
        with streams.aside(channel):
            flat = streams.new((_room([form.nbytes for form in forms]),), torch.uint8)
            if flat.numel():
                self._communicators[channel].receive(flat)
            there = streams.mark()

        def land() -> list[Tensor]:
            streams.wait(there)
            streams.uses(flat)
            tensors, start = [], 0
            for form in forms:
                tensors.append(_at(flat, start, form.dtype, form.shape))
                start += _aligned(form.nbytes)
            return tensors

        return land

    def finish(self) -> None:
        with self._lock:
            while self._underway:
                self._streams.wait_on_host(self._underway.popleft()[0])

    def _send(self, channel: Channel, flat: Tensor, made: Any) -> None:
        streams = self._streams
        if flat.numel():
            with streams.aside(channel):
                streams.wait(made)
                self._communicators[channel].send(flat)
                streams.uses(flat)
                gone = streams.mark()
            with self._lock:
                self._underway.append((gone, flat))
                while self._underway and streams.reached(self._underway[0][0]):
                    self._underway.popleft()  # and its memory with it


class Flat(NamedTuple):
    """Cargo in one piece, and what sends it."""

    flat: Tensor
    go: Callable[[], None]

    def aboard(self) -> list[Tensor]:
        return []

    def depart(self) -> None:
        self.go()


class Pair:
    """A communicator of torch.distributed: a process group of two."""

    def __init__(self, channel: Channel, group: dist.ProcessGroup) -> None:
        self._channel, self._group = channel, group

    def send(self, flat: Tensor) -> None:
        _enqueued(dist.isend(flat, self._channel.destination, group=self._group))

    def receive(self, flat: Tensor) -> None:
        _enqueued(dist.irecv(flat, self._channel.source, group=self._group))


def communicators(
    plan: Schedule, rank: int, device: torch.device, known: dict[Channel, Communicator]
) -> dict[Channel, Communicator]:
    """Those of the plan's channels that `rank` is an end of; all ranks call this at the same time.

    known   made before, for another job of these ranks; those that are new are added to it
    """
    for channel in in_one_order(plan):
        ends = [channel.source, channel.destination]
        if channel not in known:
            given = {"timeout": FOREVER, "pg_options": _options(), "device_id": device, "group_desc": str(channel)}
            group = dist.new_group(ends, backend="nccl", **given)
            known[channel] = Pair(channel, group)
            if rank in ends:
                _introduce(known[channel], rank == channel.source, device)
    return {channel: known[channel] for channel in in_one_order(plan) if rank in channel[:2]}


def in_one_order(plan: Schedule) -> list[Channel]:
    """The plan's channels, in an order that is the same on every rank."""
    kinds = list(Kind)
    return sorted(channels(plan), key=lambda channel: (channel.source, channel.destination, kinds.index(channel.kind)))


def _options() -> Any:
    """For one group: torch writes the group's name and ranks into them, and the group goes on reading them."""
    options = dist.ProcessGroupNCCL.Options()
    options.config.max_ctas = MAX_CTAS
    return options


def _introduce(pair: Communicator, sends: bool, device: torch.device) -> None:
    """One byte, so that NCCL has met before the first step."""
    byte = torch.zeros(1, dtype=torch.uint8, device=device)
    pair.send(byte) if sends else pair.receive(byte)
    torch.cuda.synchronize(device)


def _enqueued(work: dist.Work | None) -> None:
    """Let the current stream wait for a transfer, which torch puts on a stream of its own; the host does not wait."""
    assert work is not None
    work.wait()


def _at(flat: Tensor, start: int, dtype: torch.dtype, shape: tuple[int, ...]) -> Tensor:
    """A tensor in the memory of `flat`; no view of it: views share a version, so that in-place work would clash."""
    count = torch.Size(shape).numel()
    if not count:
        return torch.empty(shape, dtype=dtype, device=flat.device)
    inside = torch.empty(0, dtype=dtype, device=flat.device)
    return inside.set_(flat.untyped_storage(), start // dtype.itemsize, shape)  # type: ignore[call-overload,no-any-return]


def _nbytes(tensor: Tensor) -> int:
    return tensor.numel() * tensor.itemsize


def _aligned(nbytes: int) -> int:
    return -(-nbytes // ALIGN) * ALIGN


def _room(sizes: Sequence[int]) -> int:
    return sum(_aligned(size) for size in sizes)
