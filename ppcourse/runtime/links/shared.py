"""The link between ranks of one host: what is large lies in memory that both map, and a socket says that it came.

A rank that waits sleeps in the socket, in the row's own thread, and the sender's word wakes it: no thread comes
between, and nobody spins. Sends never wait: what a socket has no room for yet is sent by a thread.

Both kinds between two ranks share a socket. Whoever waits for a message takes those that lie before it too and
puts them aside, so any window will do.

A message has arrived when it lies in memory that the receiver can read, which is when it is sent. That a busy machine
wakes the receiver later is no part of the hop, as oversleeping is no part of a paced action (clock.py); the
receiver's start shows it wherever nothing is paced.
"""

import socket
import time
from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any, NamedTuple

from torch import Tensor

from ppcourse.runtime.errors import LinkError
from ppcourse.runtime.links.crates import Crate, Crates
from ppcourse.runtime.links.ends import KINDS, Arrival, check_place, place_of
from ppcourse.runtime.links.going import FILE, NO_CRATE, NOTE, Afloat, Going, Sender
from ppcourse.runtime.links.level import Level
from ppcourse.runtime.links.link import Parcel
from ppcourse.runtime.values import wire
from ppcourse.runtime.values.handed_on import tensors_of
from ppcourse.schedules.channels import Channel, Message, channels
from ppcourse.schedules.schedule import Schedule

INLINE = 32 * 1024  # bytes up to which a message goes through the socket itself


class Came(NamedTuple):
    """A message, and when it lay in this rank's memory (perf_counter seconds)."""

    buffer: Tensor
    at: float


class Receiver:
    """Takes messages from the socket of one rank, in the order in which they were sent."""

    def __init__(self, source: socket.socket) -> None:
        self._socket = source
        self._space = socket.CMSG_SPACE(FILE.size)
        self._crates: dict[int, Crate] = {}

    def forget(self) -> None:
        """The crates of a job that is over."""
        self._crates.clear()

    def take(self) -> Came:
        """The next message. Raises EOFError if the rank is gone."""
        note, files = bytearray(NOTE.size), list[int]()
        self._fill(memoryview(note), files)
        sent_at, length, number, size = NOTE.unpack(note)
        if number == NO_CRATE:
            buffer = wire.new_memory(length)
            return Came(buffer, self._fill(buffer.numpy().data, files) or sent_at)
        if size:
            if not files:
                raise OSError("this process has no file descriptor left for it; close some files, or raise the limit")
            self._crates[number] = crate = Crate(number, size, files[0])
            crate.handed_over()
        return Came(self._crates[number].open(length), sent_at)

    def _fill(self, room: memoryview, files: list[int]) -> float:
        """Read until `room` is full. When the last of it came (perf_counter seconds), 0.0 if all was there before."""
        last, whole, flags = 0.0, len(room), int(socket.MSG_DONTWAIT)
        while room:
            try:
                count, extra, _, _ = self._socket.recvmsg_into([room], self._space, flags)
            except BlockingIOError:
                flags = 0
                continue
            if count == 0:
                raise EOFError("its process is gone")
            if not flags or len(room) < whole:  # waited for, or sent while it was being read
                last = time.perf_counter()
            files += [FILE.unpack(data)[0] for _, _, data in extra if len(data) == FILE.size]
            room = room[count:]
        return last


class Peer:
    """Both directions between this rank and `rank`; lasts as long as the pool."""

    def __init__(self, rank: int, socket: socket.socket) -> None:
        self.sender, self.receiver = Sender(rank, socket), Receiver(socket)


class SharedLink:
    """The channels of one rank through shared memory."""

    def __init__(self, plan: Schedule, rank: int, peers: Mapping[int, Peer], latency: float = 0.0) -> None:
        self._rank, self._peers, self._latency = rank, peers, latency
        traffic = channels(plan)
        self._crates = {c.destination: Crates() for c in traffic if c.source == rank}
        self._traffic = {c: t.sent for c, t in traffic.items() if c.destination == rank}
        self._coming: dict[Channel, Iterator[Message]] = {}
        self._unused: dict[Message, tuple[int, Arrival]] = {}
        self._aside, self._afloat = Level(), Afloat()
        self.sent_messages = self.sent_bytes = 0

    @property
    def buffers(self) -> tuple[int, int]:
        return self._aside.most, self._afloat.most

    def begin(self) -> None:
        self.sent_messages = self.sent_bytes = 0
        self._aside.reset()
        self._afloat.reset()
        self._coming = {channel: iter(sent) for channel, sent in self._traffic.items()}

    def pack(self, message: Message, value: Any) -> Parcel:
        crate: Crate | None = None
        self._afloat.look()

        def memory(length: int) -> Tensor:
            nonlocal crate
            crate = self._crates[message.channel.destination].take(length) if length > INLINE else None
            return crate.fill(length) if crate else wire.new_memory(length)

        buffer = wire.pack(value, *place_of(message), memory=memory, visible=len(tensors_of(value)))
        sender, going = self._peers[message.channel.destination].sender, Going(buffer, crate)
        self._afloat.add(message.channel, going)
        return Parcel(buffer, partial(sender.send, going))

    def send(self, parcel: Parcel) -> None:
        parcel.go()
        self.sent_messages += 1
        self.sent_bytes += parcel.buffer.numel()

    def receive(self, message: Message) -> Arrival:
        while message not in self._unused:
            try:
                self._take(message)
            except Exception as error:
                raise LinkError(f"could not receive from rank {message.channel.source}: {error}") from error
        size, arrival = self._unused.pop(message)
        self._aside.add(-size)
        return arrival

    def finish(self) -> None:
        for destination in self._crates:
            self._peers[destination].sender.finish()

    def close(self) -> None:
        self._crates.clear()
        self._afloat = Afloat()
        for peer in self._peers.values():
            peer.receiver.forget()

    def _take(self, awaited: Message) -> None:
        """The next message of the rank that sends the awaited one."""
        source = awaited.channel.source
        came = self._peers[source].receiver.take()
        head = wire.read_head(came.buffer)
        channel = Channel(source, self._rank, KINDS[head.kind])
        message = next(self._coming.get(channel, iter(())), awaited)
        check_place(message, head)
        size = 0 if message == awaited else came.buffer.numel()
        self._aside.add(size)
        self._unused[message] = size, Arrival(wire.unpack(came.buffer), came.at + self._latency)
