"""Models and batches that the GPU check runs, made on the CPU, the same every time."""

import itertools
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ppcourse.runtime.data import batches, text_loss
from ppcourse.runtime.models import gpt, mlp, seeded
from ppcourse.runtime.stages.stage import LossFunction

P, M = 4, 8  # what every schedule can have
CONTEXT = 16


class Task(NamedTuple):
    model: nn.Sequential
    inputs: Any
    targets: Any
    loss_fn: LossFunction


def small_gpt(m: int = M, blocks: int = 6) -> Task:
    """A GPT of blocks + 2 layers, in float64: what differs is then wrong, and not rounded."""
    [(inputs, targets)] = batches(2 * m, CONTEXT, 1)
    return Task(gpt(blocks, width=16, heads=2, context=CONTEXT).double(), inputs, targets, text_loss)


def small_mlp(layers: int = 8, rows: int = 2 * M, width: int = 16, dropout: float = 0.0) -> Task:
    """Equal layers in float64; with dropout, so that random numbers matter."""
    model = mlp(layers, width).double()
    if dropout:
        model = nn.Sequential(*(nn.Sequential(layer, nn.Dropout(dropout)) for layer in model))
    inputs, targets = noise(2, rows, width).double()
    return Task(model, inputs, targets, F.mse_loss)


def wide_mlp(layers: int, width: int, rows: int, ends: int = 16) -> Task:
    """Layers that keep two tensors of [rows, width] from F to its backward and two from I to W, float32.

    ends   width of what comes in and goes out, so that the batch itself takes no memory to speak of
    rows   of a microbatch, M of which are the batch
    """
    widths = [ends, *[width] * (layers - 1), ends]

    def build() -> nn.Sequential:
        pairs = itertools.pairwise(widths)
        return nn.Sequential(*(nn.Sequential(nn.Linear(a, b), nn.Tanh(), nn.Tanh()) for a, b in pairs))

    inputs, targets = noise(2, M * rows, ends)
    return Task(seeded(build, 0), inputs, targets, F.mse_loss)


def noise(*shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(0))
