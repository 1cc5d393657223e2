"""Messages on their way out: into the socket to another rank, which is never waited for in the row's own thread."""

import queue
import select
import socket
import struct
import threading
import time

from torch import Tensor

from ppcourse.runtime.errors import LinkError
from ppcourse.runtime.links.crates import Crate
from ppcourse.schedules.channels import Channel

NO_CRATE = -1
NOTE = struct.Struct("<dqqq")  # when it was sent (perf_counter seconds), how long it is, its crate, a new one's size
SENT_AT = struct.Struct("<d")
FILE = struct.Struct("i")


class Going:
    """A message on its way into a socket: a note, then the message itself unless it lies in a crate.

    Holds its memory no longer than until that is sent. `size`: how many bytes that is.
    """

    def __init__(self, buffer: Tensor, crate: Crate | None) -> None:
        self.size, self._crate = buffer.numel(), crate
        self._new = crate if crate and crate.file is not None else None
        size = self._new.size if self._new else 0
        self._note = bytearray(NOTE.pack(0.0, buffer.numel(), crate.number if crate else NO_CRATE, size))
        self._parts = [memoryview(self._note)] if crate else [memoryview(self._note), buffer.numpy().data]
        self._begun = False

    @property
    def under_way(self) -> bool:
        """Until the other rank has received it, or the socket has taken it all: then it is the system's."""
        return bool(self._parts) or (self._crate is not None and self._crate.under_way)

    def push(self, to: socket.socket) -> bool:
        """Send what there is room for; whether that was all."""
        files = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, FILE.pack(self._new.file))] if self._new else []
        if not self._begun:
            SENT_AT.pack_into(self._note, 0, time.perf_counter())
        try:
            sent = to.sendmsg(self._parts, files, socket.MSG_DONTWAIT)
        except BlockingIOError:
            return False
        self._begun = True
        if self._new:
            self._new.handed_over()
            self._new = None
        while self._parts and sent >= len(self._parts[0]):
            sent -= len(self._parts.pop(0))
        if self._parts:
            self._parts[0] = self._parts[0][sent:]
        return not self._parts


class Sender:
    """Sends on the socket to one rank. The row is its only user."""

    def __init__(self, rank: int, to: socket.socket) -> None:
        self._rank, self._socket = rank, to
        self._backlog: queue.Queue[Going] = queue.Queue()
        self._thread: threading.Thread | None = None
        self._error: LinkError | None = None

    def send(self, going: Going) -> None:
        """Send now what there is room for, and leave the rest to the thread."""
        if self._backlog.unfinished_tasks or not self._pushed(going):
            self._backlog.put(going)
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, daemon=True, name=f"send to rank {self._rank}")
                self._thread.start()
        if self._error:
            raise self._error

    def finish(self) -> None:
        """Wait until everything is sent."""
        self._backlog.join()
        if self._error:
            raise self._error

    def _run(self) -> None:
        room = select.poll()
        room.register(self._socket, select.POLLOUT)
        while True:
            going = self._backlog.get()
            while not self._pushed(going):
                room.poll()
            del going  # nor its crate, while the thread waits for the next
            self._backlog.task_done()

    def _pushed(self, going: Going) -> bool:
        """Whether nothing is left to be done for it."""
        try:
            return going.push(self._socket)
        except OSError as error:
            self._error = LinkError(f"could not send to rank {self._rank}: {error}")
            return True


class Afloat:
    """A rank's messages that are under way, by channel."""

    def __init__(self) -> None:
        self._going: dict[Channel, list[Going]] = {}
        self._most: dict[Channel, int] = {}

    @property
    def most(self) -> int:
        """Bytes: of each channel the most since the last reset, together."""
        return sum(self._most.values())

    def look(self) -> None:
        """Forget those that have arrived: before a crate of theirs is filled anew."""
        self._going = {channel: [g for g in going if g.under_way] for channel, going in self._going.items()}

    def add(self, channel: Channel, going: Going) -> None:
        self._going.setdefault(channel, []).append(going)
        self._most[channel] = max(self._most.get(channel, 0), sum(each.size for each in self._going[channel]))

    def reset(self) -> None:
        self.look()
        self._most = {channel: sum(each.size for each in going) for channel, going in self._going.items()}
