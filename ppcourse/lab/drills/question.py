"""A question as an interviewer asks it: what to say in 30 seconds and in two minutes, and what comes next."""

from dataclasses import dataclass
from html import escape

ASKED = "reported from an interview"


@dataclass(frozen=True, kw_only=True, repr=False)
class Question:
    """One question of the bank.

    lesson, level  where it is answered; 1 to 4, from first questions to those for an expert
    asked          True if it is known from real interviews; of who asked what, no more is known than stands in
                   ppcourse/lab/drills/bank
    short, long    what to say in 30 seconds; what to add in two minutes
    rubric         what an interviewer listens for; a point each
    wrong          what is often said instead, and what is wrong in it
    follow_ups     what is asked next, and a short answer
    """

    name: str
    lesson: int
    level: int
    ask: str
    short: str
    long: str
    rubric: tuple[str, ...]
    wrong: tuple[tuple[str, str], ...]
    follow_ups: tuple[tuple[str, str], ...]
    source: str
    asked: bool = False

    @property
    def head(self) -> str:
        """Name, level and lesson in one line."""
        return f"{self.name} · level {self.level} · lesson {self.lesson:02}" + f" · {ASKED}" * self.asked

    @property
    def answer(self) -> str:
        """Everything that is hidden at first, as plain text."""
        return "\n".join(f"{title}\n{body}" for title, body in self._parts("  - "))

    def __repr__(self) -> str:
        return f"{self.head}\n{self.ask}"

    def _repr_markdown_(self) -> str:
        """In a notebook: the question, and all else folded."""
        folded = [
            f"<details><summary>{escape(title)}</summary>\n\n{body}\n</details>" for title, body in self._parts("- ")
        ]
        return f"*{self.head}*\n\n**{self.ask}**\n\n" + "\n".join(folded)

    def _parts(self, mark: str) -> list[tuple[str, str]]:
        return [
            ("30 seconds", self.short),
            ("2 minutes", self.long),
            (f"Rubric: {len(self.rubric)} points", "\n".join(mark + point for point in self.rubric)),
            ("Often said, and wrong", "\n".join(f'{mark}"{said}" {why}' for said, why in self.wrong)),
            ("Then they ask", "\n".join(f'{mark}"{then}" {reply}' for then, reply in self.follow_ups)),
            ("Source", self.source),
        ]
