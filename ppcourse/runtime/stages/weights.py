"""What stages have from step to step: weights, those of them that are trained, and buffers. Each counts once, however
many layers share it.
"""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import Any

from torch import Tensor, nn

from ppcourse.analysis.tied import Tied


def counted(stages: Sequence[Sequence[nn.Module]]) -> dict[str, Any]:
    """What `Sizes` has of it, by its names. The layers have been through a step: trained is what has a gradient, for
    what no forward uses gets none.

    Of weights of several kinds, one of half the bytes counts as half a weight of the largest kind.
    """
    size = max((weight.itemsize for stage in stages for weight in _tensors(stage, buffers=False)), default=4)
    by_stage = zip(*(_add_up(_tensors(stage), size) for stage in stages), strict=True)
    numbers = dict(zip(("parameters", "trainable", "buffers"), map(list, by_stage), strict=True))
    return {"weight_bytes": float(size), "gradient_bytes": float(size), "tied": _tied(stages, size), **numbers}


def _tied(stages: Sequence[Sequence[nn.Module]], size: int) -> list[Tied]:
    """What several of the stages have."""
    homes: dict[Tensor, list[int]] = defaultdict(list)
    for stage, layers in enumerate(stages):
        for tensor in _tensors(layers):
            homes[tensor].append(stage)
    together: dict[tuple[int, ...], list[Tensor]] = defaultdict(list)
    for tensor, where in homes.items():
        together[tuple(where)].append(tensor)
    return [Tied(where, *_add_up(tensors, size)) for where, tensors in together.items() if len(where) > 1]


def _tensors(layers: Iterable[nn.Module], buffers: bool = True) -> list[Tensor]:
    every = nn.ModuleList(layers)
    return [*every.parameters(), *(every.buffers() if buffers else ())]


def _add_up(tensors: Iterable[Tensor], size: int) -> tuple[float, float, float]:
    """Weights of so many bytes, those with a gradient, and bytes of buffers."""
    weights = trained = buffers = 0.0
    for tensor in tensors:
        if isinstance(tensor, nn.Parameter):
            count = tensor.numel() * tensor.itemsize / size
            weights, trained = weights + count, trained + (count if tensor.grad is not None else 0.0)
        else:
            buffers += tensor.untyped_storage().nbytes()
    return weights, trained, buffers
