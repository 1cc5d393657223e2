"""The checks of the exercises: a file a lesson, `lesson_04.py`, imported when the first of them is needed."""

import importlib
import pkgutil
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeAlias

Check: TypeAlias = Callable[[Any], str | None]
"""Takes the learner's answer; returns None if it is right, else one sentence, perhaps a picture below it."""


class Unsolved(Exception):  # noqa: N818 - not an error
    """Raised by a check for an answer that is not there yet."""


@dataclass(frozen=True)
class Exercise:
    """An exercise and its check.

    fact      the first line of the check's docstring: what a right answer is told
    minutes   how long it takes; difficulty, from 1 to 5, how hard it is
    limit     seconds after which the learner's code is taken to run for ever
    """

    number: str
    check: Check
    minutes: int
    difficulty: int
    limit: float

    @property
    def title(self) -> str:
        return self.check.__name__.replace("_", " ")

    @property
    def fact(self) -> str:
        return (self.check.__doc__ or "").strip().partition("\n")[0].rstrip(".")


registered: dict[str, Exercise] = {}


def grader(number: str, *, minutes: int, difficulty: int, limit: float = 10.0) -> Callable[[Check], Check]:
    """Make a function the check of exercise `number`; its name is the title, its docstring the fact.

    @grader("4.2", minutes=10, difficulty=2)
    def build_1f1b(answer):
        \"\"\"1F1B for every p up to 6 and m up to 8.\"\"\"
    """

    def register(check: Check) -> Check:
        if not check.__doc__:
            raise ValueError(f"The check of {number} has no docstring, which tells the learner what was right.")
        if number in registered and registered[number].check.__qualname__ != check.__qualname__:
            raise ValueError(f"Exercise {number} has two checks.")
        registered[number] = Exercise(number, check, minutes, difficulty, limit)
        return check

    return register


def lessons() -> list[int]:
    """The numbers of the lessons that have exercises."""
    found = (module.name.removeprefix("lesson_") for module in pkgutil.iter_modules(__path__))
    return sorted(int(name) for name in found if name.isdigit())


def exercises(lesson: int | None = None) -> dict[str, Exercise]:
    """By number, the exercises of `lesson`, or of all lessons."""
    wanted = lessons() if lesson is None else [lesson]
    for one in wanted:
        if one in lessons():
            importlib.import_module(f"{__name__}.lesson_{one:02}")
    found = {n: exercise for n, exercise in registered.items() if int(n.partition(".")[0]) in wanted}
    return dict(sorted(found.items(), key=lambda pair: [int(part) for part in pair[0].split(".")]))
