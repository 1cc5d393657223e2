"""What layers keep from one forward to the next, so that each microbatch counts once, and for its own graph only.

That is their buffers, and of their attributes what kept.py can see.
"""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TypeAlias, TypeGuard

from torch import Tensor, nn
from torch.nn.modules.batchnorm import _NormBase
from torch.nn.parameter import is_lazy

from ppcourse.runtime.stages.kept import copies_of, is_kept, same, tensors_among
from ppcourse.runtime.values.together import memory_of

Buffers: TypeAlias = dict[tuple[nn.Module, str], Any]
"""{(module, name): the value of a buffer or attribute}"""

OF_ALL_MODULES = frozenset(vars(nn.Module()))


class Renewed:
    """What lets a forward write into tensors that the graphs of other microbatches have saved: it finds new ones, with
    the same values. Only those that a forward before has written into; the others stay where they are."""

    def __init__(self, modules: Sequence[nn.Module]) -> None:
        # backward reads no statistics of a norm that keeps them, so its graphs need none of their own
        self._modules = [module for module in modules if not isinstance(module, _NormBase)]
        self._written: set[tuple[nn.Module, str]] = set()

    @contextmanager
    def for_one(self) -> Iterator[None]:
        """In here a forward runs and keeps a graph."""
        _put(_copied({key: value for key in self._written if _is_data(value := _value(*key))}))
        before = {key: (value, value._version) for key, value in _all(self._modules).items() if _is_data(value)}
        yield
        written = [value for value, version in before.values() if value._version != version]
        if written:  # and their views, whose own versions do not say so
            there = memory_of(written)
            self._written |= {key for key, (value, _) in before.items() if memory_of([value]) <= there}


def stateful(modules: Iterable[nn.Module]) -> list[nn.Module]:
    """Those that may keep something. PyTorch's own have buffers for it, or hooks."""

    def plain(module: nn.Module) -> bool:
        hooks = module._forward_hooks or module._forward_pre_hooks
        return type(module).__module__.startswith("torch.nn.") and not (module._buffers or hooks)

    return [module for module in modules if not plain(module)]


def tensors_kept(modules: Iterable[nn.Module]) -> list[Tensor]:
    return tensors_among(_all(modules).values())


def copies(modules: Iterable[nn.Module]) -> Buffers:
    """The values as they are now."""
    return _copied(_all(modules))


def changed(before: Buffers) -> Buffers:
    """Those of the values that are no longer there."""
    return {key: old for key, old in before.items() if not same(old, _value(*key))}


@contextmanager
def as_before(buffers: Buffers) -> Iterator[None]:
    """In here these values are there once more; afterwards, whatever is done to them, those of now."""
    # other tensors and not other values: the graphs of other microbatches may have saved those of now
    now = {key: _value(*key) for key in buffers}
    _put(buffers)
    try:
        yield
    finally:
        _put(now)


def _all(modules: Iterable[nn.Module]) -> Buffers:
    found: Buffers = {}
    for module in modules:
        found |= {(module, name): buffer for name, buffer in module._buffers.items()}
        for name, value in vars(module).items():
            if name not in OF_ALL_MODULES and is_kept(value):
                found[module, name] = value
    return found


def _value(module: nn.Module, name: str) -> Any:
    return module._buffers[name] if name in module._buffers else vars(module).get(name)


def _copied(buffers: Buffers) -> Buffers:
    return dict(zip(buffers, copies_of(list(buffers.values())), strict=True))


def _is_data(value: Any) -> TypeGuard[Tensor]:
    return isinstance(value, Tensor) and not (is_lazy(value) or value.requires_grad or value.is_inference())


def _put(buffers: Buffers) -> None:
    for (module, name), value in buffers.items():
        place = module._buffers if name in module._buffers else vars(module)
        place[name] = value
