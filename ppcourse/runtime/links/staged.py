"""The staged link's ferry: GPU → pinned memory of the host → the carrier's message → pinned memory → GPU.

For ranks that share a GPU, between which NCCL makes no channel. Each direction has a stream of its own for its copies,
so neither the stream that computes nor the row waits for them.
"""

from collections.abc import Callable, Sequence

from torch import Tensor

from ppcourse.runtime.links.device_link import Form
from ppcourse.runtime.machine.streams import Streams
from ppcourse.schedules.channels import Channel

TO_HOST, TO_DEVICE = "to host", "to device"


class Staged:
    """A rank's copies from and to its GPU."""

    def __init__(self, streams: Streams) -> None:
        self._streams = streams

    def carries(self, tensor: Tensor) -> bool:
        return self._streams.holds(tensor)

    def load(self, channel: Channel, cargo: Sequence[Tensor]) -> "OnHost":
        streams = self._streams
        # the copy to the host comes later, and a layer may write at once into what it has handed on
        cargo = [tensor.clone() for tensor in cargo]
        made = streams.mark()
        hosts = [streams.new_on_host(tuple(tensor.shape), tensor.dtype) for tensor in cargo]
        with streams.aside(TO_HOST):
            streams.wait(made)
            for host, tensor in zip(hosts, cargo, strict=True):
                streams.copy(host, tensor)
                streams.uses(tensor)
            return OnHost(streams, hosts, streams.mark())

    def unload(self, channel: Channel, forms: Sequence[Form], aboard: Sequence[Tensor]) -> Callable[[], list[Tensor]]:
        streams = self._streams
        with streams.aside(TO_DEVICE):
            landed = [streams.new(form.shape, form.dtype) for form in forms]
            for tensor, came in zip(landed, aboard, strict=True):
                host = streams.new_on_host(tuple(came.shape), came.dtype)
                host.copy_(came)  # the message's own memory belongs to its sender, and is not pinned
                streams.copy(tensor, host)
            there = streams.mark()

        def land() -> list[Tensor]:
            streams.wait(there)
            for tensor in landed:
                streams.uses(tensor)
            return landed

        return land

    def finish(self) -> None:
        """Nothing: what has left has been copied before."""


class OnHost:
    """Cargo on its way into the host's memory."""

    def __init__(self, streams: Streams, hosts: list[Tensor], copied: object) -> None:
        self._streams, self._hosts, self._copied = streams, hosts, copied

    def aboard(self) -> list[Tensor]:
        self._streams.wait_on_host(self._copied)
        return self._hosts

    def depart(self) -> None:
        """Nothing: all of it goes with the note."""
