"""One stage on its rank: forward, backward, and what is kept in between."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.autograd.graph import GradientEdge, get_gradient_edge
from torch.utils._pytree import tree_leaves, tree_map

LossFunction = Callable[[Any, Any], Tensor]


class HandOnError(TypeError):
    """A layer, or the loss function, returned what cannot be handed on."""


class End(NamedTuple):
    """What a microbatch ends in: its target, and what its loss counts in the loss of the whole batch."""

    target: Any
    scale: float


class Stash(NamedTuple):
    """What a microbatch leaves between its F and its B.

    inputs   the tensors that the stage's graph starts from, None where no gradient is wanted
    edges    where backward begins, one for each tensor handed on: known since F, or found by running F again
    """

    inputs: list[Tensor | None]
    edges: Callable[[], list[GradientEdge | None]]


class Stage:
    """A slice of the model. `stash[microbatch]` holds what backward will need, `losses` this step's losses.

    layers        {number in the whole model: layer}, in order
    loss_fn       on the last stage only: (output, target) → one number
    seed          random numbers of a layer come from (seed, step, layer, microbatch) alone, so that neither the
                  cut nor the schedule changes them
    recompute     keep only the inputs of the stage, and run forward again before backward (Huang et al. 2019, §2.3)
    """

    def __init__(
        self,
        layers: dict[int, nn.Module],
        loss_fn: LossFunction | None,
        seed: int = 0,
        recompute: bool = False,
    ) -> None:
        self.layers, self.loss_fn = layers, loss_fn
        self.seed, self.step, self.recompute = seed, 0, recompute
        self.stash: dict[int, Stash] = {}
        self.losses: list[Tensor] = []

    def forward(self, microbatch: int, inputs: Any, end: End | None = None) -> Any:
        """What this stage hands on. With an end the last stage also computes the loss, kept in `losses`."""
        keeps_graph = torch.is_grad_enabled() and not self.recompute
        again = torch.is_grad_enabled() and self.recompute
        with torch.set_grad_enabled(keeps_graph):
            # a first layer may work in place, and running it again must find the inputs as they came
            output, loss = self._compute(microbatch, _copy(inputs) if again else inputs, end)
        if loss is not None:
            self.losses.append(loss.detach())
        if keeps_graph:
            edges = _edges(output, loss)
            self._keep(microbatch, inputs, lambda: edges)
        elif again:
            self._keep(microbatch, inputs, lambda: _edges(*self._compute(microbatch, inputs, end)))
            output = self._announce_gradients(inputs, output)
        return output

    def backward(self, microbatch: int, grads: Sequence[Tensor | None] | None) -> list[Tensor | None]:
        """B: adds to the weights' gradients; the gradients of the input tensors, None for those that need none.

        grads   one for each tensor that forward handed on, None where nobody needed it; None: begin at the loss
        """
        stash = self.stash.pop(microbatch)
        edges = stash.edges()
        given = [None] * len(edges) if grads is None else grads
        due = [(e, g) for e, g in zip(edges, given, strict=True) if e and (grads is None or g is not None)]
        if due:
            torch.autograd.backward([edge for edge, _ in due], [grad for _, grad in due])
        return [None if tensor is None else tensor.grad for tensor in stash.inputs]

    def _keep(self, microbatch: int, inputs: Any, edges: Callable[[], list[GradientEdge | None]]) -> None:
        wanted = [leaf if leaf.requires_grad else None for leaf in tensors_of(inputs)]
        self.stash[microbatch] = Stash(wanted, edges)

    def _announce_gradients(self, inputs: Any, output: Any) -> Any:
        """Without a graph, say that all that may require a gradient does; where it turns out not to, it is dropped."""
        weights = (weight for layer in self.layers.values() for weight in layer.parameters())
        if not any(tensor.requires_grad for tensor in (*weights, *tensors_of(inputs))):
            return output
        return tree_map(lambda x: x.detach().requires_grad_(_has_gradient(x)) if isinstance(x, Tensor) else x, output)

    def _compute(self, microbatch: int, inputs: Any, end: End | None) -> tuple[Any, Tensor | None]:
        value = inputs
        for number, layer in self.layers.items():
            seed_for(self.seed, self.step, number, microbatch)
            value = layer(value)
            check_output(number, layer, value)
        if self.loss_fn is None or end is None:
            return value, None
        loss = self.loss_fn(value, end.target)
        check_loss(loss)
        # what counts nothing may be 0 ÷ 0, with NaN for a gradient: a microbatch in which every target is ignored
        return value, loss * end.scale if end.scale else torch.zeros_like(loss.detach())


def seed_for(seed: int, step: int, layer: int, microbatch: int) -> None:
    """Seed the generator for one layer and microbatch."""
    # not torch.manual_seed, which asks every kind of device and takes a hundred times as long
    torch.default_generator.manual_seed(hash((seed, step, layer, microbatch)) & (2**63 - 1))


def tensors_of(value: Any) -> list[Tensor]:
    """The tensors in what a layer hands on, in order."""
    return [leaf for leaf in tree_leaves(value) if isinstance(leaf, Tensor)]


def as_inputs(value: Any) -> Any:
    """What another stage handed on, as the leaves that this stage's graph starts from."""
    return tree_map(lambda x: x.detach().requires_grad_(x.requires_grad) if isinstance(x, Tensor) else x, value)


def check_output(number: int, layer: nn.Module, value: Any) -> None:
    """Raise HandOnError for what cannot be handed on to the next layer."""
    if not tensors_of(value):
        name = f"Layer {number} ({type(layer).__name__})"
        raise HandOnError(f"{name} returned {_a(value)}, but a layer hands on a tensor, or a tuple with tensors in it.")


def check_loss(loss: Any) -> None:
    if not isinstance(loss, Tensor) or loss.numel() != 1:
        what = f"a tensor of shape {tuple(loss.shape)}" if isinstance(loss, Tensor) else _a(loss)
        raise HandOnError(f"loss_fn returned {what}, but a loss is one number: let it return a mean or a sum.")


def _a(value: Any) -> str:
    """`a float`, `an int`, `None`, `a tuple without a tensor`."""
    name = type(value).__name__
    article = "an" if name[0].lower() in "aeiou" else "a"
    inside = " without a tensor" if isinstance(value, tuple | list | dict) else ""
    return "None" if value is None else f"{article} {name}{inside}"


def _copy(value: Any) -> Any:
    return tree_map(lambda x: x.clone() if isinstance(x, Tensor) else x, value)


def _edges(output: Any, loss: Tensor | None) -> list[GradientEdge | None]:
    ends = tensors_of(output) if loss is None else [loss]
    return [get_gradient_edge(end) if end.requires_grad else None for end in ends]


def _has_gradient(tensor: Tensor) -> bool:
    return tensor.is_floating_point() or tensor.is_complex()
