"""The caller's autocast: a run inside `with torch.autocast("cpu", dtype=torch.bfloat16):` computes so on its ranks.

A stage enters it for each forward, and leaves it before backward, as PyTorch advises. So its cache of cast weights
lasts no longer than one forward: one that ran without a graph would leave weights there that have none.
"""

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import NamedTuple

import torch

DEVICES = ("cpu", "cuda")


class Autocast(NamedTuple):
    """What one kind of device casts to."""

    device: str
    dtype: torch.dtype
    cached: bool


def here() -> tuple[Autocast, ...]:
    """What is on now, for each kind of device."""
    cached = torch.is_autocast_cache_enabled()
    on = (device for device in DEVICES if torch.is_autocast_enabled(device))
    return tuple(Autocast(device, torch.get_autocast_dtype(device), cached) for device in on)


@contextmanager
def within(casts: Sequence[Autocast], device: str = "cpu") -> Iterator[None]:
    """As where `casts` were on, on such a device."""
    with ExitStack() as stack:
        for kind, dtype, cached in casts:
            if device.startswith(kind):
                stack.enter_context(torch.autocast(kind, dtype, cache_enabled=cached))
        yield


@contextmanager
def outside() -> Iterator[None]:
    """Here nothing is cast, as in a backward."""
    with ExitStack() as stack:
        for kind, _, _ in here():
            stack.enter_context(torch.autocast(kind, enabled=False))
        yield
