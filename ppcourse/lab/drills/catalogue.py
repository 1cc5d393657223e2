"""All questions: by name, by level and lesson, or drawn from a seed."""

import difflib
import random
from functools import cache

from ppcourse.lab.drills.question import Question


@cache
def bank() -> dict[str, Question]:
    """All questions by name. Loaded when first needed, for the simulator computes the numbers in them."""
    from ppcourse.lab.drills.bank import everything

    found: dict[str, Question] = {}
    for one in everything():
        if one.name in found:
            raise ValueError(f"There are two questions called {one.name}.")
        found[one.name] = one
    return found


def questions(level: int | None = None, lesson: int | None = None, asked: bool | None = None) -> tuple[Question, ...]:
    """The questions of a level, of a lesson, or only those known from real interviews; easy ones first."""
    found = [
        one
        for one in bank().values()
        if level in (None, one.level) and lesson in (None, one.lesson) and asked in (None, one.asked)
    ]
    return tuple(sorted(found, key=lambda one: (one.level, one.lesson)))


def question(name: str) -> Question:
    """The question of that name. Raises ValueError if there is none, naming the nearest one."""
    if name not in bank():
        near = difflib.get_close_matches(str(name), bank(), n=1, cutoff=0.4)
        hint = f" Did you mean {near[0]!r}?" if near else ""
        raise ValueError(f"There is no question {name!r}; drills.questions() has them all.{hint}")
    return bank()[name]


def pick(seed: int, level: int | None = None, lesson: int | None = None) -> Question:
    """A question drawn from a seed. Raises ValueError if there is none of that level and lesson."""
    found = questions(level, lesson)
    if not found:
        raise ValueError("There are no such questions; levels are 1 to 4, lessons 0 to 13.")
    return random.Random(f"pick {seed} {level} {lesson}").choice(found)
