"""Which messages cross from rank to rank, in which order, and how many must be awaited ahead of need.

A channel is a pair of ranks and a kind. Its messages go in the sender's order, and the receiver posts its
receives in exactly that order: order matches messages, not tags, so the same plan runs on NCCL and on gloo.
A rank may want its messages in another order than they are sent in. Then it must have receives posted
beyond the one it wants next, or both ranks wait for ever; how many is the channel's window.
"""

from enum import StrEnum
from itertools import compress, repeat
from typing import NamedTuple

from ppcourse.schedules.action import Action, Op
from ppcourse.schedules.bulk import collector_paused
from ppcourse.schedules.dependencies import RESULTS, RULES, Result
from ppcourse.schedules.schedule import Schedule
from ppcourse.schedules.waits import Waits, waits_of


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
    waits = waits_of(plan)
    sends, uses = ways(waits)
    sent: dict[Channel, list[Message]] = {}
    used: dict[Channel, list[Message]] = {}
    with collector_paused():
        message = _messages(waits, sends)
        for channel, these in _by_channel(sends).items():
            row = slice(waits.rows[channel.source].start, waits.rows[channel.source].stop)
            sent[channel] = list(compress(message[row], map(these.__getitem__, waits.lane[row])))
        for channel, these in _by_channel(uses).items():
            row = slice(waits.rows[channel.destination].start, waits.rows[channel.destination].stop)
            makers = compress(waits.maker[row], map(these.__getitem__, waits.lane[row]))
            used[channel] = list(map(message.__getitem__, makers))
        return {c: Traffic(tuple(sent[c]), tuple(used[c]), window(sent[c], used[c])) for c in sent if sent[c]}


def ways(waits: Waits) -> tuple[list[Channel | None], list[Channel | None]]:
    """By lane, the channel on which it sends what it leaves behind, and the one on which comes what it needs.

    None for what is made on its own rank, or is needed by nobody.
    """
    makers = {(lane.leaves, lane.far): lane.rank for lane in waits.lanes}
    uses: list[Channel | None] = []
    for lane in waits.lanes:
        maker = makers.get((lane.needs, lane.far), lane.rank)
        kind = Kind.ACTIVATION if lane.op is Op.F else Kind.GRADIENT
        uses.append(None if maker == lane.rank else Channel(maker, lane.rank, kind))
    users = {(lane.needs, lane.far): channel for lane, channel in zip(waits.lanes, uses, strict=True) if channel}
    return [users.get((lane.leaves, lane.far)) for lane in waits.lanes], uses


def _messages(waits: Waits, sends: list[Channel | None]) -> list[Message]:
    """By place, the message of what the action there leaves behind (on no channel if it stays where it is)."""
    stages = [lane.stage for lane in waits.lanes]
    columns = (map(column.__getitem__, waits.lane) for column in (sends, stages))
    parts = zip(*columns, waits.microbatch, strict=True)
    return list(map(tuple.__new__, repeat(Message), parts))  # a message in half the time


def _by_channel(way: list[Channel | None]) -> dict[Channel, bytearray]:
    """For each channel, by lane: 1 if that goes this way, 0 if not."""
    lanes: dict[Channel, bytearray] = {}
    for lane, channel in enumerate(way):
        if channel:
            lanes.setdefault(channel, bytearray(len(way)))[lane] = 1
    return lanes


def window(sent: list[Message], used: list[Message]) -> int:
    """The most receives that must be posted at once: a message used k-th but sent n-th needs n + 1 - k.

    With one fewer the sender stands at a message nobody has posted, while the receiver waits for a later one.
    """
    if sent == used:
        return 1
    place = {message: n for n, message in enumerate(sent)}
    return max(place[message] + 1 - k for k, message in enumerate(used))
