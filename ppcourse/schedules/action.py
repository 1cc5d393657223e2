"""One entry of a plan: a stage works on a microbatch."""

import re
from enum import StrEnum
from numbers import Integral
from typing import NamedTuple

RIGHT = "an action is a stage, one of F, B, I, W, and a microbatch, as in 2F0"


class Op(StrEnum):
    """What a stage does to a microbatch. The letters are those of torch.distributed.pipelining.

    To be compared with ==, not with `is`: a plan that somebody builds may have the letters themselves.
    """

    F = "F"  # forward
    B = "B"  # full backward: I, then W
    I = "I"  # gradient of the stage's input only  # noqa: E741
    W = "W"  # gradient of the stage's weights only

    __hash__ = str.__hash__  # Enum's own is written in Python and slows every table that ops index

    @classmethod
    def _missing_(cls, value: object) -> "Op":
        raise ValueError(f"{value!r} is not an op; an op is one of F, B, I, W.")


class Action(NamedTuple):
    """`Action(2, Op.F, 0)` is stage 2, forward, microbatch 0; its text form is `2F0`."""

    stage: int
    op: Op
    microbatch: int

    def __str__(self) -> str:
        return f"{self.stage}{self.op}{self.microbatch}"

    @classmethod
    def parse(cls, text: str) -> "Action":
        """The action that `text` stands for. Raises ValueError if it is not one."""
        match = re.fullmatch(r"([0-9]{1,99})([FBIW])([0-9]{1,99})", text.strip()) if isinstance(text, str) else None
        if match is None:
            raise ValueError(f"{text!r} is not an action; {RIGHT}.")
        return cls(int(match[1]), Op(match[2]), int(match[3]))

    def checked(self) -> "Action":
        """The same action with an Op where someone wrote "F". Raises ValueError for what is no number or no op."""
        if not is_action(self):
            raise ValueError(f"{self!r} is not an action; {RIGHT}.")
        return Action(int(self.stage), Op(self.op), int(self.microbatch))


def is_action(thing: object) -> bool:
    """Whether `thing` is an Action of a whole number, an op or its letter, and a whole number."""
    if not isinstance(thing, Action):
        return False
    stage, op, microbatch = thing
    return op in [*Op] and all(isinstance(n, Integral) and not isinstance(n, bool) for n in (stage, microbatch))
