"""Drills for interviews: questions with their follow-ups, cards with numbers, and mock interviews against the clock.

from ppcourse.lab import drills

one = drills.card("bubble-rate", seed=7)      the same card on every machine; drills.kinds() names them all
drills.answer(one, "27.3%")                   judged, told what it was mixed up with, and kept
drills.draw(seed=7, level=2)                  a card of any kind
drills.question("why-microbatches")           its answers are folded; drills.questions(level=1) has them all
drills.score("why-microbatches", 3)           the points you give yourself by its rubric
drills.mock(seed=7)                           an interview of 45 minutes
drills.deck(seed=7)                           cards as a widget
drills.summary()                              what you scored, and where to go on
"""

from typing import Any

from ppcourse.lab.drills.card import Card as Card
from ppcourse.lab.drills.card import Judged as Judged
from ppcourse.lab.drills.catalogue import pick as pick
from ppcourse.lab.drills.catalogue import question as question
from ppcourse.lab.drills.catalogue import questions as questions
from ppcourse.lab.drills.deck import card as card
from ppcourse.lab.drills.deck import draw as draw
from ppcourse.lab.drills.deck import kinds as kinds
from ppcourse.lab.drills.interview import Interview as Interview
from ppcourse.lab.drills.interview import mock as mock
from ppcourse.lab.drills.question import Question as Question
from ppcourse.lab.drills.scores import answer as answer
from ppcourse.lab.drills.scores import score as score
from ppcourse.lab.drills.scores import summary as summary


def deck(seed: int = 0, kind: str = "any") -> Any:
    """Cards as a widget, of one kind or of any; loads matplotlib and ipywidgets only now."""
    from ppcourse.lab.drills.widget import Deck

    return Deck(seed, kind)
