"""What links tell a GPU's streams to do; in tests something stands in for it that has no GPU and keeps its rules.

A mark is a point in a stream: everything that the stream has been told before.
"""

import functools
from collections.abc import Hashable, Iterator
from contextlib import contextmanager
from typing import Any, Protocol

import torch
from torch import Tensor


class Streams(Protocol):
    """The streams of one GPU, as one rank uses them."""

    def holds(self, tensor: Tensor) -> bool:
        """Whether it is in the GPU's memory."""

    def new(self, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        """Memory on the GPU, for use on the current stream."""

    def new_on_host(self, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        """Memory of the host that the GPU can copy from and to while the host does something else."""

    def aside(self, name: Hashable) -> Any:
        """A context: what the GPU is told in it goes to the side stream of that name."""

    def copy(self, into: Tensor, source: Tensor) -> None:
        """Copy, on the current stream, between memory of the GPU and of the host."""

    def mark(self) -> Any:
        """What the current stream has been told so far."""

    def wait(self, mark: Any) -> None:
        """Let the current stream wait until a mark is reached; the host goes on."""

    def reached(self, mark: Any) -> bool:
        """Whether it is."""

    def wait_on_host(self, mark: Any) -> None:
        """Wait, on the host, until it is."""

    def uses(self, tensor: Tensor) -> None:
        """The current stream uses memory that was made for another: it is not to be given away before."""


class CudaStreams:
    """The real ones. Each thread has a current stream of its own."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._aside: dict[Hashable, torch.cuda.Stream] = {}

    def holds(self, tensor: Tensor) -> bool:
        return tensor.device == self._device

    def new(self, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        return torch.empty(shape, dtype=dtype, device=self._device)

    def new_on_host(self, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        # pinned; torch keeps such memory for the next one, and knows which streams still copy from it
        return torch.empty(shape, dtype=dtype, pin_memory=True)

    @contextmanager
    def aside(self, name: Hashable) -> Iterator[None]:
        if name not in self._aside:
            self._aside[name] = torch.cuda.Stream(self._device)  # type: ignore[no-untyped-call]
        with torch.cuda.stream(self._aside[name]):
            yield

    def copy(self, into: Tensor, source: Tensor) -> None:
        into.copy_(source, non_blocking=True)

    def mark(self) -> torch.cuda.Event:
        # blocking: whoever waits for it on the host sleeps, and leaves the processor to other ranks
        mark = torch.cuda.Event(blocking=True)  # type: ignore[no-untyped-call]
        mark.record(torch.cuda.current_stream(self._device))
        return mark

    def wait(self, mark: torch.cuda.Event) -> None:
        torch.cuda.current_stream(self._device).wait_event(mark)

    def reached(self, mark: torch.cuda.Event) -> bool:
        return bool(mark.query())  # type: ignore[no-untyped-call]

    def wait_on_host(self, mark: torch.cuda.Event) -> None:
        mark.synchronize()

    def uses(self, tensor: Tensor) -> None:
        tensor.record_stream(torch.cuda.current_stream(self._device))


@functools.cache
def streams_of(device: torch.device) -> CudaStreams:
    """Those of this process, the same for every job.

    torch has 32 streams for a GPU, NCCL's among them, and then gives out the first again: a stream of a later job
    could be one on which a transfer waits, and what it is told would wait too.
    """
    return CudaStreams(device)
