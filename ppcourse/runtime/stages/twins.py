"""What several ranks hold a copy of: a stage that lives on two ranks, a layer that stands in two places, a tied weight.

Gradients of copies are summed once a step. What a forward itself changes is another matter: each copy sees some of the
microbatches only, so no two copies would stay alike, nor be what one process has.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import NamedTuple

from torch import Tensor, nn

from ppcourse.runtime.stages.again import written
from ppcourse.runtime.stages.buffers import changed, copies, stateful

ONE_RANK = (
    "and each copy would see some of the microbatches only; put it in eval mode, or take a plan that has each layer on"
    " one rank."
)


class Twins(NamedTuple):
    """What other ranks hold too.

    layers    the numbers of layers, or of those with a part that is held so
    weights   the names that weights have in the whole model
    """

    layers: frozenset[int] = frozenset()
    weights: frozenset[str] = frozenset()


class Watch:
    """Watches those of a stage's `layers` and weights that other ranks hold too."""

    def __init__(self, layers: Mapping[int, nn.Module], twins: Twins) -> None:
        self._layers = layers
        held = {number: layer for number, layer in layers.items() if number in twins.layers}
        self._modules = [module for layer in held.values() for module in stateful(layer.modules())]
        self._weights: dict[Tensor, tuple[int, str]] = {
            weight: (number, name)
            for number, layer in layers.items()
            for name, weight in layer.named_parameters(remove_duplicate=False)
            if f"{number}.{name}" in twins.weights
        }
        self._ran = False

    @contextmanager
    def watching(self) -> Iterator[None]:
        """In here a forward runs. Raises RuntimeError if it changes what other ranks have a copy of."""
        before, versions = copies(self._modules), {weight: weight._version for weight in self._weights}
        yield
        for (module, name), old in changed(before).items():
            if self._ran or isinstance(old, Tensor):  # a first forward may make what all later ones find
                raise self._error(*self._place(module, name))
        for weight in written(versions):
            raise self._error(*self._weights[weight])
        self._ran = True

    def _place(self, changes: nn.Module, name: str) -> tuple[int, str]:
        for number, layer in self._layers.items():
            for path, module in layer.named_modules():
                if module is changes:
                    return number, f"{path}.{name}".lstrip(".")
        raise AssertionError(f"{changes} is in no layer")

    def _error(self, number: int, name: str) -> RuntimeError:
        layer = f"Layer {number} ({type(self._layers[number]).__name__})"
        return RuntimeError(f"{layer} changes its {name!r} in forward, but another rank has a copy of it, {ONE_RANK}")
