"""One entry of a plan: a stage works on a microbatch."""

import re
from enum import StrEnum
from typing import NamedTuple


class Op(StrEnum):
    """What a stage does to a microbatch. The letters are those of torch.distributed.pipelining."""

    F = "F"  # forward
    B = "B"  # full backward: I, then W
    I = "I"  # gradient of the stage's input only  # noqa: E741
    W = "W"  # gradient of the stage's weights only

    __hash__ = str.__hash__  # Enum's own is written in Python and slows every table that ops index


class Action(NamedTuple):
    """`Action(2, Op.F, 0)` is stage 2, forward, microbatch 0; its text form is `2F0`."""

    stage: int
    op: Op
    microbatch: int

    def __str__(self) -> str:
        return f"{self.stage}{self.op.value}{self.microbatch}"

    @classmethod
    def parse(cls, text: str) -> "Action":
        """The action that `text` stands for. Raises ValueError if it is not one."""
        match = re.fullmatch(r"(\d+)([FBIW])(\d+)", text.strip())
        if match is None:
            right = "an action is a stage, one of F, B, I, W, and a microbatch, as in 2F0"
            raise ValueError(f"{text!r} is not an action; {right}.")
        return cls(int(match[1]), Op(match[2]), int(match[3]))
