"""Tensors that lie in one memory: the same tensor twice, or a tensor and a view of it.

A layer may count on that, and write into one of them to change the others. So what lies together when a stage hands it
on crosses as one region of bytes, and lies together again where it arrives.

Values are then those of the unsplit model. Gradients would not be: each tensor that a stage is given begins a graph of
its own, which does not know that a write into another one changed it. A layer that writes there is refused.
"""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map

from ppcourse.runtime.values import wire
from ppcourse.runtime.values.handed_on import HandOnError, tensors_of

BLOCK = 16  # bytes of the longest element: where a region may begin, so that each type can be read in it


@dataclass(frozen=True)
class Piece:
    """Stands for a tensor in a region: where it lies there, in elements, and what it is."""

    region: int
    dtype: torch.dtype
    shape: tuple[int, ...]
    stride: tuple[int, ...]
    offset: int
    conjugate: bool
    negative: bool
    requires_grad: bool


class Bundle(NamedTuple):
    """What crosses in the place of a value whose tensors lie together."""

    regions: tuple[Tensor, ...]
    value: Any


def bundled(value: Any) -> Any:
    """`value`, or a Bundle if some of its tensors lie together."""
    pieces: dict[int, Piece] = {}
    regions: list[Tensor] = []
    for group in groups(tensors_of(value)):
        start = min(_span(tensor)[0] for tensor in group) // BLOCK * BLOCK
        for tensor in group:
            pieces[id(tensor)] = _piece(tensor, len(regions), start)
        size = max(_span(tensor)[1] for tensor in group) - start
        bytes_ = torch.empty(0, dtype=torch.uint8, device=group[0].device)
        regions.append(bytes_.set_(group[0].untyped_storage(), start, (size,), (1,)))
    if not regions:
        return value
    return Bundle(tuple(regions), tree_map(lambda x: pieces.get(id(x), x) if isinstance(x, Tensor) else x, value))


def unbundled(value: Any) -> Any:
    """What was bundled. Tensors that required a gradient do again, as leaves."""
    if not isinstance(value, Bundle):
        return value
    return tree_map(lambda x: _tensor(x, value.regions[x.region]) if isinstance(x, Piece) else x, value.value)


def copied(value: Any) -> Any:
    """The same in memory of its own; what lay together does so there too."""

    def copy(leaf: Any) -> Any:
        # cloned first, so that a meter sees nothing of the memory that was given
        return leaf.clone().detach().requires_grad_(leaf.requires_grad) if isinstance(leaf, Tensor) else leaf

    return unbundled(tree_map(copy, bundled(value)))


class Unrelated:
    """Tensors that a stage was given, whose graphs begin apart though they lie together.

    Where the stage before runs its forward again, nobody knows yet which will have a gradient: all that may count.
    """

    def __init__(self, value: Any) -> None:
        self._groups = groups([tensor for tensor in tensors_of(value) if tensor.requires_grad])
        self._versions = [_versions(group) for group in self._groups]

    def check(self, number: int, layer: nn.Module) -> None:
        """Raise HandOnError if a layer has written into them."""
        for group, before in zip(self._groups, self._versions, strict=True):
            if _versions(group) != before and not _apart(group):
                raise HandOnError(
                    f"Layer {number} ({type(layer).__name__}) writes into memory in which two of the tensors lie that"
                    " its stage was given. Each has a gradient of its own there, which this would make wrong; let the"
                    " layer clone() before it writes, or be in one stage with the layer that made them."
                )


def memory_of(tensors: Iterable[Tensor]) -> set[int]:
    """What tells where these lie."""
    return {tensor.untyped_storage()._cdata for tensor in tensors if _is_plain(tensor)}


def groups(tensors: Sequence[Tensor]) -> list[list[Tensor]]:
    """Those of `tensors` that lie together. Raises TypeError for what cannot cross anyway."""
    if len(tensors) < 2:
        return []
    by_storage: dict[int, list[Tensor]] = defaultdict(list)
    for tensor in tensors:
        if _is_plain(tensor) and tensor.numel():
            by_storage[tensor.untyped_storage()._cdata].append(tensor)
    found = []
    for several in by_storage.values():
        if len(several) > 1:
            found += _meeting(several)
    return found


def _is_plain(tensor: Tensor) -> bool:
    return tensor.layout is torch.strided and not tensor.is_nested


def _meeting(tensors: list[Tensor]) -> list[list[Tensor]]:
    """Of tensors in one storage, groups whose spans overlap; not those that only lie between each other's elements,
    if they would take more room together than apart."""
    found, end = list[list[Tensor]](), 0
    for tensor in sorted(tensors, key=_span):
        wire.check_memory(tensor)
        start, last = _span(tensor)
        if not found or start >= end:
            found.append([])
        found[-1].append(tensor)
        end = max(end, last)
    return [group for group in found if len(group) > 1 and not (_wasteful(group) and _apart(group))]


def _wasteful(group: list[Tensor]) -> bool:
    first, last = min(_span(tensor)[0] for tensor in group), max(_span(tensor)[1] for tensor in group)
    return last - first > sum(tensor.numel() * tensor.itemsize for tensor in group)


def _apart(group: list[Tensor]) -> bool:
    return not any(overlap(*pair) for pair in combinations(group, 2))


def overlap(one: Tensor, other: Tensor) -> bool:
    """Whether two tensors of one storage have a byte in common."""
    marks = torch.zeros(max(_span(one)[1], _span(other)[1]), dtype=torch.bool)
    _bytes_in(marks, one).fill_(True)
    return bool(_bytes_in(marks, other).any())


def _bytes_in(marks: Tensor, tensor: Tensor) -> Tensor:
    """Of one mark for each byte of a storage, those of a tensor's."""
    size = tensor.itemsize
    strides = [step * size for step in tensor.stride()]
    return marks.as_strided((*tensor.shape, size), (*strides, 1), tensor.storage_offset() * size)


def _span(tensor: Tensor) -> tuple[int, int]:
    """The first byte of its storage that a tensor has, and the one after the last."""
    first = int(tensor.storage_offset())
    last = first + sum((size - 1) * step for size, step in zip(tensor.shape, tensor.stride(), strict=True))
    return first * tensor.itemsize, (last + 1) * tensor.itemsize


def _piece(tensor: Tensor, region: int, start: int) -> Piece:
    offset = int(tensor.storage_offset()) - start // tensor.itemsize
    kind = tensor.is_conj(), tensor.is_neg(), tensor.requires_grad
    return Piece(region, tensor.dtype, tuple(tensor.shape), tensor.stride(), offset, *kind)


def _tensor(piece: Piece, region: Tensor) -> Tensor:
    readable = region[: region.numel() // piece.dtype.itemsize * piece.dtype.itemsize]
    tensor = readable.view(piece.dtype).as_strided(piece.shape, piece.stride, piece.offset)
    tensor = tensor.conj() if piece.conjugate else tensor
    tensor = torch._neg_view(tensor) if piece.negative else tensor
    # a view, and not memory of its own: writes into one count as writes into all, for what autograd has saved
    return tensor.detach().requires_grad_(piece.requires_grad)


def _versions(tensors: Sequence[Tensor]) -> list[int]:
    return [tensor._version for tensor in tensors]
