"""Live bytes on the CPU: every storage that an operator makes is watched until it dies.

On a GPU torch.cuda.max_memory_allocated tells the same. Watching costs about 15 µs an operator, so a meter
is on only when asked for, and never in runs whose time counts.
"""

import weakref
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


class Meter:
    """A meter that does not measure: `with meter:` around the work of an action."""

    peak = held = 0

    def __enter__(self) -> None: ...

    def __exit__(self, *error: object) -> None: ...

    def watch(self, value: Any) -> None:
        """Count the tensors in `value`, which were made outside."""

    def boundary(self) -> None:
        """Between two actions: note what is held."""

    def reset(self) -> None:
        """Begin new peaks."""


class LiveBytes(Meter):
    """Counts each storage once, from the operator that makes it until nothing refers to it.

    live   bytes now, weights and buffers included
    peak   the most since the last reset, within actions (temporaries inside an operator are unseen)
    held   the most between two actions, weights, buffers and their gradients left out
    """

    def __init__(self, model: nn.Module) -> None:
        self.live = self.peak = self.held = 0
        self._model = model
        self._seen: dict[int, weakref.ref[torch.UntypedStorage]] = {}
        self._mode = _Watch(self)
        self.watch([*model.parameters(), *model.buffers()])
        self._weights = self.live

    def __enter__(self) -> None:
        self._mode.__enter__()  # type: ignore[no-untyped-call]

    def __exit__(self, *error: object) -> None:
        self._mode.__exit__(*error)  # type: ignore[no-untyped-call]

    def watch(self, value: Any) -> None:
        for leaf in tree_leaves(value):
            if isinstance(leaf, Tensor):
                self._watch(leaf.untyped_storage())

    def boundary(self) -> None:
        grads = sum(p.grad.untyped_storage().nbytes() for p in self._model.parameters() if p.grad is not None)
        self.held = max(self.held, self.live - self._weights - grads)

    def reset(self) -> None:
        self.peak, self.held = self.live, 0

    def _watch(self, storage: torch.UntypedStorage) -> None:
        key = storage._cdata
        if key in self._seen:
            return
        size = storage.nbytes()
        self._seen[key] = weakref.ref(storage, lambda _: self._died(key, size))
        self.live += size
        self.peak = max(self.peak, self.live)

    def _died(self, key: int, size: int) -> None:
        del self._seen[key]
        self.live -= size


class _Watch(TorchDispatchMode):  # type: ignore[no-untyped-call]
    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """No: to skip torch.compile's machinery torch would first import it, which takes seconds on each rank."""
        return False

    def __init__(self, meter: LiveBytes) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.meter = meter

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        self.meter.watch(out)
        return out
