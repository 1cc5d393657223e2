"""The links between ranks whose tensors are in a GPU's memory.

A message goes in two parts. Its note goes over a carrier, one of the links between CPUs: what the message is, with the
form of each tensor in its place. Its cargo, the tensors, goes by a ferry:

    nccl.py     over NCCL, from GPU to GPU; only the note is seen by a CPU
    staged.py   through the host's memory, in the note, where several ranks share a GPU

So shapes may differ from message to message, and the host, which runs ahead of its GPU, knows what comes before the GPU
has it. Two threads a rank keep the row from waiting: one sends, in the row's order; one receives ahead of need what
the row will want, and takes the messages of a channel in the order in which they are sent.
"""

import queue
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor
from torch.utils._pytree import tree_map

from ppcourse.runtime.errors import LinkError
from ppcourse.runtime.links.ends import Arrival
from ppcourse.runtime.links.link import Link, Parcel
from ppcourse.runtime.values.handed_on import check_crosses, tensors_of
from ppcourse.schedules.channels import Channel, Message, channels, incoming
from ppcourse.schedules.schedule import Schedule

AHEAD = 2  # messages that may have come before the row wants them
NOTHING = torch.empty(0, dtype=torch.uint8)


@dataclass(frozen=True)
class Form:
    """What stands for a tensor in a note."""

    dtype: torch.dtype
    shape: tuple[int, ...]
    requires_grad: bool

    @property
    def nbytes(self) -> int:
        return self.dtype.itemsize * torch.Size(self.shape).numel()


class Load(Protocol):
    """The cargo of a message that is sent. Used by the sending thread."""

    def aboard(self) -> list[Tensor]:
        """What of it goes with the note, once that can be read."""

    def depart(self) -> None:
        """The note is sent: send what does not go with it."""


class Ferry(Protocol):
    """How cargo gets to another rank. The row loads, a thread sends and another one unloads."""

    def carries(self, tensor: Tensor) -> bool:
        """Whether a tensor is cargo, or goes with the note as it is."""

    def load(self, channel: Channel, cargo: Sequence[Tensor]) -> Load:
        """Make what is to be sent independent of `cargo`, on the stream that made it."""

    def unload(self, channel: Channel, forms: Sequence[Form], aboard: Sequence[Tensor]) -> Callable[[], list[Tensor]]:
        """Begin to receive. What this returns is called by the row: it makes its stream wait, and gives the tensors."""

    def finish(self) -> None:
        """Wait until everything is sent."""


class Came(NamedTuple):
    message: Message
    at: float
    shell: Any
    land: Callable[[], list[Tensor]]


class DeviceLink:
    """The channels of one rank between GPUs."""

    def __init__(self, plan: Schedule, rank: int, carrier: Link, ferry: Ferry) -> None:
        self._carrier, self._ferry = carrier, ferry
        self._uses = [message for action in plan.rows[rank] if (message := incoming(plan, action))]
        self._orders = {c: t.sent for c, t in channels(plan).items() if c.destination == rank}
        self._going: queue.Queue[tuple[Message, Any, Load] | None] = queue.Queue()
        self._steps: queue.SimpleQueue[bool] = queue.SimpleQueue()
        self._came: queue.SimpleQueue[Came | LinkError] = queue.SimpleQueue()
        self._room = threading.Semaphore(AHEAD)
        self._error: LinkError | None = None
        self._cargo_bytes = 0
        self._threads = [threading.Thread(target=work, daemon=True) for work in (self._send_all, self._receive_all)]
        for thread in self._threads:
            thread.start()

    @property
    def sent_messages(self) -> int:
        return self._carrier.sent_messages

    @property
    def sent_bytes(self) -> int:
        """Of notes and cargo."""
        return self._carrier.sent_bytes + self._cargo_bytes

    @property
    def buffers(self) -> None:
        """Untold: cargo lies in the GPU's memory, where the allocator counts it with all the rest."""

    def begin(self) -> None:
        self._cargo_bytes = 0
        self._carrier.begin()
        self._steps.put(True)

    def pack(self, message: Message, value: Any) -> Parcel:
        check_crosses(value)
        cargo = [tensor for tensor in tensors_of(value) if self._ferry.carries(tensor)]
        shell = tree_map(self._form, value)
        load = self._ferry.load(message.channel, [tensor.detach() for tensor in cargo])
        return Parcel(NOTHING, partial(self._going.put, (message, shell, load)))

    def send(self, parcel: Parcel) -> None:
        if self._error:
            raise self._error
        parcel.go()

    def receive(self, message: Message) -> Arrival:
        came = self._came.get()
        if isinstance(came, LinkError):
            raise came
        assert came.message == message, f"{message} was asked for before {came.message}, which the row needs first"
        self._room.release()
        tensors = iter(came.land())

        def filled(leaf: Any) -> Any:
            return next(tensors).requires_grad_(leaf.requires_grad) if isinstance(leaf, Form) else leaf

        return Arrival(tree_map(filled, came.shell), came.at)

    def finish(self) -> None:
        self._going.join()
        if self._error:
            raise self._error
        self._ferry.finish()
        self._carrier.finish()

    def close(self) -> None:
        self._going.put(None)
        self._steps.put(False)
        for thread in self._threads:
            thread.join()
        self._carrier.close()

    def _form(self, leaf: Any) -> Any:
        if not (isinstance(leaf, Tensor) and self._ferry.carries(leaf)):
            return leaf
        return Form(leaf.dtype, tuple(leaf.shape), leaf.requires_grad)

    def _send_all(self) -> None:
        while going := self._going.get():
            try:
                if not self._error:
                    self._send(*going)
            except Exception as error:
                self._error = LinkError(f"could not send to rank {going[0].channel.destination}: {error}")
            finally:
                del going  # the thread waits long for the next message; this one's memory must not wait with it
                self._going.task_done()

    def _send(self, message: Message, shell: Any, load: Load) -> None:
        aboard = load.aboard()
        self._carrier.send(self._carrier.pack(message, (shell, aboard)))
        load.depart()
        if not aboard:
            self._cargo_bytes += sum(form.nbytes for form in _forms(shell))

    def _receive_all(self) -> None:
        while self._steps.get():
            coming = {channel: iter(sent) for channel, sent in self._orders.items()}
            early: dict[Message, Came] = {}
            for message in self._uses:
                self._room.acquire()
                try:
                    while message not in early:
                        came = self._take(coming[message.channel])
                        early[came.message] = came
                except Exception as error:
                    self._came.put(LinkError(f"could not receive from rank {message.channel.source}: {error}"))
                    return
                self._came.put(early.pop(message))

    def _take(self, coming: Iterator[Message]) -> Came:
        """The next message of a channel."""
        message = next(coming)
        (shell, aboard), at = self._carrier.receive(message)
        return Came(message, at, shell, self._ferry.unload(message.channel, _forms(shell), aboard))


def _forms(shell: Any) -> list[Form]:
    found: list[Form] = []
    tree_map(lambda leaf: found.append(leaf) if isinstance(leaf, Form) else None, shell)
    return found
