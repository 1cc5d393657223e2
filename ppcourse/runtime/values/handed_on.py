"""What a layer hands on to the next one, and what a stage hands on to another: what it may be, how it crosses."""

from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves, tree_map

from ppcourse.runtime.values import wire

PLAIN = (Tensor, bool, int, float, complex, str, bytes, type(None), torch.dtype, torch.device)


class HandOnError(TypeError):
    """A layer, or the loss function, returned what cannot be handed on."""


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


def check_crosses(value: Any) -> None:
    """Raise TypeError for what cannot be handed on to another stage, also where that is on the same rank."""
    for leaf in tree_leaves(value):
        if isinstance(leaf, Tensor):
            wire.check_memory(leaf)
        elif not isinstance(leaf, PLAIN):
            wire.pack(leaf, visible=0)


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
