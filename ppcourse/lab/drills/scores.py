"""What a learner scored: cards right, points given to oneself by a rubric, interviews; kept in the progress file."""

from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

from ppcourse.lab import progress
from ppcourse.lab.drills.card import Card, Judged
from ppcourse.lab.drills.catalogue import question, questions
from ppcourse.lab.drills.deck import kinds
from ppcourse.lab.drills.question import Question

CARDS, QUESTIONS, INTERVIEWS = "drill cards", "drill questions", "interviews"  # sections of the progress file
LEVELS = (1, 2, 3, 4)


class Score(NamedTuple):
    """Points out of so many, and how often it was tried."""

    points: int
    of: int
    tries: int


def answer(card: Card, value: Any) -> Judged:
    """Judge an answer to a card, print one line, and keep whether it was right. Never raises."""
    if not isinstance(card, Card):
        judged = Judged(None, f"{card!r:.60} is no card; draw one first: card = drills.card('bubble-rate', seed=1)")
        print(f"○ {judged.sentence}")
        return judged
    judged = card.judge(value)
    print(f"{mark(judged)} {card.name}: {judged.sentence}")
    keep_card(card, judged)
    return judged


def mark(judged: Judged) -> str:
    return {True: "✓", False: "✗", None: "○"}[judged.right]


def keep_card(card: Card, judged: Judged) -> None:
    """Count a try at this kind of card; what is no number is no try."""
    if judged.right is not None:
        progress.update(CARDS, card.kind, lambda before: _added(before, int(judged.right or 0), 1))


def score(name: str, points: int) -> Score | None:
    """Keep the points, one for each line of the rubric, that you give yourself for a question; the last ones count.

    Prints one line. Anything but 0 to all points is told, and not kept.
    """
    one = question(name)
    most = len(one.rubric)
    if isinstance(points, bool) or not isinstance(points, int) or not 0 <= points <= most:
        print(f"○ {name}: the rubric has {most} points, so a score is a whole number from 0 to {most}.")
        return None
    progress.update(QUESTIONS, name, lambda before: {"points": points, "of": most, "tries": 1 + _read(before).tries})
    print(f"✎ {name}: {points} of {most} points")
    return Score(points, most, 1)


def scores(section: str) -> dict[str, Score]:
    """By name, what was kept of cards or of questions; what is not readable counts as never tried."""
    return {name: _read(entry) for name, entry in progress.kept(section).items() if _read(entry).tries}


def summary() -> None:
    """Print, level by level, what you tried and scored, and where you scored least."""
    print("level   cards right   kinds met   questions met   points")
    cards, asked = scores(CARDS), scores(QUESTIONS)
    for level in LEVELS:
        names, bank = kinds(level), [one.name for one in questions(level)]
        right, met = _sum(cards, names)
        points, answered = _sum(asked, bank)
        print(
            f"{level:5}   {f'{right.points} of {right.tries}':11}   {f'{met} of {len(names)}':9}   "
            f"{f'{answered} of {len(bank)}':13}   {points.points} of {points.of}"
        )
    weak = sorted(_weak({**cards, **asked}))
    if weak:
        print("again:", ", ".join(name for _, name in weak[:5]))
    if interviews := progress.kept(INTERVIEWS):
        print("interviews:", ", ".join(f"{name} {_text(entry)}" for name, entry in sorted(interviews.items())))


def for_interview(items: Iterable[Card | Question]) -> int:
    """How many points there are in all: a card is one."""
    return sum(1 if isinstance(item, Card) else len(item.rubric) for item in items)


def _weak(known: dict[str, Score]) -> Iterator[tuple[float, str]]:
    for name, one in known.items():
        if one.points < one.of:
            yield one.points / one.of, name


def _sum(known: dict[str, Score], names: Iterable[str]) -> tuple[Score, int]:
    found = [known[name] for name in names if name in known]
    return Score(*(sum(column) for column in zip(*found, strict=True))) if found else Score(0, 0, 0), len(found)


def _added(before: Any, points: int, of: int) -> dict[str, int]:
    old = _read(before)
    return {"points": old.points + points, "of": old.of + of, "tries": old.tries + 1}


def _read(entry: Any) -> Score:
    try:
        one = Score(*(entry[name] for name in Score._fields))
    except (KeyError, TypeError, IndexError):
        return Score(0, 0, 0)
    whole = all(type(number) is int and number >= 0 for number in one)
    return one if whole and one.points <= one.of and one.of else Score(0, 0, 0)


def _text(entry: Any) -> str:
    one = _read(entry)
    return f"{one.points} of {one.of}"
