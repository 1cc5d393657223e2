"""Live bytes: every storage that an operator makes is watched until it dies, as one of the microbatch that made it.

Watching costs about 15 µs an operator, so a meter is on only when asked for, and never in runs whose time counts.
On a GPU it tells kinds apart in the same way, and the allocator's counters tell how much there is in all.
"""

import weakref
from collections.abc import Collection, Iterable
from typing import Any, NamedTuple, TypeAlias

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from ppcourse.analysis.ledger import KINDS

PARAMETERS, GRADIENTS, OPTIMIZER, ACTIVATIONS, KEPT_FOR_W, RECEIVED, SENT = KINDS

Owner: TypeAlias = tuple[int, int]
"""Stage and microbatch."""


class Between(NamedTuple):
    """What is kept between two actions, and for what.

    stashed   the microbatches of stages that wait for their B or I
    owed      those that wait for their W
    sent      outputs that are kept though they have been sent
    handed    what stages have handed over on their own rank, and is not used yet
    """

    stashed: Collection[Owner] = ()
    owed: Collection[Owner] = ()
    sent: Any = None
    handed: Any = None


NOTHING = Between()


class Memory(NamedTuple):
    """What a rank measured in a step, in bytes.

    kinds      by kind of a ledger
    peak       the most alive, within actions too, weights and gradients included; but not what a link keeps
    held       the most between two actions, weights and gradients and what a link keeps left out
    baseline   alive as the step began; the peak is never below it
    reserved   the most that the GPU's allocator had taken from the driver, None on the CPU. The context and
               communicators come on top, and only the driver's own tools see those
    """

    kinds: dict[str, float]
    peak: int
    held: int
    baseline: int
    reserved: int | None = None

    def with_link(self, buffers: tuple[int, int] | None) -> "Memory":
        """The same, and by kind what a link has counted: see Link.buffers."""
        if buffers is None:
            return self
        received, sent = buffers
        kinds = {**self.kinds, RECEIVED: received, SENT: self.kinds.get(SENT, 0.0) + sent}
        return self._replace(kinds={kind: kinds[kind] for kind in KINDS if kind in kinds})


class Meter:
    """A meter that does not measure: `with meter:` around the work of an action."""

    measures = False

    def __enter__(self) -> None: ...

    def __exit__(self, *error: object) -> None: ...

    def turn_to(self, owner: Owner) -> None:
        """What is made or watched from now on belongs to this microbatch of this stage."""

    def watch(self, value: Any) -> None:
        """Count the tensors in `value`, which were made outside."""

    def leave_out(self, batch: Any) -> None:
        """Until the next call, do not count these tensors, nor views of them: a batch is there anyway."""

    def boundary(self, between: Between = NOTHING) -> None:
        """Between two actions: note what is held."""

    def reset(self) -> None:
        """Begin new peaks."""

    def memory(self, optimizer: torch.optim.Optimizer | None = None) -> Memory | None:
        """What was measured since the last reset."""
        return None


class LiveBytes(Meter):
    """Counts each storage once, from the operator that makes it until nothing refers to it.

    live      bytes now, weights and buffers included
    peak      the most since the last reset, within actions (temporaries inside an operator are unseen)
    held      the most between two actions, weights, buffers and their gradients left out
    baseline  live at the last reset
    most      by kind, at the moment between two actions at which most was held of these kinds together
    """

    measures = True

    def __init__(self, model: nn.Module) -> None:
        self.live = self.peak = self.held = self.baseline = 0
        self.most: dict[str, float] = {}
        self._model, self._owner = model, (-1, -1)
        self._seen: dict[int, weakref.ref[torch.UntypedStorage]] = {}
        self._owners: dict[int, set[Owner]] = {}
        self._batch: dict[int, torch.UntypedStorage] = {}
        self._sizes: dict[int, int] = {}
        self._mode = _Watch(self)
        self.watch([*model.parameters(), *model.buffers()])

    def __enter__(self) -> None:
        self._mode.__enter__()  # type: ignore[no-untyped-call]

    def __exit__(self, *error: object) -> None:
        self._mode.__exit__(*error)  # type: ignore[no-untyped-call]

    def turn_to(self, owner: Owner) -> None:
        self._owner = owner

    def watch(self, value: Any) -> None:
        for storage in storages(value):
            self._watch(storage)

    def leave_out(self, batch: Any) -> None:
        # the storages themselves: an address that is free again may be anybody's
        self._batch = {storage._cdata: storage for storage in storages(batch)}

    def boundary(self, between: Between = NOTHING) -> None:
        static, grads = self._static(), self._gradients()
        self.held = max(self.held, self.live - sum(self._sizes.get(key, 0) for key in {**static, **grads}))
        now = dict.fromkeys((ACTIVATIONS, KEPT_FOR_W), 0.0) | ({} if between.sent is None else {SENT: 0.0})
        sent, handed = _sizes(between.sent), _sizes(between.handed)
        stashed, owed = set(between.stashed), set(between.owed)
        for key, owners in self._owners.items():
            if key in static or key in grads:
                continue
            if key in sent:
                now[SENT] += self._sizes[key]
            elif key in handed or not owners.isdisjoint(stashed):
                now[ACTIVATIONS] += self._sizes[key]
            elif not owners.isdisjoint(owed):
                now[KEPT_FOR_W] += self._sizes[key]
        if sum(now.values()) > sum(self.most.values()) or not self.most:
            self.most = now

    def reset(self) -> None:
        self.baseline = self.peak = self.live
        self.held, self.most = 0, {}

    def memory(self, optimizer: torch.optim.Optimizer | None = None) -> Memory:
        state = {} if optimizer is None else _sizes([*optimizer.state.values()])
        gradients = sum(self._gradients().values())
        static = {PARAMETERS: sum(self._static().values()), GRADIENTS: gradients, OPTIMIZER: sum(state.values())}
        return Memory({**static, **self.most}, self.peak, self.held, self.baseline)

    def _static(self) -> dict[int, int]:
        """Weights and buffers, as they are now: a layer's buffers may have been replaced."""
        return _sizes([*self._model.parameters(), *self._model.buffers()])

    def _gradients(self) -> dict[int, int]:
        return _sizes([parameter.grad for parameter in self._model.parameters()])

    def _watch(self, storage: torch.UntypedStorage) -> None:
        key = storage._cdata
        if key in self._batch:
            return
        if key in self._seen:
            self._owners[key].add(self._owner)
            return
        size = storage.nbytes()
        self._seen[key] = weakref.ref(storage, lambda _: self._died(key, size))
        self._owners[key], self._sizes[key] = {self._owner}, size
        self.live += size
        self.peak = max(self.peak, self.live)

    def _died(self, key: int, size: int) -> None:
        del self._seen[key], self._owners[key], self._sizes[key]
        self.live -= size


class AllocatorBytes(LiveBytes):
    """On a GPU: kinds as seen by operators, the peak as the caching allocator counts it (not run on one so far)."""

    def reset(self) -> None:
        torch.cuda.synchronize()
        super().reset()
        torch.cuda.reset_peak_memory_stats()  # to what is allocated now, so that no peak is below it
        self._allocated = torch.cuda.memory_allocated()

    def memory(self, optimizer: torch.optim.Optimizer | None = None) -> Memory:
        torch.cuda.synchronize()
        peak, reserved = torch.cuda.max_memory_allocated(), torch.cuda.max_memory_reserved()
        return super().memory(optimizer)._replace(peak=peak, baseline=self._allocated, reserved=reserved)


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


def meter_of(model: nn.Module, device: str = "cpu") -> LiveBytes:
    """What measures the bytes of a rank with this model, which may have no weights to tell by where it is."""
    on_gpu = device != "cpu" or any(parameter.is_cuda for parameter in model.parameters())
    return AllocatorBytes(model) if on_gpu else LiveBytes(model)


def storages(value: Any) -> Iterable[torch.UntypedStorage]:
    """Of the tensors in `value`, one after another; a storage comes as often as tensors share it."""
    for leaf in tree_leaves(value):
        if isinstance(leaf, Tensor) and leaf.layout is torch.strided:
            yield leaf.untyped_storage()


def _sizes(value: Any) -> dict[int, int]:
    """Bytes of each storage in `value`."""
    return {storage._cdata: storage.nbytes() for storage in storages(value)}
