"""For code that makes a million small things at once."""

import gc
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import repeat

from ppcourse.schedules.action import Action, Op


@contextmanager
def collector_paused() -> Iterator[None]:
    """Without looking for garbage in between: actions and spans never form cycles, and going through a million
    of them again and again takes longer than making them."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


def lane(stage: int, op: Op, m: int) -> list[Action]:
    """The actions of a stage that are this op, for microbatches 0 to m - 1, without a call of Action for each."""
    return list(map(tuple.__new__, repeat(Action), zip(repeat(stage), repeat(op), range(m), strict=False)))
