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
from ppcourse.schedules.bulk import collector_paused, records
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
    sent: dict[Channel, list[int]] = {}  # the place of what makes each message
    used: dict[Channel, list[int]] = {}
    with collector_paused():
        for channel, goes in _by_channel(sends).items():
            row = waits.rows[channel.source]
            sent[channel] = list(compress(row, map(goes.__contains__, waits.lane[row.start : row.stop])))
        for channel, comes in _by_channel(uses).items():
            row = waits.rows[channel.destination]
            makers, lanes = waits.maker[row.start : row.stop], waits.lane[row.start : row.stop]
            used[channel] = list(compress(makers, map(comes.__contains__, lanes)))
        stages = [lane.stage for lane in waits.lanes]
        return {c: _traffic(c, waits, stages, sent[c], used[c]) for c in sent if sent[c]}


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


def _by_channel(way: list[Channel | None]) -> dict[Channel, set[int]]:
    """For each channel, the lanes that go this way."""
    lanes: dict[Channel, set[int]] = {}
    for lane, channel in enumerate(way):
        if channel:
            lanes.setdefault(channel, set()).add(lane)
    return lanes


def _traffic(channel: Channel, waits: Waits, stages: list[int], sent: list[int], used: list[int]) -> Traffic:
    """The traffic of messages that are given as the places of their makers; `stages`: by lane."""
    stage = map(stages.__getitem__, map(waits.lane.__getitem__, sent))
    messages = tuple(records(Message, repeat(channel), stage, map(waits.microbatch.__getitem__, sent)))
    if sent == used:
        return Traffic(messages, messages, 1)
    message = dict(zip(sent, messages, strict=True))
    return Traffic(messages, tuple(map(message.__getitem__, used)), window(sent, used))


def window(sent: list[int], used: list[int]) -> int:
    """The most receives that must be posted at once: a message used k-th but sent n-th needs n + 1 - k.

    With one fewer the sender stands at a message nobody has posted, while the receiver waits for a later one.
    """
    place = {message: n for n, message in enumerate(sent)}
    return max(place[message] + 1 - k for k, message in enumerate(used))
