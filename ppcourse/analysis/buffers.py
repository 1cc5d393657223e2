"""What messages take while they are sent and awaited: one buffer a message on its way."""

from collections.abc import Mapping, Sequence

from ppcourse.schedules.action import Action, Op
from ppcourse.schedules.channels import Channel, Kind, Traffic, outgoing
from ppcourse.schedules.schedule import Schedule


class Buffers:
    """The channels between the ranks of a plan.

    boundary   bytes that each stage hands on; the gradient that comes back takes as many
    largest    of each channel, the bytes of its largest message: what a buffer must hold
    count      of each channel, how many messages go through it in a step
    """

    def __init__(self, plan: Schedule, boundary: Sequence[float]) -> None:
        self.num_ranks = plan.num_ranks
        self.largest: dict[Channel, float] = {}
        self.count: dict[Channel, int] = {}
        ops = (Op.F, Op.B) if plan.trains else (Op.F,)
        turns = {0: plan.num_microbatches}  # a microbatch of each direction, and how many there are
        if plan.placement.opposite:
            turns = {0: plan.placement.turn, plan.num_microbatches - 1: plan.num_microbatches - plan.placement.turn}
        for microbatch, count in turns.items():
            for action in (Action(stage, op, microbatch) for stage in range(plan.num_stages) for op in ops):
                if message := outgoing(plan, action):
                    size = boundary[action.stage if action.op is Op.F else action.stage - 1]
                    self.largest[message.channel] = max(size, self.largest.get(message.channel, 0.0))
                    self.count[message.channel] = count + self.count.get(message.channel, 0)

    def received(self, traffic: Mapping[Channel, Traffic] | None) -> tuple[float, ...]:
        """For each rank, bytes of posted receives: one more than the window, which is 1 if there is no traffic to
        tell, but no more than there are messages."""
        buffers = [0.0] * self.num_ranks
        for channel, size in self.largest.items():
            window = traffic[channel].window if traffic else 1
            buffers[channel.destination] += min(window + 1, self.count[channel]) * size
        return tuple(buffers)

    def sent(self, gradients_only: bool) -> tuple[float, ...]:
        """For each rank, bytes of the messages on their way, one a channel."""
        out = [0.0] * self.num_ranks
        for channel, size in self.largest.items():
            if not (gradients_only and channel.kind is Kind.ACTIVATION):
                out[channel.source] += size
        return tuple(out)
