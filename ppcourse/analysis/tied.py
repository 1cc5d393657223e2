"""Weights that several stages have, as a head that is tied to the embedding: a rank with several of these stages has
them once, with one gradient and one optimizer state.
"""

from collections.abc import Collection, Iterable
from typing import NamedTuple


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
