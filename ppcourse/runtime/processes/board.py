"""What each rank is doing, written where it survives the rank: a small file that all map into memory.

The driver reads it to see whether anything moves, and to say what a rank was at when it was killed.
"""

import mmap
import struct
import time
from enum import IntEnum
from pathlib import Path
from typing import NamedTuple

RECORD = struct.Struct("<qqqd")


class State(IntEnum):
    IDLE = 0  # no step is running
    WAITING = 1  # for what the action at `position` needs
    RUNNING = 2  # the action at `position`


class Note(NamedTuple):
    """state, position in the rank's row, actions finished since the pool started, since when (perf_counter)."""

    state: State
    position: int
    finished: int
    since: float


class Board:
    def __init__(self, path: Path, num_ranks: int, create: bool = False) -> None:
        if create:
            path.write_bytes(b"\0" * RECORD.size * num_ranks)
        with path.open("r+b") as file:
            self._map = mmap.mmap(file.fileno(), RECORD.size * num_ranks)
        self.num_ranks = num_ranks

    def write(self, rank: int, state: State, position: int, finished: int) -> None:
        RECORD.pack_into(self._map, rank * RECORD.size, state, position, finished, time.perf_counter())

    def read(self, rank: int) -> Note:
        state, position, finished, since = RECORD.unpack_from(self._map, rank * RECORD.size)
        return Note(State(state), position, finished, since)

    def finished(self) -> int:
        """Actions finished on all ranks."""
        return sum(self.read(rank).finished for rank in range(self.num_ranks))

    def close(self) -> None:
        self._map.close()
