"""The server that ranks are forked from. Loads nothing heavy: a notebook starts it while it imports the package."""

import atexit
import functools
import multiprocessing
import os
import shutil
import signal
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing import forkserver, spawn, util
from typing import Any
from unittest.mock import patch

PRELOAD = [
    "ppcourse.runtime.processes.tidy",
    "ppcourse.runtime.processes.process",
    "torch.fx.experimental.symbolic_shapes",  # which torch imports at a first backward
]

FOLDER = "PPCOURSE_SERVER_FOLDER"
SOCKET_PATH = 60  # characters of a folder from which on a socket in it has no valid address

_one_at_a_time = threading.Lock()


@functools.cache
def folder_of(process: int) -> str:
    """Where the socket lies at which this process asks the server for ranks, and what these have in common."""
    usual = tempfile.gettempdir()
    folder = os.environ[FOLDER] = tempfile.mkdtemp(
        prefix="ppcourse-", dir=usual if len(usual) < SOCKET_PATH else "/tmp"
    )
    atexit.register(_remove, folder, process)  # tidy.py does it if this process is killed
    return folder


def _remove(folder: str, owner: int) -> None:
    if os.getpid() == owner:  # and not a fork of it, which inherits this
        shutil.rmtree(folder, ignore_errors=True)


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
        pass


@contextmanager
def starting() -> Iterator[Any]:
    """While processes are started: the context to start them from.

    Keeps multiprocessing from importing the caller's script into them: an unguarded script must work.
    """
    context = multiprocessing.get_context(start_method())
    with (
        _one_at_a_time,
        patch.object(spawn, "get_preparation_data", _without_main(spawn.get_preparation_data)),
        patch.object(util, "get_temp_dir", lambda: folder_of(os.getpid())),
    ):
        if start_method() == "forkserver":
            context.set_forkserver_preload(PRELOAD)
            with _interrupts_held():
                forkserver.ensure_running()
        yield context


@contextmanager
def _interrupts_held() -> Iterator[None]:
    """A Ctrl-C goes to all processes of a notebook; the server, which inherits this, must not end in the middle of
    importing torch.
    """
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _without_main(prepare: Callable[[str], dict[str, Any]]) -> Callable[[str], dict[str, Any]]:
    def preparation(name: str) -> dict[str, Any]:
        return {key: value for key, value in prepare(name).items() if not key.startswith("init_main")}

    return preparation
