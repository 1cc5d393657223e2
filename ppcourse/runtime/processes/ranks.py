"""The pool of rank processes: start, reuse, watch, kill.

Ranks come from a forkserver that has imported torch once, so that four of them are up in a fraction of a
second; where there is none, they are spawned (server.py). They are kept from cell to cell, and end with the notebook's
process, whatever ends that. Everything they have in common lies in a folder of their own, which ends with them:
two notebooks never meet.
"""

import atexit
import contextlib
import os
import re
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any, TextIO

import torch

from ppcourse.runtime.errors import Failure
from ppcourse.runtime.machine import gpus
from ppcourse.runtime.machine.system import remove_folder
from ppcourse.runtime.processes import watch
from ppcourse.runtime.processes.board import Board
from ppcourse.runtime.processes.process import UP, rank_main
from ppcourse.runtime.processes.server import folder_of, starting
from ppcourse.runtime.values import wire
from ppcourse.schedules.schedule import Schedule

GRACE = 0.5  # seconds that a rank gets to tell the cause, once another has told a consequence
START_TIMEOUT = 120.0
DUMP = re.compile(r"^(?:Fatal Python error|Current thread 0x|Thread 0x)", re.MULTILINE)
LOOK_AGAIN = 0.1  # seconds between two looks at the board
IDLE_RANKS = 16  # the most processes kept without work


class Pool:
    """`num_ranks` processes that carry out orders.

    Any failure, of any rank, ends with all of them killed and one RankError.
    """

    def __init__(self, num_ranks: int) -> None:
        self.num_ranks = num_ranks
        # in the server's folder, which the server removes if this process is killed at the wrong moment
        self.folder = folder = Path(tempfile.mkdtemp(prefix="ranks-", dir=folder_of(os.getpid())))
        try:
            self.board = Board(folder / "board", num_ranks, create=True)
            logs = [folder / f"rank-{rank}.log" for rank in range(num_ranks)]
            for log in logs:
                log.touch()
            self.logs: list[TextIO] = [log.open(encoding="utf-8", errors="replace") for log in logs]
            self.unsaid = [""] * num_ranks  # printed, read, not yet shown
            self.pipes: list[Connection] = []
            self.processes: list[BaseProcess] = []
            self.alive = True
            self.used = False  # by a run before
            self.busy = False  # with a run
            self.environment = gpus.environment()
            self._start(folder)
        except BaseException:
            remove_folder(folder)
            raise

    def _start(self, folder: Path) -> None:
        try:
            with starting() as context:
                for rank in range(self.num_ranks):
                    here, there = context.Pipe()
                    arguments = (rank, self.num_ranks, there, str(folder), self.environment)
                    process = context.Process(target=rank_main, args=arguments, daemon=True, name=f"rank {rank}")
                    process.start()
                    there.close()
                    self.pipes.append(here)
                    self.processes.append(process)
            self._collect(None, START_TIMEOUT)
        except BaseException:
            self.kill()
            raise

    def call(self, orders: Sequence[bytes], plan: Schedule | None = None, timeout: float = START_TIMEOUT) -> list[Any]:
        """Give each rank its order and wait for every answer.

        Raises RankError as soon as a rank fails, and if no rank finishes an action for `timeout` seconds.
        Whatever is raised here, an interrupt too, every rank has been killed by then.
        """
        try:
            for pipe, data in zip(self.pipes, orders, strict=True):
                # in a thread: a rank that is stopped would let us wait for ever
                threading.Thread(target=_send, args=(pipe, data), daemon=True, name="send order").start()
            return self._collect(plan, timeout)
        except BaseException:
            self.kill()
            raise

    def say(self) -> str:
        """What the ranks have printed since the last time, rank by rank."""
        said = []
        for rank in range(self.num_ranks):
            text, self.unsaid[rank] = self.unsaid[rank] + self._printed(rank), ""
            said += [f"[rank {rank}] {line.rstrip()}" for line in text.splitlines()]
        return "\n".join(said)

    def healthy(self) -> bool:
        """Whether it can take orders: alive, every process still there, and GPUs chosen as they would be now."""
        return (
            self.alive
            and self.environment == gpus.environment()
            and all(process.is_alive() for process in self.processes)
        )

    def kill(self) -> None:
        """End every process, now. What they printed can still be asked for."""
        self.alive = False
        for process in self.processes:
            if process.pid is not None:
                with contextlib.suppress(Exception):
                    process.kill()
        for process in self.processes:
            with contextlib.suppress(Exception):
                process.join(5)
        for pipe in self.pipes:
            pipe.close()
        for rank, log in enumerate(self.logs):
            self.unsaid[rank] += self._printed(rank)
            log.close()
        remove_folder(self.folder)

    def _printed(self, rank: int) -> str:
        return "" if self.logs[rank].closed else self.logs[rank].read()

    def _collect(self, plan: Schedule | None, timeout: float) -> list[Any]:
        """One answer of each rank, while watching pipes, processes and the board."""
        answers: dict[int, Any] = {}
        consequences: list[Failure] = []
        last_move, done, patience = time.monotonic(), (0, 0), float("inf")
        while len(answers) < self.num_ranks:
            for rank, answer in self._ready(set(range(self.num_ranks)) - set(answers), plan):
                if isinstance(answer, Failure) and answer.consequence:
                    consequences.append(answer)
                elif isinstance(answer, Failure):
                    raise watch.told(answer)
                answers[rank] = answer
            now = time.monotonic()
            if consequences and patience == float("inf"):
                patience = now + GRACE
            if now > patience or (consequences and len(answers) == self.num_ranks):
                raise watch.told(consequences[0])
            if (count := (self.board.finished(), len(answers))) != done:
                last_move, done = now, count
            elif now - last_move > timeout:
                silent = [rank for rank in range(self.num_ranks) if rank not in answers]
                raise watch.hung(self.processes, silent, self.board, plan, timeout, self._dump)
        return [answers[rank] for rank in range(self.num_ranks)]

    def _ready(self, silent: set[int], plan: Schedule | None) -> Iterator[tuple[int, Any]]:
        """What has come from the ranks that have not answered yet; RankError if one of them is gone."""
        ends: dict[Any, int] = {self.pipes[rank]: rank for rank in silent}
        ends |= {self.processes[rank].sentinel: rank for rank in silent}
        ready = {ends[end] for end in wait(list(ends), LOOK_AGAIN)}
        for rank in sorted(ready):
            try:
                if self.pipes[rank].poll():
                    yield rank, _answer(self.pipes[rank].recv_bytes())
                    continue
            except (EOFError, OSError):
                self.processes[rank].join(1)
            if not self.processes[rank].is_alive():
                raise watch.died(rank, self.processes[rank], self.board, plan, self._dump(rank))

    def _dump(self, rank: int) -> str:
        """What faulthandler has written to the rank's log; what the rank itself printed is kept to be shown."""
        text = self.logs[rank].read()
        found = DUMP.search(text)
        end = found.start() if found else len(text)
        self.unsaid[rank] += text[:end]
        return text[end:]


def _send(pipe: Connection, data: bytes) -> None:
    # the end of a rank is noticed where answers are collected; a pipe that is closed meanwhile has no handle
    with contextlib.suppress(OSError, TypeError):
        pipe.send_bytes(data)


def _answer(data: bytes) -> Any:
    """What a rank sent: its result, or its Failure."""
    if data == UP:
        return None
    return wire.unpack(torch.frombuffer(bytearray(data), dtype=torch.uint8))


in_use = threading.RLock()  # one run at a time, from whichever thread
_pools: dict[int, Pool] = {}


def pool_of(num_ranks: int) -> Pool:
    """A pool of `num_ranks` ranks: the one kept from before, or a new one. Hand it to `done_with` in the end.

    A run may begin within another: in an iterator of batches that evaluates between two steps.
    """
    pool = _pools.get(num_ranks)
    if pool is not None and pool.busy:
        return Pool(num_ranks)
    _pools.pop(num_ranks, None)
    if pool is not None and not pool.healthy():
        pool.kill()
        pool = None
    if pool is None:
        for longest_unused in [size for size, kept in _pools.items() if not kept.busy]:
            if sum(_pools) + num_ranks > IDLE_RANKS:
                _pools.pop(longest_unused).kill()
        pool = Pool(num_ranks)
    _pools[num_ranks] = pool
    return pool


def done_with(pool: Pool) -> None:
    """Keep the pool for the next run, or end it if another one is kept."""
    pool.busy = False
    if _pools.get(pool.num_ranks) is not pool:
        pool.kill()


@atexit.register
def close_all() -> None:
    """End every rank process of this notebook."""
    while _pools:
        _pools.popitem()[1].kill()
