"""Where a stage's graph begins and ends."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.graph import GradientEdge, get_gradient_edge
from torch.utils._pytree import tree_map

from ppcourse.runtime.stages.split import Splitter


class Graph(NamedTuple):
    """What backward runs through.

    edges      where it begins, one for each tensor handed on, None where that needs no gradient
    splitter   cut it so that I and W can run apart; None: it is whole
    """

    edges: list[GradientEdge | None]
    splitter: Splitter | None

    @classmethod
    def of(cls, ends: Sequence[Tensor], splitter: Splitter | None) -> "Graph":
        """The graph that made `ends`; it does not keep them alive."""
        return cls([get_gradient_edge(end) if end.requires_grad else None for end in ends], splitter)

    def due(self, grads: Sequence[Tensor | None] | None) -> tuple[list[GradientEdge], list[Tensor | None]]:
        """The edges where backward really begins, and what it begins with."""
        given = [None] * len(self.edges) if grads is None else grads
        due = [(e, g) for e, g in zip(self.edges, given, strict=True) if e and (grads is None or g is not None)]
        return [edge for edge, _ in due], [grad for _, grad in due]


class _Alias(torch.autograd.Function):
    """The same tensor, but no leaf, so that a first layer may work in place."""

    @staticmethod
    def forward(ctx: Any, leaf: Tensor) -> Tensor:
        return leaf.detach()

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        return grads[0]


def aliases(inputs: Any) -> Any:
    """The same inputs, but none that requires a gradient is a leaf."""
    if not torch.is_grad_enabled():
        return inputs
    alias: Callable[[Tensor], Tensor] = _Alias.apply
    return tree_map(lambda x: alias(x) if isinstance(x, Tensor) and x.requires_grad else x, inputs)
