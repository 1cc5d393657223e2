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


AWAITED = {rule.result for rules in RULES.values() for rule in rules}  # nobody waits for a WEIGHT_GRAD


class Bases(NamedTuple):
    """What concerns an op of a stage, as numbers of results of microbatch 0; add the microbatch.

    own      what it needs of its own stage
    across   what it needs of another stage; by the rules that is one result at most
    leaves   what it leaves behind that others wait for
    """

    own: int
    across: int
    leaves: int


class Numbering:
    """Results as dense whole numbers, so that a million actions need lists and no dictionaries.

    (result, stage, microbatch) has the number (result · num_stages + stage) · num_microbatches + microbatch.
    From `size` to `room` are numbers of nothing, so that loops over actions need not ask whether there is
    something: first those that are needed where nothing is, then those left behind where nothing is.

    bases    by op and stage, what it needs and what others wait for
    made     by op and stage, all that it leaves behind
    """

    def __init__(self, num_stages: int, num_microbatches: int) -> None:
        self.num_stages, self.num_microbatches = num_stages, num_microbatches
        self.size = len(Result) * num_stages * num_microbatches
        self.room = self.size + 2 * num_microbatches
        stages = range(num_stages)
        self.bases = {op: [self._bases(op, s) for s in stages] for op in Op}
        self.made = {op: [tuple(self._of(r, s) for r in RESULTS[op]) for s in stages] for op in Op}

    def results(self, action: Action) -> list[int]:
        """The numbers of what `action` leaves behind."""
        stage, op, microbatch = action
        return [base + microbatch for base in self.made[op][stage]]

    def needs(self, action: Action) -> list[int]:
        """The numbers that must be done before `action` may start."""
        stage, op, microbatch = action
        own, across, _ = self.bases[op][stage]
        return [base + microbatch for base in (own, across) if base < self.size]

    def describe(self, number: int) -> tuple[Result, int, int]:
        """(result, stage, microbatch) of a number."""
        place, microbatch = divmod(number, self.num_microbatches)
        result, stage = divmod(place, self.num_stages)
        return Result(result), stage, microbatch

    def _of(self, result: Result, stage: int) -> int:
        return (result * self.num_stages + stage) * self.num_microbatches

    def _bases(self, op: Op, stage: int) -> Bases:
        needs = {True: self.size, False: self.size}
        for offset, result in RULES[op]:
            if 0 <= stage + offset < self.num_stages:
                needs[offset != 0] = self._of(result, stage + offset)
        awaited = (self._of(result, stage) for result in RESULTS[op] if result in AWAITED)
        return Bases(needs[False], needs[True], next(awaited, self.size + self.num_microbatches))
