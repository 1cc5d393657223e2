"""What a section of the GPU check found: passed, failed, or not possible here, and the sentence that says why."""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum


class State(StrEnum):
    PASSED = "passed"
    FAILED = "failed"
    IMPOSSIBLE = "not possible here"


@dataclass(frozen=True)
class Finding:
    """What came of a section.

    sentence   what was held against what; if it failed, what was wrong; if it could not be, what is missing
    table      rows of cells, the head first
    page       text to be shown as it is
    cut        what was left out for lack of time
    """

    state: State
    sentence: str
    table: tuple[tuple[str, ...], ...] = ()
    page: str = ""
    cut: tuple[str, ...] = ()

    @property
    def verdict(self) -> str:
        """The state in the words of the report."""
        return f"{self.state.value}, but cut short" if self.cut and self.state is State.PASSED else self.state.value


def judged(
    wrong: Sequence[str],
    right: str,
    *,
    table: Sequence[Sequence[str]] = (),
    page: str = "",
    cut: Sequence[str] = (),
) -> Finding:
    """Failed if anything is `wrong`, each a sentence; else passed, which `right` says."""
    state = State.FAILED if wrong else State.PASSED
    return Finding(state, " ".join(wrong) or right, tuple(map(tuple, table)), page, tuple(cut))


def impossible(missing: str) -> Finding:
    """Not possible here, and what is missing."""
    return Finding(State.IMPOSSIBLE, missing)


def failed(why: str) -> Finding:
    return Finding(State.FAILED, why)
