"""Where a rank computes: the CPU, or one GPU. Moves what it works on there, and what it tells back.

A job's device is "cpu" or, for instance, "cuda:1". Only ranks start CUDA, each when its first such job opens.
"""

from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map


def enter(device: str) -> None:
    """From now on this process works there."""
    if device != "cpu":
        torch.cuda.set_device(torch.device(device))
        torch.cuda.init()  # type: ignore[no-untyped-call]


def move(module: Any, device: str) -> None:
    """Move a module's weights and buffers. To a GPU, torch moves weights in place, so that what is tied stays so."""
    if device != "cpu" and isinstance(module, nn.Module):
        module.to(device)


def there(value: Any, device: str) -> Any:
    """`value` with its tensors on the device, each moved once however often it comes: a mask of all microbatches is
    one mask there too."""
    if device == "cpu":
        return value
    moved: dict[int, Tensor] = {}

    def one(leaf: Any) -> Any:
        if not isinstance(leaf, Tensor):
            return leaf
        if id(leaf) not in moved:
            moved[id(leaf)] = leaf.detach().to(device).requires_grad_(leaf.requires_grad)
        return moved[id(leaf)]

    return tree_map(one, value)


def here(value: Any) -> Any:
    """`value` with its tensors in the CPU's memory, to be told to the notebook's process."""
    return tree_map(lambda leaf: leaf.cpu() if isinstance(leaf, Tensor) else leaf, value)


def generators(device: str) -> tuple[torch.Generator, ...]:
    """What layers draw random numbers from: the CPU's, and on a GPU that GPU's too."""
    if device == "cpu":
        return (torch.default_generator,)
    return torch.default_generator, torch.cuda.default_generators[torch.device(device).index]
