"""For checks that run an answer on two real ranks: what both returned, or what a learner is told instead."""

import inspect
from collections.abc import Callable
from typing import Any

from ppcourse.lab.graders import Unsolved
from ppcourse.lab.on_ranks import CallError, HangError, on_ranks

PATIENCE = 4.0  # seconds for a function that needs milliseconds


def on_two(function: Callable[[int], Any], said: str, timeout: float = PATIENCE) -> list[Any] | str:
    """What `function` returns on each of two ranks, or one sentence that begins with `said`, how it was called."""
    try:
        return on_ranks(function, p=2, timeout=timeout)
    except HangError as error:
        return f"{said} hangs. {error}"
    except CallError as error:
        return f"{said} fails. {error.in_short()}"


def plain(answer: Any) -> Callable[..., Any]:
    """The learner's own function, without the watch that `grade` puts around it, which would travel to no purpose."""
    return inspect.unwrap(answer) if callable(answer) else answer  # type: ignore[no-any-return]


def no_stub(answers: list[Any], name: str) -> None:
    """Raise Unsolved if all that came back is what a stub returns."""
    if all(answer is None or answer is ... for answer in answers):
        raise Unsolved(f"({name} returns {answers[0]} on both ranks)")
