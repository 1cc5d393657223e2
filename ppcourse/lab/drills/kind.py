"""A kind of card: a function that makes a card of random numbers."""

import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TypeAlias

CLOSE = 0.01  # relative: what one gets by head, rounding on the way


@dataclass(frozen=True)
class Drawn:
    """What a kind makes of its random numbers; for the fields see Card."""

    given: dict[str, float]
    text: str
    answer: float
    worked: str
    confusions: dict[str, float] = field(default_factory=dict)


Draw: TypeAlias = Callable[[random.Random], Drawn]


@dataclass(frozen=True)
class Kind:
    name: str
    draw: Draw
    lesson: int
    level: int
    unit: str
    source: str
    tolerance: float


registered: dict[str, Kind] = {}


def kind(
    name: str, *, lesson: int, level: int, unit: str = "", source: str = "", count: bool = False
) -> Callable[[Draw], Draw]:
    """Make a function of random numbers a kind of card; `count`: only the very number is right."""

    def register(draw: Draw) -> Draw:
        if name in registered:
            raise ValueError(f"There are two kinds of cards called {name}.")
        registered[name] = Kind(name, draw, lesson, level, unit, source, 0.0 if count else CLOSE)
        return draw

    return register
