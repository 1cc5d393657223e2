"""Memory that two ranks map. A crate carries a message, and goes back empty to be filled again.

The sending rank makes crates as it needs them and packs into them. The receiving rank's tensors lie in them, and
when the last tensor of a message is gone, its crate is empty. So a message is copied once, and nobody writes into
what another still reads.

A crate is an anonymous file (memfd_create): it takes nothing of /dev/shm, whose size in a container is 64 MB, and
is gone with the last process that maps it, whatever ends that. Its first bytes are a mark, the message follows.
"""

import contextlib
import mmap
import os
import weakref

import numpy as np
import torch
from torch import Tensor

from ppcourse.runtime.values.wire import ALIGN

EMPTY, FULL, TAKEN = 0, 1, 2
MOST = 64  # crates for one rank; each costs both sides a file descriptor, of which a process often has 1,024


class Crate:
    """One piece of memory. `file` is what to hand to the other rank, or None once that is done."""

    def __init__(self, number: int, size: int, file: int) -> None:
        self.number, self.size = number, size
        self.file: int | None = file
        self._memory = mmap.mmap(file, size)

    def handed_over(self) -> None:
        """Both ranks map it."""
        if self.file is not None:
            os.close(self.file)
            self.file = None

    @property
    def empty(self) -> bool:
        return self._memory[0] == EMPTY

    @property
    def under_way(self) -> bool:
        """Whether there is a message in it that the other rank has not received yet."""
        return self._memory[0] == FULL

    def fill(self, length: int) -> Tensor:
        """Room for a message, which the other rank will give back."""
        self._memory[0] = FULL
        return torch.frombuffer(self._memory, dtype=torch.uint8, count=length, offset=ALIGN)

    def open(self, length: int) -> Tensor:
        """The message in it; once nothing refers to its memory any more, the crate is empty."""
        self._memory[0] = TAKEN
        inside = np.frombuffer(self._memory, np.uint8, count=length, offset=ALIGN)
        weakref.finalize(inside, self._give_back, os.getpid()).atexit = False
        return torch.from_numpy(inside)

    def _give_back(self, owner: int) -> None:
        if os.getpid() == owner:  # and not a fork of it, whose copy of a tensor says nothing
            self._memory[0] = EMPTY


class Crates:
    """All crates from one rank to another, on the side that makes them."""

    def __init__(self) -> None:
        self._crates: list[Crate] = []

    def take(self, length: int) -> Crate | None:
        """An empty crate for `length` bytes: the smallest there is, or a new one; None if there can be no more."""
        empty = sorted((crate for crate in self._crates if crate.empty), key=lambda crate: crate.size)
        fitting = [crate for crate in empty if crate.size >= ALIGN + length]
        if fitting:
            return fitting[0]
        with contextlib.suppress(OSError):  # no descriptor or no memory left
            if len(self._crates) < MOST:
                self._crates.append(_new(len(self._crates), length))
                return self._crates[-1]
            if empty:  # too small: messages have grown
                number = empty[0].number
                self._crates[number] = _new(number, length)
                return self._crates[number]
        return None


def _new(number: int, length: int) -> Crate:
    """A crate with room to grow, which costs nothing until it is used."""
    size = 1 << (ALIGN + length - 1).bit_length()
    file = os.memfd_create("ppcourse crate")
    try:
        os.truncate(file, size)
        return Crate(number, size, file)
    except BaseException:
        os.close(file)
        raise
