"""Where a stage's graph is cut: at every call of its forward that mixes data with weights.

    fixed     a weight, a buffer, or made of such: positions looked up in an embedding, a weight's transpose
    data      everything else
    weights   what is fixed and requires a gradient

Calls with fixed tensors only stay in one graph with their weights, so W runs back through it; calls without weights
stay in the stage's graph, for I.

What mixes and still cannot be cut goes through a gate: its weights' gradients are computed at I, and given to them at
W. That is: recurrent layers (PyTorch's are one call, all the way back through time), attention over weights, custom
autograd functions (they make all gradients in one go), and in-place operations with weights. The same happens, without
a gate, where no calls are seen: in scripted modules and under torch.func. What is compiled runs uncompiled.

Refused with SplitError: a forward that differentiates through its own weights (torch.autograd.grad in a layer).
"""

import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any
from unittest.mock import patch

import torch
import torch.nn.functional as F
from torch import Tensor, autograd, nn
from torch.autograd.graph import saved_tensors_hooks
from torch.overrides import TorchFunctionMode
from torch.utils.checkpoint import CheckpointFunction, checkpoint

from ppcourse.runtime.stages.split import Splitter

LOOK_INSIDE = {F.multi_head_attention_forward}  # written in Python: its parts are cut, not the whole
NOT_CUT = {torch.lstm, torch.gru, torch.rnn_tanh, torch.rnn_relu, F.scaled_dot_product_attention}
MARK = "_ppcourse_fixed"
APPLY = autograd.Function.apply.__func__  # type: ignore[attr-defined]  # before it is replaced
NOTHING = nullcontext()


@contextmanager
def cutting(splitter: Splitter, modules: Iterable[nn.Module] = ()) -> Iterator[None]:
    """While on, calls are cut, and custom autograd functions gated. `modules`: those that have buffers."""
    for module in modules:
        mark_fixed(module._buffers)
    with cuttable(), _CutAtWeights(splitter):
        _gating.append(splitter)
        try:
            yield
        finally:
            _gating.pop()


@contextmanager
def cuttable() -> Iterator[None]:
    """Let cuts see custom autograd functions and compiled layers. A cut does so itself, and around many it is quicker:
    to change the class of all autograd functions takes as long as a cut."""
    if autograd.Function.__dict__["apply"] is _SEEN:
        yield
        return
    with patch.object(autograd.Function, "apply", _SEEN), _uncompiled():
        yield


def _uncompiled() -> AbstractContextManager[Any]:
    """What is compiled runs as it is written: there would be no calls to see."""
    return torch.compiler.set_stance("force_eager") if "torch._dynamo" in sys.modules else NOTHING


def closed(splitter: Splitter, value: Any) -> Any:
    """What a stage hands on; weights in it are gated."""
    return _swap(value, _gates(splitter, tensors_in([value])))


def is_fixed(x: Tensor) -> bool:
    mark = getattr(x, MARK, None)
    if mark is not None:
        return bool(mark == x._version)
    return type(x) is not Tensor and isinstance(x, nn.Parameter)


def mark_fixed(value: Any) -> None:
    """Until somebody writes into them, the tensors in `value` are fixed."""
    for x in tensors_in([value]):
        if not (isinstance(x, nn.Parameter) or x.is_inference()):  # these need no mark, and can have none
            setattr(x, MARK, x._version)


def tensors_in(values: Iterable[Any]) -> Iterator[Tensor]:
    for value in values:
        if isinstance(value, Tensor):
            yield value
        elif isinstance(value, tuple | list):
            yield from tensors_in(value)
        elif isinstance(value, dict):
            yield from tensors_in(value.values())


class _CutAtWeights(TorchFunctionMode):
    """Sees every call of a forward."""

    def __init__(self, splitter: Splitter) -> None:
        super().__init__()
        self.splitter = splitter

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        tensors = list(tensors_in([args, kwargs]))
        data = [x for x in tensors if not is_fixed(x)]
        if not data:
            result = func(*args, **kwargs)
            mark_fixed(result)
            return result
        mixes = len(data) < len(tensors) and any(x.requires_grad and is_fixed(x) for x in tensors)
        if not mixes or not torch.is_grad_enabled():
            return func(*args, **kwargs)
        if torch._C._are_functorch_transforms_active():
            self.splitter.shares = True
            return func(*args, **kwargs)
        if func in LOOK_INSIDE:
            with patch.object(F, "has_torch_function", lambda tensors: False), self:
                return func(*args, **kwargs)
        overwrites = _overwrites(func, kwargs)
        if func in NOT_CUT or overwrites:
            self.splitter.shares |= overwrites and is_fixed(tensors[0])
            gates = _gates(self.splitter, tensors[1:] if overwrites else tensors)
            return func(*_swap(args, gates), **_swap(kwargs, gates))
        return self._cut(func, args, kwargs, [x for x in data if x.requires_grad])

    def _cut(self, func: Any, args: Any, kwargs: Any, data: list[Tensor]) -> Any:
        outside = {id(x): x for x in data}
        inside = self.splitter.begin(list(outside.values()))
        new = dict(zip(outside, inside, strict=True))
        with _unpacking_once():
            value = func(*_swap(args, new), **_swap(kwargs, new))
        results = [y for y in tensors_in([value]) if y.requires_grad]
        begun = {id(x) for x in inside}
        if any(id(y) in begun or id(y._base) in begun for y in results):
            return func(*args, **kwargs)  # a view of the data, for which the weight only gave a shape or a type
        if not results:
            return value
        joined = self.splitter.join(results, inside, list(outside.values()))
        return _swap(value, dict(zip(map(id, results), joined, strict=True)))


def _custom(function: type[autograd.Function], *args: Any, **kwargs: Any) -> Any:
    """What a custom autograd function returns."""
    tensors = list(tensors_in([args, kwargs]))
    if function is CheckpointFunction and (_gating or _checkpointed) and any(x.requires_grad for x in tensors):
        run, preserve, *given = args  # as it is, this kind of checkpoint would run the weights' backward inside I
        return checkpoint(_with_its_own(run), *given, use_reentrant=False, preserve_rng_state=preserve)
    if not _gating:
        return APPLY(function, *args, **kwargs)
    gates = _gates(_gating[-1], tensors)
    return APPLY(function, *_swap(args, gates), **_swap(kwargs, gates))


def _with_its_own(run: Callable[..., Any]) -> Callable[..., Any]:
    """What is checkpointed, so that checkpoints within are of the other kind too, also when it runs again at I."""

    def inside(*given: Any) -> Any:
        _checkpointed.append(run)
        try:
            with cuttable():
                return run(*given)
        finally:
            _checkpointed.pop()

    return inside


_SEEN = classmethod(_custom)
_gating: list[Splitter] = []
"""Of the cuts that are on, the innermost last."""
_checkpointed: list[Callable[..., Any]] = []
"""Of what runs under a checkpoint whose kind was changed, the innermost last."""


def _gates(splitter: Splitter, tensors: Iterable[Tensor]) -> dict[int, Tensor]:
    """By id, a gate for each weight."""
    weights = {id(x): x for x in tensors if x.requires_grad and is_fixed(x)}
    return {key: splitter.gate(weight) for key, weight in weights.items()}


def _unpacking_once() -> AbstractContextManager[Any]:
    """Under hooks on saved tensors, those of a checkpoint above all: I unpacks what is saved, and W finds it so."""
    hooks = torch._C._autograd._top_saved_tensors_default_hooks(True)
    if hooks is None:
        return NOTHING
    pack, unpack = hooks
    return saved_tensors_hooks(lambda x: [pack(x), None], lambda kept: _unpacked(kept, unpack))


def _unpacked(kept: list[Any], unpack: Callable[[Any], Tensor]) -> Any:
    if kept[1] is None:
        kept[:] = None, unpack(kept[0])
    return kept[1]


def _overwrites(func: Any, kwargs: Any) -> bool:
    name = func.__name__.partition(".")[0]
    return "out" in kwargs or name.startswith(("__i", "__set")) or (name.endswith("_") and not name.endswith("__"))


def _swap(value: Any, new: dict[int, Tensor]) -> Any:
    """`value` with the tensors whose ids are in `new` replaced."""
    # not tree_map, which takes longer than all the rest of a cut
    if isinstance(value, Tensor):
        return new.get(id(value), value)
    if isinstance(value, dict):
        return {key: _swap(part, new) for key, part in value.items()}
    if not new or not isinstance(value, tuple | list):
        return value
    parts = [_swap(part, new) for part in value]
    return value._make(parts) if hasattr(value, "_make") else type(value)(parts)
