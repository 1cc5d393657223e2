"""Counts that a closed form is given are counts: a formula answers anything, and 0 ranks with nonsense."""

import functools
import inspect
from collections.abc import Callable
from numbers import Real
from typing import ParamSpec, TypeVar

Given = ParamSpec("Given")
Answer = TypeVar("Answer")

COUNTS = {"p": "p, the number of ranks,", "m": "m, the number of microbatches,", "v": "v, the stages of a rank,"}


def counted(formula: Callable[Given, Answer]) -> Callable[Given, Answer]:
    """The same formula, which raises ValueError for a p, m or v that is no whole number of at least 1."""
    letters = inspect.signature(formula)

    @functools.wraps(formula)
    def checked(*args: Given.args, **kwargs: Given.kwargs) -> Answer:
        for letter, count in letters.bind(*args, **kwargs).arguments.items():
            number = isinstance(count, Real) and not isinstance(count, bool)
            if letter in COUNTS and not (number and count >= 1 and count % 1 == 0):
                raise ValueError(f"{COUNTS[letter]} is {count!r}; it must be a whole number of at least 1.")
        return formula(*args, **kwargs)

    return checked
