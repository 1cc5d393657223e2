"""Whether all ranks that torchrun has started were told the same: every host has a command line of its own."""

import socket
from collections.abc import Mapping
from typing import Any

from ppcourse.runtime.checkpoints.saving_here import gathered


def check_alike(told: Mapping[str, Any]) -> None:
    """Every rank calls this with what it was told, by name.

    Raises ValueError, the same on every rank, for the first thing that not all were told alike: ranks that go on would
    wait for messages that nobody sends.
    """
    (_, first), *others = gathered((socket.gethostname(), dict(told)))
    for rank, (host, other) in enumerate(others, 1):
        for name, value in first.items():
            if other[name] != value:
                raise ValueError(
                    f"{name} is {value} for rank 0, but {other[name]} for rank {rank} on {host}; give every host the"
                    " same command, with --link if their GPUs differ."
                )
