"""Would a plan hang where sends block? The deadlock of plans that are legal.

Our ranks never wait for a send: they hand a message over and go on. A runtime that sends and receives in line,
each send waiting until the other rank has come to the receive of that very message, can come to stand with a
plan that breaks no rule: two ranks that both want to send first. That is why others pair a send with a receive,
or let ranks of even and odd number begin differently.
"""

from typing import NamedTuple

from ppcourse.schedules.action import Action
from ppcourse.schedules.channels import Message, incoming, outgoing
from ppcourse.schedules.schedule import Schedule
from ppcourse.schedules.validate import Violation, check


class Call(NamedTuple):
    """A send or a receive in the row of a rank, and the action that it follows or that it is for."""

    sends: bool
    message: Message
    position: int
    action: Action

    @property
    def peer(self) -> int:
        return self.message.channel.destination if self.sends else self.message.channel.source

    def __str__(self) -> str:
        return f"{'send after' if self.sends else 'receive for'} {self.action}"


def blocking(plan: Schedule) -> Violation | None:
    """Where ranks come to stand that send and receive in line, or None if the plan runs to its end even so.

    Each action is preceded by the receive and followed by the send that it takes; a send and its receive happen
    together, or not at all. The violation has the code `blocking` and names the actions of a circle of ranks.

    Linear in the number of actions. Raises ScheduleError for a plan that breaks a rule anyway.
    """
    check(plan)
    rows = [_calls(plan, row) for row in plan.rows]
    at = [0] * plan.num_ranks
    awake = list(range(plan.num_ranks))
    while awake:
        rank = awake.pop()
        while at[rank] < len(rows[rank]):
            call = rows[rank][at[rank]]
            there = rows[call.peer][at[call.peer] : at[call.peer] + 1]
            if not there or there[0].message != call.message:
                break
            at[rank] += 1
            at[call.peer] += 1
            awake.append(call.peer)
    standing = {rank: rows[rank][n] for rank, n in enumerate(at) if n < len(rows[rank])}
    return _violation(standing) if standing else None


def _calls(plan: Schedule, row: tuple[Action, ...]) -> list[Call]:
    calls = []
    for position, action in enumerate(row):
        if received := incoming(plan, action):
            calls.append(Call(False, received, position, action))
        if sent := outgoing(plan, action):
            calls.append(Call(True, sent, position, action))
    return calls


def _violation(standing: dict[int, Call]) -> Violation:
    """Every rank that stands waits for another that stands, so following them comes round."""
    path: list[int] = []
    rank = min(standing)
    while rank not in path:
        path.append(rank)
        rank = standing[rank].peer
    circle = path[path.index(rank) :]
    said = [f"rank {rank} stands at its {standing[rank]} and waits for rank {standing[rank].peer}" for rank in circle]
    sentence = f"Where sends block, this plan hangs: {'; '.join(said)}."
    return Violation("blocking", circle[0], standing[circle[0]].position, sentence)
