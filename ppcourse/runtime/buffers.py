"""Running a layer again without a trace in its buffers: statistics count each microbatch once."""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import TypeAlias, TypeGuard

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from ppcourse.runtime.together import copied, lies_in

Buffers: TypeAlias = dict[tuple[nn.Module, str], Tensor | None]
"""{(module, name): a buffer's value}"""


class Renewed:
    """What lets a forward write into buffers that the graphs of other microbatches have saved: it finds new ones, with
    the same values. Only those that a forward before has written into; the others stay where they are."""

    def __init__(self, modules: Sequence[nn.Module]) -> None:
        self._modules = modules
        self._written: set[tuple[nn.Module, str]] = set()

    @contextmanager
    def for_one(self, keeps_graph: bool) -> Iterator[None]:
        """In here a forward runs, and maybe keeps a graph."""
        if keeps_graph:
            _put(_copied({(module, name): module._buffers[name] for module, name in self._written}))
        before = {key: (buffer, buffer._version) for key, buffer in _all(self._modules).items() if _is_data(buffer)}
        yield
        written = [buffer for buffer, version in before.values() if buffer._version != version]
        if written:  # and their views, whose own versions do not say so
            self._written |= {key for key, (buffer, _) in before.items() if lies_in(buffer, written)}


def copies(modules: Iterable[nn.Module]) -> Buffers:
    """The buffers' values as they are now."""
    return _copied(_all(modules))


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


def _all(modules: Iterable[nn.Module]) -> Buffers:
    return {(module, name): buffer for module in modules for name, buffer in module._buffers.items()}


def _copied(buffers: Buffers) -> Buffers:
    return dict(zip(buffers, copied(list(buffers.values())), strict=True))


def _is_data(buffer: Tensor | None) -> TypeGuard[Tensor]:
    return buffer is not None and not is_lazy(buffer) and not buffer.requires_grad and not buffer.is_inference()


def _put(buffers: Buffers) -> None:
    for (module, name), value in buffers.items():
        module._buffers[name] = value


def _same(one: Tensor | None, other: Tensor | None) -> bool:
    if one is None or other is None:
        return one is other
    return one.dtype == other.dtype and torch.equal(one, other)
