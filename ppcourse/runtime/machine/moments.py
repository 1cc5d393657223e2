"""Points of time on a GPU, which the host may know only once the GPU has got there. In tests something stands in."""

from typing import Any, Protocol

import torch


class Moments(Protocol):
    """Of one GPU."""

    def record(self) -> Any:
        """The moment at which the current stream gets past all that it has been told."""

    def reached(self, moment: Any) -> bool:
        """Whether it has."""

    def wait(self, moment: Any) -> None:
        """Wait, on the host, until it has."""

    def seconds(self, first: Any, second: Any) -> float:
        """From one moment to another; both must have been reached."""


class CudaMoments:
    """CUDA's timed events: half a microsecond exact."""

    def __init__(self, device: torch.device) -> None:
        self._device = device

    def record(self) -> torch.cuda.Event:
        event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        event.record(torch.cuda.current_stream(self._device))
        return event

    def reached(self, moment: torch.cuda.Event) -> bool:
        return bool(moment.query())  # type: ignore[no-untyped-call]

    def wait(self, moment: torch.cuda.Event) -> None:
        moment.synchronize()

    def seconds(self, first: torch.cuda.Event, second: torch.cuda.Event) -> float:
        return float(first.elapsed_time(second)) / 1000
