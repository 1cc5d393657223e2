"""A forward that will run again, for its graph: it must find things as they were, and leave no second trace.

What it finds are the buffers and attributes of its layers, and the random numbers of Python and numpy (stage.py seeds
those of torch). Weights are another matter: other microbatches use them. A layer that writes into its weights may run
again if that changes nothing any more, as where rows of an embedding are held to a norm. What is written through
`.data` nobody sees, here as in all of PyTorch.
"""

import random
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from ppcourse.runtime.stages.buffers import Buffers, as_before, changed, copies
from ppcourse.runtime.stages.kept import same
from ppcourse.runtime.values.handed_on import tensors_of


class FirstRun:
    """What a forward found, and whether it wrote into weights.

    weights   {weight of the stage: (its layer's number, its name there)}
    """

    def __init__(
        self, layers: Mapping[int, nn.Module], modules: Sequence[nn.Module], weights: Mapping[Tensor, tuple[int, str]]
    ) -> None:
        self._layers, self._weights = layers, weights
        self._buffers: Buffers = copies(modules)
        self._drawn: tuple[Any, Any] | None = _states()
        self._versions = {weight: weight._version for weight in weights}
        self._written: list[Tensor] = []
        self._results: list[Tensor] = []

    def ended(self, results: Any) -> None:
        """It has returned or computed these."""
        self._buffers = changed(self._buffers)
        self._drawn = None if same(self._drawn, _states()) else self._drawn  # they take more room than most else
        self._written = written(self._versions)
        self._results = [x.detach().clone() for x in tensors_of(results)] if self._written else []

    @contextmanager
    def found_again(self) -> Iterator[list[Any]]:
        """In here it runs again; what it gives goes into the list."""
        kept, results = [weight.detach().clone() for weight in self._written], list[Any]()
        with as_before(self._buffers), _drawing_from(self._drawn):
            yield results
        for weight, old in zip(self._written, kept, strict=True):
            if not (torch.equal(weight, old) and all(map(_close, tensors_of(results), self._results))):
                number, name = self._weights[weight]
                raise RuntimeError(
                    f"Layer {number} ({type(self._layers[number]).__name__}) writes into its weight {name!r} in"
                    " forward, and so gives something else when it runs again; leave out recompute=True."
                )


def written(versions: Mapping[Tensor, int]) -> list[Tensor]:
    """The tensors that are no longer of these versions."""
    return [tensor for tensor, version in versions.items() if tensor._version != version]


def _close(one: Tensor, other: Tensor) -> bool:
    """Whether they differ by round-off alone."""
    close: bool = torch.allclose(one.detach(), other, rtol=_digits(one), atol=_digits(one), equal_nan=True)
    return close


def _digits(tensor: Tensor) -> float:
    return float(torch.finfo(tensor.dtype).eps ** 0.5) if tensor.is_floating_point() or tensor.is_complex() else 0.0


def _states() -> tuple[Any, Any]:
    return random.getstate(), np.random.get_state()


@contextmanager
def _drawing_from(states: tuple[Any, Any] | None) -> Iterator[None]:
    now = _states()
    _put(states or now)
    try:
        yield
    finally:
        _put(now)


def _put(states: tuple[Any, Any]) -> None:
    random.setstate(states[0])
    np.random.set_state(states[1])
