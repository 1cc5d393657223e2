"""The rules of a pipeline: what must be done before an action may start. They stand here and nowhere else.

Validator, simulator, channels and runtime all ask this file. An action leaves something behind, and other
actions need it:

    F of stage s        needs the ACTIVATION of stage s-1
    B or I of stage s   needs the ACTIVATION of stage s (its own F) and the INPUT_GRAD of stage s+1
    W of stage s        needs the INPUT_GRAD of stage s (its own I)

all of the same microbatch. What a first or a last stage would need from beyond the model it does not need.
"""

from enum import IntEnum
from typing import NamedTuple, TypeAlias

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

Bases: TypeAlias = dict[Op, tuple[int, ...]]
"""By op and stage, the number of a result of microbatch 0; add the microbatch."""


class Numbering:
    """Results as dense whole numbers, so that a million actions need lists and no dictionaries.

    (result, stage, microbatch) has the number (result · num_stages + stage) · num_microbatches + microbatch.
    From `size` to `room` are numbers of nothing, so that loops over actions need not ask whether there is
    something: first those that are needed where nothing is, then those left behind where nothing is.

    bases    all that an action leaves behind
    own      what an action needs of its own stage
    across   what it needs of another stage; by the rules that is one result at most
    leaves   what it leaves behind that others wait for
    """

    def __init__(self, num_stages: int, num_microbatches: int) -> None:
        self.num_stages, self.num_microbatches = num_stages, num_microbatches
        self.size = len(Result) * num_stages * num_microbatches
        self.room = self.size + 2 * num_microbatches
        stages = range(num_stages)
        self.bases = {op: tuple(tuple(self._of(r, s) for r in RESULTS[op]) for s in stages) for op in Op}
        self.own: Bases = {op: tuple(self._needed(op, s, across=False) for s in stages) for op in Op}
        self.across: Bases = {op: tuple(self._needed(op, s, across=True) for s in stages) for op in Op}
        self.leaves: Bases = {op: tuple(self._left(op, s) for s in stages) for op in Op}

    def results(self, action: Action) -> list[int]:
        """The numbers of what `action` leaves behind."""
        stage, op, microbatch = action
        return [base + microbatch for base in self.bases[op][stage]]

    def needs(self, action: Action) -> list[int]:
        """The numbers that must be done before `action` may start."""
        stage, op, microbatch = action
        bases = (self.own[op][stage], self.across[op][stage])
        return [base + microbatch for base in bases if base < self.size]

    def describe(self, number: int) -> tuple[Result, int, int]:
        """(result, stage, microbatch) of a number."""
        place, microbatch = divmod(number, self.num_microbatches)
        result, stage = divmod(place, self.num_stages)
        return Result(result), stage, microbatch

    def _of(self, result: Result, stage: int) -> int:
        return (result * self.num_stages + stage) * self.num_microbatches

    def _needed(self, op: Op, stage: int, across: bool) -> int:
        for offset, result in RULES[op]:
            if bool(offset) is across and 0 <= stage + offset < self.num_stages:
                return self._of(result, stage + offset)
        return self.size

    def _left(self, op: Op, stage: int) -> int:
        return next(
            (self._of(result, stage) for result in RESULTS[op] if result in AWAITED), self.size + self.num_microbatches
        )
