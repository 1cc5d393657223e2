"""The two ends of a channel over torch.distributed: a thread each.

The sending end has a thread that sends, so that a waiting send blocks neither compute nor another channel, and
frees a message once it is gone. The receiving end keeps window + 1 receives posted ahead of need, and a thread
that takes what arrives out of the way.
"""

import queue
import threading
import time
from collections import deque
from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor

from ppcourse.analysis.buffers import GLOO_ROOM
from ppcourse.runtime.errors import LinkError
from ppcourse.runtime.links.level import Level
from ppcourse.runtime.values import wire
from ppcourse.runtime.values.handed_on import tensors_of
from ppcourse.schedules.channels import Channel, Kind, Message, Traffic

KINDS = list(Kind)


class Arrival(NamedTuple):
    """What a message brought, and when it was there (perf_counter seconds)."""

    value: Any
    at: float


class Came(NamedTuple):
    """A message that is there, and the bytes of the buffer that it lies in."""

    size: int
    arrival: Arrival


def place_of(message: Message) -> tuple[int, int, int]:
    """What a message says of itself: kind, stage, microbatch."""
    return KINDS.index(message.channel.kind), message.stage, message.microbatch


def check_place(message: Message, head: wire.Head) -> None:
    """Raise LinkError if what came is not the message that was expected."""
    if (head.kind, head.stage, head.microbatch) != place_of(message):
        raise LinkError(
            f"expected the {message.channel.kind} of stage {message.stage}, microbatch {message.microbatch},"
            f" but the {KINDS[head.kind]} of stage {head.stage}, microbatch {head.microbatch} came:"
            " messages are out of order."
        )


class Room:
    """How many bytes the first transfer of each message of a channel carries; both ends count to the same number.

    A receive is posted before its message exists, so it makes room for the largest message known by then:
    all of the steps before, and those of this step that are at least `ahead` messages earlier. A larger
    message sends its rest in a second transfer. Once shapes repeat, that never happens again.
    """

    def __init__(self, ahead: int, messages_a_step: int) -> None:
        self._ahead, self._step = ahead, messages_a_step
        self._asked = self._counted = 0
        self._lengths: deque[int] = deque()  # of the messages after the first `_counted`
        self._bytes = GLOO_ROOM

    def next(self) -> int:
        """The room of the next message. The lengths of all that it depends on must have been noted."""
        place = self._asked % self._step
        known = self._asked - min(place, self._ahead - 1)
        while self._counted < known:
            self._bytes = max(self._bytes, self._lengths.popleft())
            self._counted += 1
        self._asked += 1
        return self._bytes

    def note(self, length: int) -> None:
        """The length of the next message, in the order in which they are sent."""
        self._lengths.append(length)


class Outgoing:
    """The sending end of a channel.

    level   bytes of the messages that have been packed and are not sent yet
    """

    def __init__(self, channel: Channel, traffic: Traffic) -> None:
        self._channel, self.level = channel, Level()
        self._room = Room(traffic.window + 1, len(traffic.sent))
        self._underway: queue.SimpleQueue[tuple[Tensor, dist.Work] | threading.Event | None] = queue.SimpleQueue()
        self._error: LinkError | None = None
        self._thread = threading.Thread(target=self._run, daemon=True, name=f"send {channel}")
        self._thread.start()

    def pack(self, message: Message, value: Any) -> list[Tensor]:
        """The next message of the channel, in the parts that are transferred."""
        room = self._room.next()
        buffer = wire.pack(value, *place_of(message), room=room, visible=len(tensors_of(value)))
        length = wire.read_head(buffer).length
        self._room.note(length)
        self.level.add(buffer.numel())
        return [buffer] if length <= room else [buffer[:room], buffer[room:]]

    def send(self, parts: list[Tensor]) -> None:
        """Begin to send, and leave the rest to the thread."""
        if self._error:
            raise self._error
        for lane, part in enumerate(parts):
            work = _group().send([part], self._channel.destination, _tag(self._channel, lane))
            self._underway.put((part, work))

    def finish(self) -> None:
        """Wait until everything is sent."""
        sent = threading.Event()
        self._underway.put(sent)
        sent.wait()
        if self._error:
            raise self._error

    def close(self) -> None:
        self._underway.put(None)
        self._thread.join()

    def _run(self) -> None:
        while (item := self._underway.get()) is not None:
            if isinstance(item, threading.Event):
                item.set()
                continue
            try:
                item[1].wait()
            except Exception as error:
                self._error = LinkError(f"could not send to rank {self._channel.destination}: {error}")
            self.level.add(-item[0].numel())
            item = None  # the thread waits long for the next message; this one's memory must not wait with it


class Incoming:
    """The receiving end of a channel: at any time window + 1 messages are posted, or there and not yet used.

    level   bytes of the buffers of these
    """

    def __init__(self, channel: Channel, traffic: Traffic, latency: float) -> None:
        self._channel, self._traffic, self._latency = channel, traffic, latency
        self._ahead, self.level = traffic.window + 1, Level()
        self._room = Room(self._ahead, len(traffic.sent))
        self._coming: Iterator[Message] = iter(())
        self._posted: queue.SimpleQueue[tuple[Message, Tensor, dist.Work] | None] = queue.SimpleQueue()
        self._arrived: queue.SimpleQueue[tuple[Message, int, Came] | LinkError] = queue.SimpleQueue()
        self._unused: dict[Message, Came] = {}
        self._thread = threading.Thread(target=self._run, daemon=True, name=f"receive {channel}")
        self._thread.start()

    def begin(self) -> None:
        self._coming = iter(self._traffic.sent)
        for _ in range(self._ahead):
            self._post()

    def receive(self, message: Message) -> Arrival:
        while message not in self._unused:
            got = self._arrived.get()
            if isinstance(got, LinkError):
                raise got
            arrived, length, came = got
            self._room.note(length)
            self._unused[arrived] = came
        came = self._unused.pop(message)
        self.level.add(-came.size)  # from now on it is what an action works with
        self._post()
        return came.arrival

    def close(self) -> None:
        self._posted.put(None)
        self._thread.join()

    def _post(self) -> None:
        message = next(self._coming, None)
        if message is not None:
            buffer = torch.empty(self._room.next(), dtype=torch.uint8)
            self.level.add(buffer.numel())
            work = _group().recv([buffer], self._channel.source, _tag(self._channel))
            self._posted.put((message, buffer, work))

    def _run(self) -> None:
        try:
            while posted := self._posted.get():
                message, buffer, work = posted
                work.wait()
                at = time.perf_counter()
                head = wire.read_head(buffer)
                if head.length > buffer.numel():
                    self.level.add(head.length - buffer.numel())
                    buffer, at = self._with_rest(buffer, head.length), time.perf_counter()
                at = max(at, head.sent_at / 1e9 + self._latency)
                check_place(message, head)
                # no name for what is put: the row may go on before this thread does, and must be its only owner
                self._arrived.put((message, head.length, Came(buffer.numel(), Arrival(wire.unpack(buffer), at))))
                del posted, buffer, work
        except Exception as error:
            self._arrived.put(LinkError(f"could not receive from rank {self._channel.source}: {error}"))

    def _with_rest(self, buffer: Tensor, length: int) -> Tensor:
        """A message that was longer than the room."""
        rest = torch.empty(length - buffer.numel(), dtype=torch.uint8)
        _group().recv([rest], self._channel.source, _tag(self._channel, lane=1)).wait()
        return torch.cat([buffer, rest])


def _tag(channel: Channel, lane: int = 0) -> int:
    """One tag a kind, not one a message; the rest of a long message goes beside the receives already posted."""
    return KINDS.index(channel.kind) + len(KINDS) * lane


def _group() -> dist.ProcessGroup:
    """Its own send and recv: torch.distributed's functions check as long as a small message takes."""
    group = dist.group.WORLD
    assert group is not None
    return group
