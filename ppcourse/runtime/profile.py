"""What each layer of a model takes, measured here and now: the time of F, I and W, and the bytes that it keeps.

Each layer runs as a stage of its own, in this process and with one thread, as ranks do (rounds.py).
"""

import copy
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from numbers import Integral, Real
from typing import Any

from torch import nn

from ppcourse.analysis.ledger import aligned
from ppcourse.analysis.memory import Sizes
from ppcourse.analysis.partition import partition
from ppcourse.analysis.shape import per_stage
from ppcourse.runtime.layers import Model, layers_of
from ppcourse.runtime.prepare import check_function
from ppcourse.runtime.rounds import Rounds
from ppcourse.runtime.stages.batch import Batch
from ppcourse.runtime.stages.stage import LossFunction
from ppcourse.runtime.values.extras import check_extras
from ppcourse.schedules.costs import Costs
from ppcourse.schedules.schedule import Schedule

HEAD = ("layer", "F", "I", "W", "parameters", "stashed", "kept for W", "boundary")


@dataclass(frozen=True)
class LayerProfile:
    """A layer, for one microbatch: seconds of CPU time, how many weights, and bytes if it were a stage of its own."""

    name: str
    forward: float
    input_grad: float
    weight_grad: float
    parameters: int
    stashed: int = 0
    kept_for_w: int = 0
    boundary: int = 0

    @property
    def time(self) -> float:
        """Of F, I and W."""
        return self.forward + self.input_grad + self.weight_grad


@dataclass(frozen=True)
class Profile:
    """What the layers of a model take.

    rounds   how many each time is the median of; 0: nothing could be measured, times stand in proportion to weights,
             and no bytes are known
    """

    layers: tuple[LayerProfile, ...]
    rounds: int
    _weigh: Callable[[Sequence[int], bool], dict[str, Any]] | None = field(default=None, repr=False, compare=False)

    @property
    def times(self) -> tuple[float, ...]:
        """F, I and W of each layer together: what to partition by."""
        return tuple(layer.time for layer in self.layers)

    def costs(self, partition_sizes: Sequence[int], comm: float = 0.0, recompute: bool = False) -> Costs:
        """What an action of each stage takes. With `recompute`, I and B begin with F."""
        forward, input_grad, weight_grad = (
            self._by_stage(word, partition_sizes) for word in ("forward", "input_grad", "weight_grad")
        )
        if recompute:
            input_grad = tuple(i + f for i, f in zip(input_grad, forward, strict=True))
        return Costs(forward, input_grad, weight_grad, comm=comm)

    def sizes(self, partition_sizes: Sequence[int], *, optimizer_bytes: float = 0.0, recompute: bool = False) -> Sizes:
        """What each stage takes, for `ledger(plan, sizes)`: weights and gradients as the model has them.

        optimizer_bytes   bytes of optimizer state for a trained weight: 8 for Adam where weights have 32 bits (torch's
                          counts its steps beside, 4 bytes a tensor)
        recompute         whether ranks will keep the inputs of their stages only

        Stages are weighed as such: they keep less than their layers would apart, since what a layer hands to the next
        is kept once. So is what a stage hands to the next one, where both are on one rank. Raises ValueError if
        nothing could be measured.
        """
        if self._weigh is None:
            raise ValueError("This profile could not run the model, so it knows no bytes.")
        found = self._weigh(_checked(partition_sizes, len(self.layers)), recompute)
        return Sizes(optimizer_bytes=optimizer_bytes, **found)

    def _by_stage(self, word: str, sizes: Sequence[int]) -> tuple[float, ...]:
        return per_stage([getattr(layer, word) for layer in self.layers], _checked(sizes, len(self.layers)))

    def __str__(self) -> str:
        unit, scale = ("ms", 1e3) if self.rounds else ("weights", 1.0)
        rows = []
        for number, layer in enumerate(self.layers):
            times = (layer.forward, layer.input_grad, layer.weight_grad)
            bytes_ = (layer.stashed, layer.kept_for_w, layer.boundary)
            shown = [f"{seconds * scale:.3f}" if self.rounds else f"{seconds:g}" for seconds in times]
            rows.append([f"{number} {layer.name}", *shown, *(f"{n:,}" for n in (layer.parameters, *bytes_))])
        told = f"medians of {self.rounds}" if self.rounds else "not measured: in proportion to weights"
        return f"one microbatch; times in {unit}, {told}; sizes in bytes\n{aligned([HEAD, *rows])}"

    __repr__ = __str__


def profile(
    model: Model,
    inputs: Any,
    targets: Any = None,
    loss_fn: LossFunction | None = None,
    *,
    extras: Mapping[str, Any] | None = None,
    budget: float = 2.0,
    seed: int = 0,
) -> Profile:
    """Time and bytes of each layer for `inputs`, one microbatch. The loss, if it is given, belongs to the last layer.

    extras   {name: what layers get that take it by that name}, for this microbatch, as `run` has them
    budget   seconds after which no further round begins; one is timed in any case, after one that is to warm up

    A layer that outweighs a stage may be split finer: give its parts as layers of their own, [*model[:-1], *model[-1]].

    The model stays as it is. It is never an error that a layer cannot be run: then a warning says which and why, and
    the profile is in proportion to weights. Raises ValueError for what is no model, no loss function or no budget, and
    for extras that no layer takes.
    """
    layers = layers_of(model)
    given = check_extras(extras, layers) if extras else {}
    if loss_fn is not None:
        check_function(loss_fn, "loss_fn", "torch.nn.functional.cross_entropy")
    if not isinstance(budget, Real) or budget != budget:  # NaN
        raise ValueError(f"budget is {budget!r}; it must be a number of seconds, 2.0 for example.")
    try:
        run = Rounds(copy.deepcopy(layers), inputs, targets, loss_fn, given, seed)
        times, rounds = run.times(budget)
        apart = run.weigh([1] * len(layers))
    except (Exception, SystemExit) as error:
        why = " ".join(f"{type(error).__name__}: {error}".split())
        warnings.warn(f"The model could not be profiled, so weights are counted instead ({why}).", stacklevel=2)
        return _by_weights(layers)
    numbers = zip(layers, times, apart, strict=True)
    found = (LayerProfile(type(x).__name__, *spent, _weights(x), *kept[:3]) for x, spent, kept in numbers)
    return Profile(tuple(found), rounds, run.sizes)


def partition_by_profile(
    method: str | Sequence[int], plan: Schedule, model: Model, batch: Batch, loss_fn: LossFunction | None
) -> str | Sequence[int]:
    """For "profiled", the partition whose busiest rank has least to do, by the times of the batch's first microbatch;
    any other partition as it is."""
    if not (isinstance(method, str) and method == "profiled"):
        return method
    if plan.num_stages > len(layers_of(model)):
        return "uniform"  # which cannot be, and says so
    found = profile(model, batch.inputs[0], batch.ends[0].target, loss_fn, extras=batch.extras[0])
    times = found.times if plan.trains else [layer.forward for layer in found.layers]
    return partition(times, plan.num_stages, placement=plan.placement)


def _by_weights(layers: Sequence[nn.Module]) -> Profile:
    """Each of F, I and W multiplies a row with every weight once, if weights are matrices."""
    counts = [(type(layer).__name__, _weights(layer)) for layer in layers]
    return Profile(tuple(LayerProfile(name, *(float(count),) * 3, count) for name, count in counts), rounds=0)


def _weights(layer: nn.Module) -> int:
    return sum(parameter.numel() for parameter in layer.parameters())


def _checked(sizes: Sequence[int], layers: int) -> Sequence[int]:
    whole = isinstance(sizes, Iterable) and all(isinstance(size, Integral) and size >= 1 for size in sizes)
    if not whole or sum(sizes) != layers:
        raise ValueError(f"The partition {sizes!r} does not cut {layers} layers into stages of at least one.")
    return tuple(map(int, sizes))
