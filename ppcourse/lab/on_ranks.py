"""A learner's own function on real ranks, which talk through torch.distributed: to send, to receive, to hang.

    def hand_over(rank):                          [rank 0] ...          what ranks print, rank by rank
        if rank == 0:                             [None, 'received']    what each of them returned
            dist.send(torch.ones(3), 1)
            ...                                   A hang is one sentence: who stands at which line.
    on_ranks(hand_over, p=2)

The processes are new ones for each call, so that nothing is left over: neither a message nor a changed setting.
"""

import re
import sys
import traceback
from collections.abc import Callable, Mapping
from numbers import Integral
from typing import Any, NamedTuple

from ppcourse.lab.guard import last_own_line
from ppcourse.runtime.errors import RankError, briefly
from ppcourse.runtime.processes.call import Standing
from ppcourse.runtime.processes.ranks import Pool
from ppcourse.runtime.processes.shipping import check_travels, order

PATIENCE = 5.0  # seconds more for a rank to say where it stands
MOST = 16  # ranks
FRAME = re.compile(r'File "(.+)", line (\d+), in (.+)\n +(?!File ")(.+)')  # of a traceback


class CallError(RankError):
    """A function on ranks failed on one of them; that rank's own traceback follows."""

    def __str__(self) -> str:
        where = f"\nOn rank {self.rank}:\n{self.traceback.rstrip()}" if self.traceback else ""
        return f"Rank {self.rank} failed: {self.cause}\n{where}".rstrip()

    def in_short(self) -> str:
        """The same in one line, with the place in the learner's own code."""
        found = FRAME.findall(self.traceback)
        frames = [traceback.FrameSummary(file, int(n), name, line=line) for file, n, name, line in found]
        at = last_own_line(traceback.StackSummary.from_list(frames))
        cause = " ".join(self.cause.split()).rstrip(".")
        return f"Rank {self.rank} failed: {cause}{f', at {at}' if at else ''}."


class Place(NamedTuple):
    """The learner's line at which a rank stands, and whether it waits there, for another rank as a rule."""

    line: str
    waits: bool

    def __str__(self) -> str:
        return f"{'waits' if self.waits else 'is busy'} in {self.line}" if self.line else "does not say where it is"


class HangError(CallError):
    """A function on ranks did not end in time.

    places   by rank, where those stand that have not returned
    """

    def __init__(self, places: Mapping[int, Place], num_ranks: int, timeout: float) -> None:
        self.places, self.num_ranks, self.timeout = places, num_ranks, timeout
        super().__init__(min(places), None, f"no end after {timeout:g} s")

    def __str__(self) -> str:
        said = [f"rank {rank} {self.places.get(rank, 'has returned')}" for rank in range(self.num_ranks)]
        return f"No end after {self.timeout:g} s: {'; '.join(said)}."


@briefly
def on_ranks(function: Callable[[int], Any], p: int = 2, timeout: float = 10.0) -> list[Any]:
    """What function(rank) returns on each of `p` new processes, which end with the call.

    They form the default process group of torch.distributed (gloo), so the function may send and receive at once.
    It travels by value, with all that it refers to: what it changes there stays as it is here.

    Raises HangError after `timeout` seconds, CallError if a rank fails, ValueError for what cannot be run.
    """
    if not callable(function):
        raise ValueError(f"on_ranks is given {function!r:.60}, but needs a function of the rank.")
    if isinstance(p, bool) or not isinstance(p, Integral) or not 1 <= p <= MOST:
        raise ValueError(f"p, the number of ranks, is {p!r}; it must be a whole number from 1 to {MOST}.")
    if not timeout > 0:
        raise ValueError(f"The timeout is {timeout!r}; it must be a number of seconds above 0.")
    try:
        orders = [order("call", function, float(timeout))] * int(p)
    except Exception:
        check_travels({"The function": function})
        raise
    answers = _call(orders, timeout)
    places = {rank: _place(answer) for rank, answer in enumerate(answers) if isinstance(answer, Standing)}
    if places:
        raise HangError(places, len(answers), timeout)
    return answers


def _call(orders: list[bytes], timeout: float) -> list[Any]:
    """The answers of ranks of their own: a message that nobody fetched must not reach the next run."""
    pool = Pool(len(orders))
    try:
        return pool.call(orders, timeout=timeout + PATIENCE)
    except RankError as error:
        asleep = bool(error.note)  # it did not even answer where it stands, so neither does its traceback tell
        raise CallError(error.rank, None, error.cause, "" if asleep else error.traceback) from None
    finally:
        pool.kill()
        if said := pool.say():
            print(said, file=sys.stdout, flush=True)


def _place(standing: Standing) -> Place:
    return Place(last_own_line(traceback.StackSummary.from_list(standing.frames)), not standing.busy)
