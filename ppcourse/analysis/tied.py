"""Weights that several stages have, as a head that is tied to the embedding: a rank with several of these stages has
them once, with one gradient and one optimizer state.
"""

from collections.abc import Collection, Iterable, Sequence
from typing import Any, NamedTuple

from ppcourse.schedules.costs import check_size


class Tied(NamedTuple):
    """What is the same in all of `stages`: how many weights, how many of them are trained, and bytes of buffers."""

    stages: tuple[int, ...]
    parameters: float = 0.0
    trainable: float = 0.0
    buffers: float = 0.0


def counted_again(tied: Iterable[Tied], stages: Collection[int]) -> tuple[float, float, float]:
    """Weights, trained ones and buffers that a rank with these stages has less than its stages have together."""
    weights = trained = buffers = 0.0
    for each in tied:
        more = max(0, len(set(each.stages).intersection(stages)) - 1)
        weights += more * each.parameters
        trained += more * each.trainable
        buffers += more * each.buffers
    return weights, trained, buffers


def check_rows(name: str, rows: object, kind: type[tuple[Any, ...]]) -> None:
    """Raise ValueError unless these are tuples of that kind, and their numbers are sizes."""
    for row in rows if isinstance(rows, Sequence) else (rows,):
        if not isinstance(row, kind):
            raise ValueError(f"{name} is {rows!r}; it must be a list of {kind.__name__}, or () for none.")
        for number in row:
            if not isinstance(number, tuple):
                check_size(name, number)
