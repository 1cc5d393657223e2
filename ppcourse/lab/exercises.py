"""Checking an exercise: `grade("4.2", answer)` prints one line, saves it, and never raises.

    ○ 4.2 not solved yet              the answer is None or ..., or a function that returns nothing
    ✗ 4.2 order(2, 1) ...             one sentence with the smallest failing case; a picture may follow
    ✓ 4.2 1F1B for p and m up to 8    the first line of the check's docstring

For authors. The check of exercise 4.2 stands in `ppcourse/lab/graders/lesson_04.py`:

    from ppcourse.lab.graders import grader

    @grader("4.2", minutes=10, difficulty=2)            # limit=60 if it starts ranks; 10 seconds else
    def build_1f1b(answer: Callable[[int, int], list[str]]) -> str | None:
        \"\"\"1F1B for p and m up to 8.\"\"\"                   # what a right answer is told
        for p, m in ...:                                # small cases first
            if ...:
                return f"order({p}, {m}) ... \\n{picture}"    # one sentence; a picture, if it helps, below it
        return None                                     # right

A check computes the truth from the package: the validator, the simulator, a formula, real ranks. It need not
guard against what the learner's code may do: an error is shown with its line and with the call that led to
it, a loop without end is ended, and a stub counts as unsolved at its first call. In a lesson the cell ends
with `pp.grade("4.2", answer)`; a later cell may ask `if pp.grade("4.2", answer):`.
"""

import functools
import inspect
import reprlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

from ppcourse.lab import graders, progress
from ppcourse.lab.guard import TimeUp, attempt, place
from ppcourse.runtime.errors import RankError

State: TypeAlias = Literal["solved", "wrong", "unsolved", "unknown"]
MARKS: dict[State, str] = {"solved": "✓", "wrong": "✗", "unsolved": "○", "unknown": "?"}
LONGEST = 300


@dataclass(frozen=True, repr=False)
class Verdict:
    """True only if the exercise is solved; says what was printed."""

    number: str
    state: State
    message: str

    def __bool__(self) -> bool:
        return self.state == "solved"

    def __repr__(self) -> str:
        return f"{MARKS[self.state]} {self.number} {self.message}"

    def _ipython_display_(self) -> None:
        """Nothing: it is on the page already."""


def grade(number: str, answer: Any) -> Verdict:
    """Check the answer to exercise `number` and print the verdict. Only the learner's own Ctrl-C raises."""
    number = str(number)
    found = attempt(lambda: graders.exercises(_lesson_of(number)).get(number), 60.0)
    if found.value is None:
        verdict = Verdict(number, "unknown", _no_exercise(number, found.error))
    elif _is_missing(answer):
        verdict = Verdict(number, "unsolved", "not solved yet")
    else:
        verdict = _judge(found.value, answer)
    if verdict.state in ("solved", "wrong"):
        progress.record(number, solved=bool(verdict))
    print(verdict)
    return verdict


def _judge(exercise: graders.Exercise, answer: Any) -> Verdict:
    calls: list[str] = []
    watched = _watched(answer, calls) if inspect.isfunction(answer) else answer
    outcome = attempt(lambda: exercise.check(watched), exercise.limit)
    if isinstance(outcome.error, graders.Unsolved):
        return Verdict(exercise.number, "unsolved", " ".join(["not solved yet", str(outcome.error)]).strip())
    if error := outcome.error:
        if type(error) is TypeError and str(error) == f"'{type(answer).__name__}' object is not callable":
            asked = f"your answer is {reprlib.repr(answer)}, and this exercise asks for a function"
            return Verdict(exercise.number, "wrong", asked)
        told = attempt(functools.partial(_told, error, calls, exercise.limit), 5.0).value
        return Verdict(exercise.number, "wrong", told or f"your code raises {type(error).__name__}")
    if outcome.value is not None:
        return Verdict(exercise.number, "wrong", str(outcome.value))
    return Verdict(exercise.number, "solved", exercise.fact)


def _watched(function: Callable[..., Any], calls: list[str]) -> Callable[..., Any]:
    """The learner's function; notes each call, and says at the first one if it is still a stub."""

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        first = not calls
        calls[:] = [_as_text(function, args, kwargs)]
        try:
            result = function(*args, **kwargs)
        except NotImplementedError:
            if first:
                raise graders.Unsolved from None
            raise
        if first and (result is None or result is ...):
            raise graders.Unsolved(f"({calls[0]} returns {result})")
        return result

    return call


def _as_text(function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> str:
    try:
        given = [reprlib.repr(one) for one in args] + [f"{name}={reprlib.repr(kwargs[name])}" for name in kwargs]
    except Exception:
        given = ["..."]
    return f"{function.__name__}({', '.join(given)})"


def _told(error: BaseException, calls: list[str], limit: float) -> str:
    """The error in one line: which call, what, where. A rank's error brings that rank's traceback."""
    if isinstance(error, RankError):
        return str(error)
    who = calls[0] if calls else "your code"
    where = f", at {place(error)}" if place(error) else ""
    if isinstance(error, TimeUp):
        return f"{who} still runs after {limit:g} s{where}"
    reason = str(error).strip().partition("\n")[0]
    what = f"{type(error).__name__}: {reason}" if reason else type(error).__name__
    if len(what) > LONGEST:
        what = what[:LONGEST] + "…"
    if where or calls:
        return f"{who} raises {what}{where}"
    return f"this answer could not be checked: {what}"


def _is_missing(answer: Any) -> bool:
    """True for None and ..., and for a tuple, list or dict in which something is still ... ."""
    parts = list(answer.values()) if type(answer) is dict else answer
    return answer is None or answer is ... or (type(parts) in (tuple, list) and any(one is ... for one in parts))


def _lesson_of(number: str) -> int:
    head, _, tail = number.partition(".")
    return int(head) if head.isdecimal() and tail.isdecimal() else -1


def _no_exercise(number: str, error: BaseException | None) -> str:
    if error is not None:
        return f"the exercises could not be loaded: {type(error).__name__}: {error}"
    lesson = _lesson_of(number)
    known = attempt(lambda: list(graders.exercises(lesson)), 60.0).value
    if known:
        return f"is no exercise; lesson {lesson} has {', '.join(known)}"
    return f"is no exercise; lessons with exercises: {', '.join(str(n) for n in graders.lessons()) or 'none'}"
