"""The server that ranks are forked from. Loads nothing heavy: a notebook starts it while it imports the package."""

import multiprocessing
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing import forkserver, spawn
from typing import Any
from unittest.mock import patch

PRELOAD = [
    "ppcourse.runtime.process",
    "torch.fx.experimental.symbolic_shapes",  # which torch imports at a first backward
]

_one_at_a_time = threading.Lock()


def start_method() -> str:
    """forkserver: forks from a process that has imported torch and nothing else. spawn where that is not possible:
    on Windows, which cannot fork, and on macOS, whose system libraries do not survive it.
    """
    return "spawn" if sys.platform in ("darwin", "win32") else "forkserver"


def warm_up() -> None:
    """Start the server in the background, so that by the first run it has imported torch."""
    if start_method() == "forkserver":
        threading.Thread(target=_start, daemon=True, name="start forkserver").start()


def _start() -> None:
    with starting():
        forkserver.ensure_running()


@contextmanager
def starting() -> Iterator[Any]:
    """While processes are started: the context to start them from.

    Keeps multiprocessing from importing the caller's script into them: an unguarded script must work.
    """
    context = multiprocessing.get_context(start_method())
    with (
        _one_at_a_time,
        patch.object(spawn, "get_preparation_data", _without_main(spawn.get_preparation_data)),
    ):
        if start_method() == "forkserver":
            context.set_forkserver_preload(PRELOAD)
        yield context


def _without_main(prepare: Callable[[str], dict[str, Any]]) -> Callable[[str], dict[str, Any]]:
    def preparation(name: str) -> dict[str, Any]:
        return {key: value for key, value in prepare(name).items() if not key.startswith("init_main")}

    return preparation
