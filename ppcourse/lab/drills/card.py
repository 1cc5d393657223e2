"""A card: a question with numbers, its answer, and what wrong answers usually mean."""

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from numbers import Real
from typing import Any, NamedTuple

MEASURES = ("%", "ms", "MB", "GB")  # units that an answer must be given in; all others name what is counted


class Judged(NamedTuple):
    """What an answer is: right or not, and one sentence. Neither for what is no number."""

    right: bool | None
    sentence: str


@dataclass(frozen=True, repr=False)
class Card:
    """One drawn card.

    kind, seed   card(kind, seed) makes this card again, on every machine
    lesson       where its formula is derived
    level        1 to 4, from first questions to those for an expert
    given        the numbers in the text, by name: enough to check the answer with the simulator
    unit         of the answer; "" for a bare number
    tolerance    the relative error that counts as right: 0 where the answer is a count
    confusions   a sentence for each wrong answer that is known, and that wrong answer
    """

    kind: str
    seed: int
    lesson: int
    level: int
    given: Mapping[str, float]
    text: str
    answer: float
    unit: str
    tolerance: float
    worked: str
    confusions: Mapping[str, float] = field(default_factory=dict)
    source: str = ""

    @property
    def name(self) -> str:
        return f"{self.kind} #{self.seed}"

    def judge(self, answer: Any) -> Judged:
        """Is this the answer? A number, or a text such as "27.3 %", "3/11" or "12 ms"; of a percentage also a share.

        Never raises. What is wrong in a known way is told; the right answer is not.
        """
        number = as_number(answer.strip().removesuffix(self.unit) if isinstance(answer, str) else answer)
        if number is None:
            return Judged(None, f"An answer is a number{self._in_unit}, as in 12 or 12.5.")
        if self.unit == "%" and 0 < abs(number) < 1 and not _ends_in_percent(answer):
            number *= 100
        if self._near(number, self.answer):
            return Judged(True, f"{self.shown}. {self.worked}")
        known = [sentence for sentence, wrong in self.confusions.items() if self._near(number, wrong)]
        if known:  # more than one where two mistakes give the same number
            return Judged(False, f"{shown(number)}: {'; or '.join(known)}.")
        high = "above" if number > self.answer else "below"
        return Judged(False, f"{shown(number)} is {high} the answer, and no mistake that this card knows.")

    @property
    def shown(self) -> str:
        """The answer with its unit."""
        return f"{shown(self.answer)} {self.unit}".strip()

    @property
    def _in_unit(self) -> str:
        return f" in {self.unit}" if self.unit in MEASURES else ""

    def _near(self, number: float, target: float) -> bool:
        return math.isclose(number, target, rel_tol=self.tolerance, abs_tol=1e-9)

    def __repr__(self) -> str:
        asked = f"a number{self._in_unit}, within {self.tolerance:.0%}" if self.tolerance else "a whole number"
        return f"{self.name} · level {self.level} · lesson {self.lesson:02}\n{self.text} ({asked})"


def shown(number: float) -> str:
    """A number for a reader: whole ones as they are, others with four digits."""
    return f"{number:,.0f}" if number == int(number) and abs(number) < 1e9 else f"{number:.4g}"


def as_number(answer: Any) -> float | None:
    """The finite number that was meant; None if that is not clear."""
    if isinstance(answer, str):
        text = answer.strip().removesuffix("%").strip()
        text = text.replace(",", "") if re.fullmatch(r"-?\d{1,3}(,\d{3})+(\.\d+)?", text) else text
        above, _, below = text.partition("/")
        try:
            answer = float(above) / float(below or 1)
        except (ValueError, ZeroDivisionError, OverflowError):
            return None
    if not isinstance(answer, Real) or isinstance(answer, bool):
        return None
    try:
        number = float(answer)
    except OverflowError:
        return None
    return number if math.isfinite(number) else None


def _ends_in_percent(answer: Any) -> bool:
    return isinstance(answer, str) and answer.strip().endswith("%")
