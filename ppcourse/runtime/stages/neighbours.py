"""What a stage and the one before it keep together on one rank, as the interpreter runs them: nothing that one hands to
the other is copied, so that what both of them keep is there once.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

from torch import Tensor, nn

from ppcourse.runtime.meter import ACTIVATIONS, KEPT_FOR_W, Between, LiveBytes
from ppcourse.runtime.stages.stage import End, Stage
from ppcourse.runtime.values.handed_on import as_inputs
from ppcourse.runtime.values.together import copied


class Both(NamedTuple):
    """Bytes that two stages keep together, as time goes on.

    waiting    after F of the first one, what it hands over included
    stashed    after both F's
    halfway    after I of the second one, the gradient that it hands back included; and what W has of it
    returned   the same, when W of the second one is paid
    owed       after both I's
    """

    waiting: int
    stashed: int
    halfway: tuple[int, int]
    returned: int
    owed: int


class Neighbours:
    """Stage `number` and the one before it, for one microbatch.

    given   what the first one gets
    end     what the microbatch ends in, if the second one is the last stage
    begin   what the second one hands on → what its backward begins with
    """

    def __init__(
        self, number: int, first: Stage, second: Stage, given: Any, end: End | None, begin: Callable[[Any], Any]
    ) -> None:
        self.first, self.second = first, second
        self.one, self.two = (number - 1, 0), (number, 0)
        self.given, self.end, self.begin = given, end, begin

    def kept(self) -> Both:
        """Two passes: one in which the second one pays its W first, and one in which it does so last."""
        meter = self._fresh()
        waiting, grads = self._forward(meter)
        stashed = _held(meter, Between([self.one, self.two]))[0]
        found = self._back(meter, grads)
        halfway = _held(meter, Between([self.one], [self.two], handed=found))
        self.second.weight_grad(0)
        returned = _held(meter, Between([self.one], handed=found))[0]
        del found
        meter = self._fresh()
        found = self._back(meter, self._forward(meter)[1])
        meter.turn_to(self.one)
        meter.watch(found)
        with meter:
            self.first.input_grad(0, found)
        del found
        return Both(waiting, stashed, halfway, returned, _held(meter, Between(owed=[self.one, self.two]))[1])

    def _fresh(self) -> LiveBytes:
        for stage in (self.first, self.second):
            stage.stash.clear()
            stage.owed.clear()
            stage.losses.clear()
        return LiveBytes(nn.ModuleList([*self.first.layers.values(), *self.second.layers.values()]))

    def _forward(self, meter: LiveBytes) -> tuple[int, Any]:
        """Both F's: what the first one keeps and hands over, and what the second one's backward begins with."""
        meter.turn_to(self.one)
        given = as_inputs(copied(self.given))
        if self.one[0]:
            meter.watch(given)
        else:
            meter.leave_out((given, self.end))
        with meter:
            handed = as_inputs(self.first.forward(0, given, split=True))
        del given
        waiting = _held(meter, Between([self.one], handed=handed))[0]
        meter.turn_to(self.two)
        meter.watch(handed)
        with meter:
            output = self.second.forward(0, handed, self.end, split=True)
        return waiting, self.begin(output)

    def _back(self, meter: LiveBytes, grads: Any) -> list[Tensor | None]:
        """The second one's I."""
        meter.turn_to(self.two)
        grads = copied(grads)
        meter.watch(grads)
        with meter:
            return self.second.input_grad(0, grads)


def _held(meter: LiveBytes, between: Between) -> tuple[int, int]:
    """Until B or I, and until W."""
    meter.reset()
    meter.boundary(between)
    return int(meter.most[ACTIVATIONS]), int(meter.most[KEPT_FOR_W])
