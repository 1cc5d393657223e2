"""From what is left of a failed step to its cause, in words: who, at which action, and why."""

import os
import signal
import time
from collections.abc import Callable, Sequence
from multiprocessing.process import BaseProcess

import psutil

from ppcourse.runtime.errors import Failure, RankError, from_dump
from ppcourse.runtime.processes.board import Board, Note, State
from ppcourse.schedules.action import Action
from ppcourse.schedules.channels import incoming
from ppcourse.schedules.schedule import Schedule


def told(failure: Failure) -> RankError:
    """The error for a failure that the rank itself reported."""
    return RankError(failure.rank, failure.action, failure.cause, failure.traceback)


def died(rank: int, process: BaseProcess, board: Board, plan: Schedule | None, dump: str) -> RankError:
    """The error for a process that is gone without a word, but for what faulthandler may have dumped."""
    code = process.exitcode or 0
    if code >= 0:
        cause = f"its process ended with exit code {code}"
    else:
        cause = f"its process was killed by {signal.Signals(-code).name}"
        if -code == signal.SIGKILL:
            cause += " (which the system also sends when memory runs out)"
    return RankError(rank, _action(plan, rank, board.read(rank)), cause, from_dump(dump))


def hung(
    processes: Sequence[BaseProcess],
    silent: Sequence[int],
    board: Board,
    plan: Schedule | None,
    timeout: float,
    dump_of: Callable[[int], str],
) -> RankError:
    """The error for a step in which nothing moves. The culprit, of those that have not answered: a stopped rank, or
    the one longest at work, or one that has not come as far as to wait for others.
    """
    notes = [board.read(rank) for rank in range(len(processes))]
    stopped = [rank for rank in silent if _is_stopped(processes[rank])]
    at_work = [rank for rank in silent if notes[rank].state is State.RUNNING]
    outside = [rank for rank in silent if notes[rank].state is State.IDLE]
    first = min(stopped or at_work or outside or silent, key=lambda rank: notes[rank].since)
    why = ", and its process is stopped" if stopped else ", and it was at work all that time" if at_work else ""
    places = "\n".join(f"  rank {rank} {_where(plan, rank, note)}" for rank, note in enumerate(notes))
    os.kill(processes[first].pid or 0, signal.SIGUSR1)  # to which a rank answers with where it is
    time.sleep(0.2)
    return RankError(
        first,
        _action(plan, first, notes[first]),
        f"nothing moved for {timeout:g} s{why}",
        from_dump(dump_of(first)),
        f"Where every rank stood:\n{places}",
    )


def _where(plan: Schedule | None, rank: int, note: Note) -> str:
    action = _action(plan, rank, note)
    if plan is None or action is None:
        return "was between two steps"
    place = f"{action}, its action {note.position + 1} of {len(plan.rows[rank])}"
    if note.state is State.RUNNING:
        return f"was running {place}"
    message = incoming(plan, action)
    what = f"the {message.channel.kind} of rank {message.channel.source}" if message else "its turn"
    return f"waited for {what} to start {place}"


def _action(plan: Schedule | None, rank: int, note: Note) -> Action | None:
    if plan is None or note.state is State.IDLE:
        return None
    return plan.rows[rank][note.position]


def _is_stopped(process: BaseProcess) -> bool:
    try:
        return psutil.Process(process.pid).status() == psutil.STATUS_STOPPED
    except psutil.Error:
        return False
