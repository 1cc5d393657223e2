"""The kinds of cards, and drawing one: the same seed gives the same card everywhere."""

import difflib
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TypeAlias

from ppcourse.lab.drills.card import Card

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


def kinds(level: int | None = None, lesson: int | None = None) -> tuple[str, ...]:
    """The names of the kinds of cards, easy ones first; of one level or one lesson if given."""
    from ppcourse.lab.drills.card_kinds import ALL

    assert ALL  # importing the modules has registered what is in them
    found = [one for one in registered.values() if level in (None, one.level) and lesson in (None, one.lesson)]
    return tuple(one.name for one in sorted(found, key=lambda one: (one.level, one.lesson, one.name)))


def card(kind: str, seed: int) -> Card:
    """The card of this kind and seed. Raises ValueError for a kind that is not there, naming the nearest one."""
    if kind not in kinds():
        near = difflib.get_close_matches(str(kind), registered, n=1, cutoff=0.4)
        hint = f" Did you mean {near[0]!r}?" if near else ""
        raise ValueError(f"There is no kind of card {kind!r}; drills.kinds() names them.{hint}")
    made = registered[kind]
    drawn = made.draw(random.Random(f"{kind} {seed}"))  # a text as seed is the same on every machine
    told = {
        sentence: wrong
        for sentence, wrong in drawn.confusions.items()
        if abs(wrong - drawn.answer) > 2 * made.tolerance * abs(drawn.answer) + 1e-9
    }
    return Card(
        kind,
        seed,
        made.lesson,
        made.level,
        drawn.given,
        drawn.text,
        drawn.answer,
        made.unit,
        made.tolerance,
        drawn.worked,
        told,
        made.source,
    )


def draw(seed: int, level: int | None = None, lesson: int | None = None) -> Card:
    """A card of any kind, or of a level, or of a lesson. Raises ValueError if there are none."""
    names = kinds(level, lesson)
    if not names:
        lessons = sorted({one.lesson for one in registered.values() if level in (None, one.level)})
        raise ValueError(f"There are no such cards; levels are 1 to 4, lessons with cards {lessons}.")
    return card(random.Random(f"draw {seed} {level} {lesson}").choice(names), seed)
