"""A mock interview against the clock: questions and cards drawn from a seed, easy ones first.

interview = mock(seed=7)      45 minutes; mock(seed=7, minutes=15) is a short one
interview.next()              asks; the clock of the first question starts the interview
interview.follow_up()         what they ask next
interview.reveal()            answer and rubric; for a card its solution
interview.score(3)            your points for a question, or
interview.answer("27.3%")     your answer to a card
interview.report()            how it went
"""

import random
import time
from collections.abc import Callable, Iterator
from itertools import cycle
from typing import Any

from ppcourse.lab import progress
from ppcourse.lab.drills import scores
from ppcourse.lab.drills.card import Card
from ppcourse.lab.drills.catalogue import questions
from ppcourse.lab.drills.deck import card, kinds
from ppcourse.lab.drills.question import Question

MINUTES = {"question": 6, "card": 3}
ORDER = ("question", "question", "card")
Clock = Callable[[], float]
Item = Card | Question


def mock(seed: int, minutes: float = 45, clock: Clock = time.monotonic) -> "Interview":
    """The interview of this seed. `clock` tells seconds. Raises ValueError if there is no time for one question."""
    if not minutes >= MINUTES["question"]:
        raise ValueError(f"minutes is {minutes}, but one question takes {MINUTES['question']}.")
    return Interview(seed, minutes, clock)


def plan(seed: int, minutes: float) -> tuple[Item, ...]:
    """What is asked, from level 1 to 4: as much as fits, nothing twice, and no lesson twice while there are others."""
    rng = random.Random(f"interview {seed} {minutes}")
    what = list(_fitting(minutes))
    chosen: list[Item] = []
    for place, one in enumerate(what):
        level = 1 + 4 * place // len(what)
        lessons = {item.lesson for item in chosen}
        found = _questions(level, chosen) if one == "question" else _cards(level, rng, chosen)
        chosen.append(rng.choice([item for item in found if item.lesson not in lessons] or found))
    return tuple(chosen)


def _fitting(minutes: float) -> Iterator[str]:
    left = minutes
    for one in cycle(ORDER):
        left -= MINUTES[one]
        if left < 0:
            return
        yield one


def _questions(level: int, chosen: list[Item]) -> list[Item]:
    """Those of a level that were not asked yet; what is known from real interviews stands twice."""
    fresh = [one for one in questions(level) if one not in chosen] or list(questions(level))
    return [one for one in fresh for _ in range(1 + one.asked)]


def _cards(level: int, rng: random.Random, chosen: list[Item]) -> list[Item]:
    seed = rng.randrange(10_000)
    used = {item.kind for item in chosen if isinstance(item, Card)}
    return [card(name, seed) for name in kinds(level) if name not in used] or [
        card(name, seed) for name in kinds(level)
    ]


class Interview:
    """One interview; prints what is said, and never sleeps."""

    def __init__(self, seed: int, minutes: float, clock: Clock) -> None:
        self.seed, self.minutes, self._clock = seed, minutes, clock
        self.items = plan(seed, minutes)
        self.points: dict[str, int] = {}  # by name of the item
        self._begun: float | None = None
        self._asked: float = 0.0  # when the current item was asked
        self._place = -1
        self._follow_ups: Iterator[tuple[str, str]] = iter(())

    @property
    def item(self) -> Item | None:
        """What is being asked."""
        return self.items[self._place] if 0 <= self._place < len(self.items) else None

    @property
    def left(self) -> float:
        """Minutes until the end."""
        return self.minutes - (0.0 if self._begun is None else (self._clock() - self._begun) / 60)

    def next(self) -> None:
        """Ask the next question or card; after the last one, or when time is up, report."""
        if self._place + 1 >= len(self.items) or self.left <= 0:
            self._place = len(self.items)
            print("That was all." if self.left > 0 else "Time is up.")
            self.report()
            return
        self._asked = self._clock()
        self._begun = self._asked if self._begun is None else self._begun
        self._place += 1
        item = self.items[self._place]
        self._follow_ups = iter(item.follow_ups if isinstance(item, Question) else ())
        this = f"{self._place + 1} of {len(self.items)} · {_minutes(item)} minutes for this"
        print(f"{this} · {_clocked(self.left)} left")
        print(item)

    def follow_up(self) -> None:
        """Ask what an interviewer asks next."""
        then = next(self._follow_ups, None)
        print(f"Then: {then[0]}" if then else "No follow-up left; reveal() shows the answers.")

    def reveal(self) -> None:
        """Show the answer, the rubric and the answers to follow-ups; of a card the solution."""
        item = self.item
        if item is None:
            print("Nothing is asked; next() asks.")
        elif isinstance(item, Card):
            print(f"{item.shown}. {item.worked}")
        else:
            print(item.answer)

    def score(self, points: int) -> None:
        """Give yourself points for the current question; they are kept."""
        item = self.item
        if not isinstance(item, Question):
            print(
                "Points are for questions; a card takes answer(number)." if item else "Nothing is asked; next() asks."
            )
        elif scores.score(item.name, points) is not None:
            self._keep(item.name, points)

    def answer(self, value: Any) -> None:
        """Answer the current card; the first number counts."""
        item = self.item
        if not isinstance(item, Card):
            print("Say it aloud, reveal(), then score(points)." if item else "Nothing is asked; next() asks.")
        elif item.name in self.points:
            print("You answered this card; next() asks on.")
        elif (judged := scores.answer(item, value)).right is not None:
            self._keep(item.name, int(judged.right))

    def report(self) -> None:
        """Print the points of each question and card."""
        total, most = sum(self.points.values()), scores.for_interview(self.items)
        print(f"Interview {self.seed}: {total} of {most} points, {len(self.points)} of {len(self.items)} answered")
        for item in self.items:
            of = scores.for_interview([item])
            print(f"  level {item.level}  {self.points.get(item.name, 0)} of {of}  {item.name}")

    def _keep(self, name: str, points: int) -> None:
        late = (self._clock() - self._asked) / 60 - _minutes(self.items[self._place])
        if late > 0:
            print(f"({_clocked(late)} more than planned)")
        if self.left <= 0:
            print("(after the end, so it does not count)")
            return
        self.points[name] = points
        entry = {"points": sum(self.points.values()), "of": scores.for_interview(self.items), "tries": 1}
        progress.update(scores.INTERVIEWS, f"{self.seed} ({self.minutes:g} min)", lambda before: entry)

    def __repr__(self) -> str:
        asked = sum(isinstance(item, Question) for item in self.items)
        return (
            f"Interview {self.seed}: {asked} questions and {len(self.items) - asked} cards in {self.minutes:g} minutes"
        )


def _minutes(item: Item) -> int:
    return MINUTES["card" if isinstance(item, Card) else "question"]


def _clocked(minutes: float) -> str:
    seconds = max(0, round(60 * minutes))
    return f"{seconds // 60}:{seconds % 60:02} min"
