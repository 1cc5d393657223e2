"""Which messages cross from rank to rank, in which order, and how many must be awaited ahead of need.

A channel is a pair of ranks and a kind. Its messages go in the sender's order, and the receiver posts its
receives in exactly that order: order matches messages, not tags, so the same plan runs on NCCL and on gloo.
A rank may want its messages in another order than they are sent in. Then it must have receives posted
beyond the one it wants next, or both ranks wait for ever; how many is the channel's window.
"""

from collections.abc import Callable
from enum import StrEnum
from typing import NamedTuple

from ppcourse.schedules.action import Action, Op
from ppcourse.schedules.bulk import collector_paused
from ppcourse.schedules.dependencies import RESULTS, RULES, Result
from ppcourse.schedules.schedule import Schedule


class Kind(StrEnum):
    ACTIVATION = "activation"
    GRADIENT = "gradient"


KIND_OF = {Result.ACTIVATION: Kind.ACTIVATION, Result.INPUT_GRAD: Kind.GRADIENT}


class Channel(NamedTuple):
    source: int
    destination: int
    kind: Kind


class Message(NamedTuple):
    """What `stage` (the one that made it) sends for `microbatch`, and on which channel."""

    channel: Channel
    stage: int
    microbatch: int


class Traffic(NamedTuple):
    """The messages of a channel in the order they are sent, the order they are used, and the window.

    window   the fewest receives that must be posted ahead so that the plan cannot hang; 1 if messages are
             used in the order they are sent
    """

    sent: tuple[Message, ...]
    used: tuple[Message, ...]
    window: int


def incoming(plan: Schedule, action: Action) -> Message | None:
    """The message that `action` waits for; None if what it needs is made on its own rank, or by nobody."""
    stage, op, microbatch = action
    for offset, result in RULES[op]:
        maker = stage + offset
        if offset and 0 <= maker < plan.num_stages:
            source, destination = plan.rank_of(maker, microbatch), plan.rank_of(stage, microbatch)
            if source != destination:
                return Message(Channel(source, destination, KIND_OF[result]), maker, microbatch)
    return None


def outgoing(plan: Schedule, action: Action) -> Message | None:
    """The message that `action` sends when it is done; None if no other rank needs what it leaves behind."""
    user = consumer(plan, action)
    return None if user is None else incoming(plan, user)


def consumer(plan: Schedule, action: Action) -> Action | None:
    """The action of another stage that needs what `action` leaves behind (a B stands for B or I)."""
    stage, op, microbatch = action
    for user in (Op.F, Op.B):
        for offset, result in RULES[user]:
            if offset and result in RESULTS[op] and 0 <= stage - offset < plan.num_stages:
                return Action(stage - offset, user, microbatch)
    return None


def channels(plan: Schedule) -> dict[Channel, Traffic]:
    """Every channel that the plan uses. The plan must be legal."""
    with collector_paused():
        sent, used = _in_order(plan, outgoing), _in_order(plan, incoming)
    return {c: Traffic(tuple(sent[c]), tuple(used[c]), window(sent[c], used[c])) for c in sent}


def _in_order(plan: Schedule, message: Callable[[Schedule, Action], Message | None]) -> dict[Channel, list[Message]]:
    """By channel, the messages of all actions in the order of the rows."""
    found: dict[Channel, list[Message]] = {}

    def ways(microbatch: int) -> dict[Op, list[tuple[list[Message], Message] | None]]:
        """By op and stage: where the message belongs, and what it looks like for this microbatch."""
        messages = {op: [message(plan, Action(s, op, microbatch)) for s in range(plan.num_stages)] for op in Op}
        return {op: [m and (found.setdefault(m.channel, []), m) for m in row] for op, row in messages.items()}

    near, far = ways(0), ways(plan.num_microbatches - 1)  # all others go the way of one of these
    turn = plan.placement.turn if plan.placement.opposite else plan.num_microbatches
    new = tuple.__new__  # a message in half the time
    for row in plan.rows:
        for stage, op, i in row:
            if way := (near if i < turn else far)[op][stage]:
                there, (channel, maker, _) = way
                there.append(new(Message, (channel, maker, i)))
    return {channel: there for channel, there in found.items() if there}


def window(sent: list[Message], used: list[Message]) -> int:
    """The most receives that must be posted at once: a message used k-th but sent n-th needs n + 1 - k.

    With one fewer the sender stands at a message nobody has posted, while the receiver waits for a later one.
    """
    if sent == used:
        return 1
    place = {message: n for n, message in enumerate(sent)}
    return max(place[message] + 1 - k for k, message in enumerate(used))
