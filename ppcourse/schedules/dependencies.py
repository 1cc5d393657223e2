"""The rules of a pipeline: what must be done before an action may start. They stand here and nowhere else.

Validator, simulator, channels and runtime all ask this file. An action leaves something behind, and other
actions need it:

    F of stage s        needs the ACTIVATION of stage s-1
    B or I of stage s   needs the ACTIVATION of stage s (its own F) and the INPUT_GRAD of stage s+1
    W of stage s        needs the INPUT_GRAD of stage s (its own I)

all of the same microbatch. What a first or a last stage would need from beyond the model it does not need.
"""

from enum import IntEnum
from typing import NamedTuple

from ppcourse.schedules.action import Action, Op


class Result(IntEnum):
    """What an action leaves behind."""

    ACTIVATION = 0
    INPUT_GRAD = 1
    WEIGHT_GRAD = 2


class Rule(NamedTuple):
    """Needs `result` of the stage `offset` further on in the data flow."""

    offset: int
    result: Result


RULES: dict[Op, tuple[Rule, ...]] = {
    Op.F: (Rule(-1, Result.ACTIVATION),),
    Op.B: (Rule(0, Result.ACTIVATION), Rule(+1, Result.INPUT_GRAD)),
    Op.I: (Rule(0, Result.ACTIVATION), Rule(+1, Result.INPUT_GRAD)),
    Op.W: (Rule(0, Result.INPUT_GRAD),),
}

RESULTS: dict[Op, tuple[Result, ...]] = {
    Op.F: (Result.ACTIVATION,),
    Op.B: (Result.INPUT_GRAD, Result.WEIGHT_GRAD),
    Op.I: (Result.INPUT_GRAD,),
    Op.W: (Result.WEIGHT_GRAD,),
}


class Numbering:
    """Results as dense whole numbers, so that a million actions need lists and no dictionaries.

    (result, stage, microbatch) has the number (result · num_stages + stage) · num_microbatches + microbatch.
    From `size` to `room` are numbers of nothing: what an action needs that needs nothing.
    """

    def __init__(self, num_stages: int, num_microbatches: int) -> None:
        self.num_stages, self.num_microbatches = num_stages, num_microbatches
        self.size = len(Result) * num_stages * num_microbatches
        self.room = self.size + num_microbatches

    def results(self, action: Action) -> list[int]:
        """The numbers of what `action` leaves behind."""
        stage, op, microbatch = action
        return [self._base(stage, result) + microbatch for result in RESULTS[op]]

    def needs(self, action: Action) -> list[int]:
        """The numbers that must be done before `action` may start; what is made on its own stage comes first."""
        stage, op, microbatch = action
        makers = ((stage + offset, result) for offset, result in RULES[op])
        return [self._base(maker, result) + microbatch for maker, result in makers if 0 <= maker < self.num_stages]

    def ends(self, stage: int, op: Op) -> tuple[int, int]:
        """For microbatch 0: the last of what an op of a stage needs, and the first of what it leaves behind.

        The last that it needs is what another stage makes, if there is such: for that, the microbatch came by here on
        its way down. And of what a B leaves behind others wait for the first, its input gradient.
        """
        last = self.size
        for offset, result in RULES[op]:
            if 0 <= stage + offset < self.num_stages:
                last = self._base(stage + offset, result)
        return last, self._base(stage, RESULTS[op][0])

    def describe(self, number: int) -> tuple[Result, int, int]:
        """(result, stage, microbatch) of a number."""
        place, microbatch = divmod(number, self.num_microbatches)
        result, stage = divmod(place, self.num_stages)
        return Result(result), stage, microbatch

    def _base(self, stage: int, result: Result) -> int:
        return (result * self.num_stages + stage) * self.num_microbatches
