"""What messages take while they are sent and awaited: one buffer a message on its way.

    posted   receives are posted one further ahead than the plan needs (channels.py), each as large as the largest
             message of its channel; this is the rule for links that are not told apart here
    gloo     so does gloo, but no buffer is smaller than GLOO_ROOM, at either end
    shared   no receive is posted: a message lies with its sender until it is wanted. But both kinds between two ranks
             come one after the other, so what comes before the one that is wanted is put aside

How many messages are on their way is a matter of time, for no sender waits. Counted is one a channel: so many there are
where every message has been received before the next one is sent, and fewer there cannot be.
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Literal, TypeAlias

from ppcourse.schedules.action import Action, Op
from ppcourse.schedules.channels import Channel, Kind, Message, Traffic, incoming, outgoing
from ppcourse.schedules.schedule import Schedule

Link: TypeAlias = Literal["posted", "gloo", "shared"]
LINKS = ("posted", "gloo", "shared")
GLOO_ROOM = 16 * 1024  # bytes that the first receives of a channel make room for


def link_of(carrier: str) -> Link:
    """How messages are awaited over what carries them, as in `Result.link`: a name, and maybe a colon and why."""
    known: dict[str, Link] = {"gloo": "gloo", "shared": "shared"}
    return known.get(carrier.partition(":")[0], "posted")


class Buffers:
    """The channels between the ranks of a plan.

    there      bytes of the message with what each stage hands on
    back       bytes of the message with the gradient that comes back for it
    link       one of LINKS

    size       of each channel, the bytes of its largest message
    count      of each channel, how many messages go through it in a step
    """

    def __init__(self, plan: Schedule, there: Sequence[float], back: Sequence[float], link: Link = "posted") -> None:
        if link not in LINKS:
            raise ValueError(f"link is {link!r}; what buffers take is known of {', '.join(LINKS)}.")
        self.plan, self.link, self.there, self.back = plan, link, there, back
        self.size: dict[Channel, float] = {}
        self.count: dict[Channel, int] = {}
        ops = (Op.F, Op.B) if plan.trains else (Op.F,)
        turns = {0: plan.num_microbatches}  # a microbatch of each direction, and how many there are
        if plan.placement.opposite:
            turns = {0: plan.placement.turn, plan.num_microbatches - 1: plan.num_microbatches - plan.placement.turn}
        for microbatch, count in turns.items():
            for action in (Action(stage, op, microbatch) for stage in range(plan.num_stages) for op in ops):
                if message := outgoing(plan, action):
                    channel = message.channel
                    self.size[channel] = max(self._size_of(message), self.size.get(channel, 0.0))
                    self.count[channel] = count + self.count.get(channel, 0)

    @property
    def mixed(self) -> bool:
        """Whether a rank sends another one both kinds."""
        return len({channel[:2] for channel in self.size}) < len(self.size)

    def received(self, traffic: Mapping[Channel, Traffic] | None) -> tuple[float, ...]:
        """For each rank, bytes of receives. Without traffic, of channels whose messages are used in their order: the
        window is 1, and nothing is put aside."""
        if self.link == "shared":
            return self._put_aside() if traffic else (0.0,) * self.plan.num_ranks
        buffers = [0.0] * self.plan.num_ranks
        for channel, size in self.size.items():
            window = traffic[channel].window if traffic else 1
            buffers[channel.destination] += min(window + 1, self.count[channel]) * self._room(size)
        return tuple(buffers)

    def sent(self) -> tuple[float, ...]:
        """For each rank, bytes of the messages on their way, one a channel."""
        out = [0.0] * self.plan.num_ranks
        for channel, size in self.size.items():
            out[channel.source] += self._room(size)
        return tuple(out)

    def _room(self, size: float) -> float:
        return max(size, GLOO_ROOM) if self.link == "gloo" else size

    def _size_of(self, message: Message) -> float:
        """A gradient belongs to what the stage before its maker has handed on."""
        return self.there[message.stage] if message.channel.kind is Kind.ACTIVATION else self.back[message.stage - 1]

    def _put_aside(self) -> tuple[float, ...]:
        """For each rank, the most bytes of messages that lay before those that it wanted, as its row goes on."""
        sent: dict[tuple[int, int], list[Message]] = defaultdict(list)
        for message in (outgoing(self.plan, action) for row in self.plan.rows for action in row):
            if message:
                sent[message.channel[:2]].append(message)
        coming = {ends: iter(messages) for ends, messages in sent.items()}
        peaks = []
        for row in self.plan.rows:
            aside: set[Message] = set()
            most = now = 0.0
            for wanted in filter(None, (incoming(self.plan, action) for action in row)):
                if wanted in aside:
                    aside.remove(wanted)
                    now -= self._size_of(wanted)
                    continue
                while (came := next(coming[wanted.channel[:2]])) != wanted:
                    aside.add(came)
                    now += self._size_of(came)
                most = max(most, now)
            peaks.append(most)
        return tuple(peaks)
