"""What a stage and the one before it keep together on one rank, as the interpreter runs them: nothing that one hands to
the other is copied, so that what both of them keep is there once.
"""

from collections.abc import Callable
from typing import Any

from torch import Tensor, nn

from ppcourse.runtime.handed_on import as_inputs
from ppcourse.runtime.meter import Between, LiveBytes
from ppcourse.runtime.stage import End, Stage
from ppcourse.runtime.together import copied


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

    def kept(self) -> tuple[int, int, int]:
        """Bytes that both keep together: after both F's, then after the second one's I, then after both I's."""
        meter = self._fresh()
        grads = self._forward(meter)
        stashed = _together(meter, Between(stashed=[self.one, self.two]))
        self._back(meter, grads)  # and nobody keeps it: what is handed over is no part of what is kept
        halfway = _together(meter, Between(stashed=[self.one], owed=[self.two]))
        meter = self._fresh()
        found = self._back(meter, self._forward(meter))
        meter.turn_to(self.one)
        meter.watch(found)
        with meter:
            self.first.input_grad(0, found)
        del found
        return stashed, halfway, _together(meter, Between(owed=[self.one, self.two]))

    def _fresh(self) -> LiveBytes:
        for stage in (self.first, self.second):
            stage.stash.clear()
            stage.owed.clear()
            stage.losses.clear()
        return LiveBytes(nn.ModuleList([*self.first.layers.values(), *self.second.layers.values()]))

    def _forward(self, meter: LiveBytes) -> Any:
        """Both F's, and what the second one's backward begins with."""
        meter.turn_to(self.one)
        given = as_inputs(copied(self.given))
        if self.one[0]:  # as where each is weighed alone
            meter.watch(given)
        with meter:
            handed = as_inputs(self.first.forward(0, given, split=True))
        meter.turn_to(self.two)
        meter.watch(handed)
        with meter:
            output = self.second.forward(0, handed, self.end, split=True)
        return self.begin(output)

    def _back(self, meter: LiveBytes, grads: Any) -> list[Tensor | None]:
        """The second one's I."""
        meter.turn_to(self.two)
        grads = copied(grads)
        meter.watch(grads)
        with meter:
            return self.second.input_grad(0, grads)


def _together(meter: LiveBytes, between: Between) -> int:
    meter.reset()
    meter.boundary(between)
    return int(sum(meter.most.values()))
