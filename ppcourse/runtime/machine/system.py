"""What the operating system has to do for rank processes: die in time, talk into a file, find each other."""

import ctypes
import faulthandler
import os
import shutil
import signal
import sys
import sysconfig
import threading
from datetime import timedelta
from multiprocessing import forkserver
from multiprocessing.connection import wait
from multiprocessing.process import parent_process
from pathlib import Path
from typing import Any

FOREVER = timedelta(days=365)  # gloo's own timeout; the driver holds the deadline
PR_SET_PDEATHSIG, PR_SET_TIMERSLACK = 1, 29


def die_with_parent() -> None:
    """End this process as soon as the notebook's process is gone, whatever ended that."""
    parent = parent_process()
    if parent is None:
        return

    def watch() -> None:
        wait([parent.sentinel])
        os._exit(1)

    threading.Thread(target=watch, daemon=True, name="watch parent").start()
    if sys.platform == "linux" and os.getppid() != parent.pid:
        _let_go_of_server()
        # Our parent is the forkserver, which ends with the notebook's process. The kernel's own signal also
        # reaches a rank that is stopped or holds the interpreter's lock. (Under spawn it would come when the
        # thread that started us ends, too early.)
        _prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def _let_go_of_server() -> None:
    """multiprocessing hands every child the pipe that keeps the server alive, and so the server would outlive us."""
    server: Any = forkserver._forkserver
    alive = getattr(server, "_forkserver_alive_fd", None)
    if alive is not None:
        os.close(alive)
        server._forkserver_alive_fd = None


def sleep_precisely() -> None:
    """Let this thread's sleeps end within about a microsecond of their time instead of 50 (Linux)."""
    if sys.platform == "linux":
        _prctl(PR_SET_TIMERSLACK, 1)


def speak_into(log: Path) -> None:
    """Send what this process prints, native code included, to a file that the driver reads."""
    descriptor = os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    os.dup2(descriptor, 1)
    os.dup2(descriptor, 2)
    os.close(descriptor)
    sys.stdout = open(1, "w", buffering=1, encoding="utf-8", errors="replace", closefd=False)  # noqa: SIM115
    sys.stderr = open(2, "w", buffering=1, encoding="utf-8", errors="replace", closefd=False)  # noqa: SIM115
    faulthandler.enable(sys.stderr)
    if hasattr(signal, "SIGUSR1"):  # the driver's question to a rank that hangs: where are you?
        faulthandler.register(signal.SIGUSR1, sys.stderr)


def gloo_environment() -> dict[str, str]:
    """Ranks of one host talk over its loopback interface, whatever its name and its networks resolve to."""
    return {"GLOO_SOCKET_IFNAME": "lo0" if sys.platform == "darwin" else "lo"}


def forget_modules(known: set[str]) -> None:
    """Drop modules imported since `known` was noted that are a learner's own files, which may change."""
    installed = tuple({sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")})
    for name in set(sys.modules) - known:
        file = getattr(sys.modules[name], "__file__", None)
        if file and not file.startswith(installed):
            del sys.modules[name]


def remove_folder(folder: Path) -> None:
    shutil.rmtree(folder, ignore_errors=True)


def _prctl(option: int, value: int) -> None:
    ctypes.CDLL(None).prctl(option, value, 0, 0, 0)
