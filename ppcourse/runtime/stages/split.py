"""How B is split into I and W: the graph is cut wherever a call mixes data with weights.

    F   such a call gets a small graph of its own, and the stage's graph a node in its place (cutting.py says where)
    I   runs through the stage's graph; each node asks its small graph for the data's gradient only, and notes what
        the small graph still owes its weights
    W   pays: all small graphs at once, from what was noted to the weights

So neither computes what the other does, what only I needed dies with the stage's graph, and a weight gets one
gradient a microbatch, however often it is used.
"""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TypeAlias

import torch
from torch import Tensor, autograd
from torch.autograd.graph import GradientEdge, get_gradient_edge
from torch.utils.checkpoint import GraphExecGroup

Debts: TypeAlias = list[tuple[GradientEdge, Tensor]]
"""Where W begins: edges of small graphs, or of weights, each with the gradient that I brought there."""


class SplitError(TypeError):
    """A layer whose backward cannot be split."""


class Splitter:
    """One microbatch on its way through a stage.

    debts    filled by I, paid by W
    anchor   a leaf that every cut hangs on, so that I passes it even where no data before it needs a gradient
    shares   I may run through what is made of weights, which W then needs as well
    """

    def __init__(self) -> None:
        self.debts: Debts = []
        self.anchor = torch.empty(0, requires_grad=True)
        self.shares = self._passes = False

    def begin(self, data: list[Tensor]) -> tuple[Tensor, ...]:
        """The same data, as what a small graph begins with."""
        inside: tuple[Tensor, ...] = _apply(_Begin, data, self.anchor) if data else ()
        return inside

    def join(self, results: list[Tensor], inside: Sequence[Tensor], outside: list[Tensor]) -> tuple[Tensor, ...]:
        """The results of a small graph that begins with `inside`, as results of `outside`, the same data."""
        edges = [get_gradient_edge(x) for x in inside]  # not the data: who needs it has saved it
        joined: tuple[Tensor, ...] = _apply(_Cut, self, results, edges, self.anchor, *outside)
        return joined

    def gate(self, weight: Tensor) -> Tensor:
        """The same values, for what cannot be cut: the gradient that flows back to them at I waits for W."""
        result: Tensor = _apply(_Gate, self, [weight], self.anchor)
        return result

    def input_grad(
        self,
        edges: Sequence[GradientEdge],
        grads: Sequence[Tensor | None],
        inputs: Sequence[Tensor | None],
        weights: Sequence[Tensor],
    ) -> list[Tensor | None]:
        """I, from `edges` with their `grads`: the gradients of `inputs`, None where none is wanted.

        weights   the stage's: where code hides from the cut (a scripted module), their gradients wait for W too
        """
        wanted = [x for x in inputs if x is not None]
        found: list[Tensor | None] = []
        if edges:
            self._passes = True
            # the group: what is checkpointed runs again once, and not at each cut
            with GraphExecGroup(), _silenced(weights):
                starts = [*wanted, self.anchor, *weights]
                found = list(autograd.grad(edges, starts, grads, retain_graph=self.shares, allow_unused=True))
        hidden = zip(weights, found[len(wanted) + 1 :], strict=False)
        self.debts += [(get_gradient_edge(weight), grad) for weight, grad in hidden if grad is not None]
        ahead = iter(found)
        return [None if x is None else next(ahead, None) for x in inputs]

    def weight_grad(self, weights: Sequence[Tensor]) -> None:
        """W: adds to the gradients of `weights`."""
        debts, self.debts = self.debts, []
        if debts and weights:
            edges, grads = zip(*debts, strict=True)
            autograd.backward(edges, grads, inputs=weights)

    def owe(self, debts: Debts) -> None:
        """Note what W has to pay. Raises SplitError if it is not I that passes here."""
        if not self._passes:
            raise SplitError("differentiates inside its forward, so its backward cannot be split; use a plan with B.")
        self.debts += debts


class _Begin(autograd.Function):
    """Where a small graph ends backward."""

    @staticmethod
    def forward(ctx: Any, data: list[Tensor], anchor: Tensor) -> Any:
        return tuple(x.detach() for x in data)


class _Cut(autograd.Function):
    """Stands in the stage's graph for a small graph, from `inside` to `results`."""

    @staticmethod
    def forward(ctx: Any, splitter: Splitter, results: Any, inside: Any, anchor: Tensor, *outside: Tensor) -> Any:
        ctx.splitter, ctx.inside = splitter, inside
        ctx.edges = [get_gradient_edge(y) for y in results]
        ctx.set_materialize_grads(False)
        return tuple(y.detach() for y in results)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> Any:
        due = [(edge, grad) for edge, grad in zip(ctx.edges, grads, strict=True) if grad is not None]
        ctx.splitter.owe(due)
        found: Sequence[Tensor | None] = [None] * len(ctx.inside)
        if due and ctx.inside:
            edges, given = zip(*due, strict=True)
            found = autograd.grad(edges, ctx.inside, given, retain_graph=True, allow_unused=True)
        return None, None, None, None, *found


class _Gate(autograd.Function):
    """Hands a weight to what cannot be cut. The weight comes in a list, so that I does not go on to what made it."""

    @staticmethod
    def forward(ctx: Any, splitter: Splitter, weight: list[Tensor], anchor: Tensor) -> Tensor:
        ctx.splitter, ctx.edge = splitter, get_gradient_edge(weight[0])
        ctx.set_materialize_grads(False)
        return weight[0].detach()

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> Any:
        ctx.splitter.owe([(ctx.edge, grad) for grad in grads if grad is not None])
        return None, None, None


def _apply(function: type[autograd.Function], *arguments: Any) -> Any:
    """As function.apply, but in half the time, and not what cutting.py puts in its place."""
    return super(autograd.Function, function).apply(*arguments)  # type: ignore[misc]


@contextmanager
def _silenced(weights: Iterable[Tensor]) -> Iterator[None]:
    """Hooks on weights are for W."""
    hooks = [(weight, weight._backward_hooks) for weight in weights if weight._backward_hooks]
    for weight, _ in hooks:
        weight._backward_hooks = None
    try:
        yield
    finally:
        for weight, own in hooks:
            weight._backward_hooks = own
