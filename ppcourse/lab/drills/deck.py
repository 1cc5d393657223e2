"""Drawing a card: the same seed gives the same card everywhere."""

import difflib
import random

from ppcourse.lab.drills.card import Card
from ppcourse.lab.drills.card_kinds import ALL
from ppcourse.lab.drills.kind import registered

assert ALL  # importing the modules has registered what is in them


def kinds(level: int | None = None, lesson: int | None = None) -> tuple[str, ...]:
    """The names of the kinds of cards, easy ones first; of one level or one lesson if given."""
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
