"""Moving what a stage hands on to another rank.

A link carries the messages of a plan's channels: per channel in the sender's order, matched by that order.

             between                        tensors in                 what moves them
    shared   processes of one host          the CPU's memory           memory that both ranks map (shared.py)
    gloo     processes of any hosts         the CPU's memory           torch.distributed, TCP (here, ends.py)
    nccl     ranks with a GPU each          the GPUs' memory           NCCL, a communicator a channel (nccl.py)
    staged   ranks that share a GPU         the GPU's memory           copies through the host's memory (staged.py)

The first two are whole in themselves. The other two are a DeviceLink (device_link.py), which sends a note of each
message over one of the first two, and differ in how the tensors follow it. by_name.py opens them.
"""

import time
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple, Protocol

from torch import Tensor

from ppcourse.runtime.links.ends import Arrival, Incoming, Outgoing
from ppcourse.runtime.values import wire
from ppcourse.schedules.channels import Message, channels
from ppcourse.schedules.schedule import Schedule


class Parcel(NamedTuple):
    """A packed message: its bytes, the head first, and what sends it."""

    buffer: Tensor
    go: Callable[[], None]


class Link(Protocol):
    """What the interpreter needs of a link."""

    @property
    def sent_messages(self) -> int:
        """Of this step."""

    @property
    def sent_bytes(self) -> int:
        """Of this step, heads included."""

    @property
    def buffers(self) -> tuple[int, int] | None:
        """The most bytes of this step in receives that nobody had used yet, and in messages on their way; None if the
        link cannot tell. By channel at its most, and all channels together."""

    def begin(self) -> None:
        """Before each step: post the first receives."""

    def pack(self, message: Message, value: Any) -> Parcel:
        """Make what is to be sent independent of `value`, as part of the work of the action that made it."""

    def send(self, parcel: Parcel) -> None:
        """Send, without waiting."""

    def receive(self, message: Message) -> Arrival:
        """Wait for a message. Raises LinkError if it cannot come any more."""

    def finish(self) -> None:
        """After each step: wait until everything is sent."""

    def close(self) -> None:
        """Stop the threads."""


class GlooLink:
    """The channels of one rank over gloo."""

    def __init__(self, plan: Schedule, rank: int, latency: float = 0.0) -> None:
        traffic = channels(plan)
        self._out = {c: Outgoing(c, t) for c, t in traffic.items() if c.source == rank}
        self._in = {c: Incoming(c, t, latency) for c, t in traffic.items() if c.destination == rank}
        self.sent_messages = self.sent_bytes = 0

    @property
    def buffers(self) -> tuple[int, int]:
        received, sent = [end.level.most for end in self._in.values()], [end.level.most for end in self._out.values()]
        return sum(received), sum(sent)

    def begin(self) -> None:
        self.sent_messages = self.sent_bytes = 0
        for level in (*(end.level for end in self._in.values()), *(end.level for end in self._out.values())):
            level.reset()
        for incoming in self._in.values():
            incoming.begin()

    def pack(self, message: Message, value: Any) -> Parcel:
        outgoing = self._out[message.channel]
        parts = outgoing.pack(message, value)
        return Parcel(parts[0], partial(outgoing.send, parts))

    def send(self, parcel: Parcel) -> None:
        wire.stamp(parcel.buffer, time.perf_counter_ns())
        parcel.go()
        self.sent_messages += 1
        self.sent_bytes += wire.read_head(parcel.buffer).length

    def receive(self, message: Message) -> Arrival:
        return self._in[message.channel].receive(message)

    def finish(self) -> None:
        for outgoing in self._out.values():
            outgoing.finish()

    def close(self) -> None:
        for outgoing in self._out.values():
            outgoing.close()
        for incoming in self._in.values():
            incoming.close()
