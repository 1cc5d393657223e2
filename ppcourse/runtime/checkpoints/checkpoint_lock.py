"""One training at a time in a folder of checkpoints: two would each write, and remove, what the other counts on.

The lock is the system's own, on the file `.lock` there, and goes with the process that has it, whatever ends that: so
none is ever stale. The file says who has it. Under torchrun it is rank 0's, which looks after the folder.
"""

import contextlib
import os
import socket
import warnings
from pathlib import Path
from typing import TextIO

try:
    import fcntl
except ImportError:  # Windows: no lock
    fcntl = None  # type: ignore[assignment]


class Lock:
    """Of one folder; `take` it before the folder is looked into, and `release` it when all is written."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / ".lock"
        self._file: TextIO | None = None

    def take(self) -> str:
        """Who has it already, or "" if it is ours now. Raises OSError if nothing can be written in the folder."""
        while self._file is None:
            file = self._path.open("a+", encoding="utf-8")
            if owner := _owner(file):
                file.close()
                return owner
            if not _is_at(file, self._path):  # who had it has removed the file, after we had opened it
                file.close()
                continue
            self._file = file
            file.truncate(0)
            file.write(f"process {os.getpid()} on {socket.gethostname()}")
            file.flush()
        return ""

    def release(self) -> None:
        """If it is ours."""
        if self._file is not None:
            with contextlib.suppress(OSError):
                self._path.unlink()  # first, or somebody might lock a file that then is removed
            with contextlib.suppress(OSError):
                self._file.close()
            self._file = None


def _owner(file: TextIO) -> str:
    """Lock a file: "", or who has locked it."""
    try:
        if fcntl is not None:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        file.seek(0)
        return file.read() or "another process"
    except OSError as error:  # some network disks have no locks
        warnings.warn(
            f"{file.name} cannot be locked ({error.strerror}): see to it that no other training has this folder.",
            stacklevel=2,
        )
    return ""


def _is_at(file: TextIO, path: Path) -> bool:
    """Whether it is this file that has the name."""
    try:
        return os.path.samestat(os.fstat(file.fileno()), path.stat())
    except FileNotFoundError:
        return False
