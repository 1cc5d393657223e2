"""Running a layer again without a trace in its buffers: statistics count each microbatch once."""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import TypeAlias

import torch
from torch import Tensor, nn

Buffers: TypeAlias = dict[tuple[nn.Module, str], Tensor | None]
"""{(module, name): a buffer's value}"""


def copies(modules: Iterable[nn.Module]) -> Buffers:
    """The buffers' values as they are now."""
    return {(m, name): b if b is None else b.clone() for m in modules for name, b in m._buffers.items()}


def changed(before: Buffers) -> Buffers:
    """Those of the values that the buffers no longer have."""
    return {(m, name): old for (m, name), old in before.items() if not _same(old, m._buffers.get(name))}


@contextmanager
def as_before(buffers: Buffers) -> Iterator[None]:
    """In here the buffers have these values once more; afterwards, whatever is done to them, those of now."""
    # other tensors and not other values: the graphs of other microbatches may have saved those of now
    now = {(module, name): module._buffers.get(name) for module, name in buffers}
    _put(buffers)
    try:
        yield
    finally:
        _put(now)


def _put(buffers: Buffers) -> None:
    for (module, name), value in buffers.items():
        module._buffers[name] = value


def _same(one: Tensor | None, other: Tensor | None) -> bool:
    if one is None or other is None:
        return one is other
    return one.dtype == other.dtype and torch.equal(one, other)
