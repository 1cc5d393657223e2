"""What an action and a hop take."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, fields
from numbers import Real
from typing import TypeAlias

from ppcourse.schedules.action import Op

PerStage: TypeAlias = float | Sequence[float]
"""One number for every stage, or one number a stage, in stage order."""


@dataclass(frozen=True)
class Costs:
    """How long the actions of each stage last, in any one unit of time.

    Costs are per stage, not per rank: to compare plans with different `v`, divide by `v`.

    forward      F of one microbatch (on the last stage the loss belongs to it)
    input_grad   I: the gradient of the stage's input
    weight_grad  W: the gradient of the stage's weights; B lasts `input_grad + weight_grad`
    comm         one hop from rank to rank: occupies neither rank, and hops do not queue
    overlap      an overlapped pair F&B; by default as long as F and B one after the other
    size         what a stage hands on for one microbatch, and the gradient that comes back for it, in bytes
    bandwidth    bytes in one unit of time from a rank to another; given, a message takes size ÷ bandwidth and
                 then comm, and messages from one rank to the same other rank queue; None: only comm counts

    Raises ValueError for what is not a finite number of at least 0, and for a bandwidth of 0.
    """

    forward: PerStage = 1.0
    input_grad: PerStage = 1.0
    weight_grad: PerStage = 1.0
    comm: float = 0.0
    overlap: PerStage | None = None
    size: PerStage = 0.0
    bandwidth: float | None = None

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if value is None and field.name in ("overlap", "bandwidth"):
                continue
            check_size(f"Costs.{field.name}", value, one_only=field.name in ("comm", "bandwidth"))
        if self.bandwidth == 0:
            raise ValueError("Costs.bandwidth is 0, and nothing would ever arrive; leave it out if only comm counts.")

    def durations(self, num_stages: int) -> dict[Op, tuple[float, ...]]:
        """How long each op lasts, stage by stage.

        Raises ValueError if a cost is given per stage for another number of stages.
        """
        forward = self._per_stage("forward", num_stages)
        input_grad = self._per_stage("input_grad", num_stages)
        weight_grad = self._per_stage("weight_grad", num_stages)
        backward = tuple(i + w for i, w in zip(input_grad, weight_grad, strict=True))
        return {Op.F: forward, Op.B: backward, Op.I: input_grad, Op.W: weight_grad}

    def overlaps(self, num_stages: int) -> tuple[float, ...] | None:
        """How long an overlapped pair lasts, by the stage of its F; None: as long as its F and its B."""
        return None if self.overlap is None else self._per_stage("overlap", num_stages)

    def transfers(self, num_stages: int) -> tuple[float, ...]:
        """How long what each stage hands on occupies the way to another rank."""
        sizes = self._per_stage("size", num_stages)
        return tuple(size / self.bandwidth if self.bandwidth else 0.0 for size in sizes)

    def _per_stage(self, name: str, num_stages: int) -> tuple[float, ...]:
        return _spread(f"Costs.{name}", getattr(self, name), num_stages)


def per_stage(name: str, value: PerStage, num_stages: int) -> tuple[float, ...]:
    """`value` as one number a stage. Raises ValueError, calling it `name`, if it is not at least 0 or does not fit."""
    check_size(name, value)
    return _spread(name, value, num_stages)


def check_size(name: str, value: PerStage, one_only: bool = False) -> None:
    """Raise ValueError unless `value` is a finite number of at least 0, or a list of them where that is allowed."""
    for number in [value] if one_only or isinstance(value, str) or not isinstance(value, Sequence) else value:
        if not is_size(number):
            lists = "" if one_only else ", or a list of one a stage"
            raise ValueError(f"{name} is {number!r}; it must be a finite number of at least 0{lists}.")


def demand_costs(costs: object) -> None:
    """Raise ValueError for what is no Costs: a number, say."""
    if not isinstance(costs, Costs):
        raise ValueError(f"costs is {costs!r}, but it must be Costs, for example Costs(forward=1, comm=0.1).")


def check_total(total: float) -> None:
    """Raise ValueError if `total`, a sum of costs, is more than a float holds, or something in it was."""
    if not total < math.inf:  # as is nan, what inf less inf makes
        raise ValueError("These costs add up to more than a number can hold, about 1.8e308; take a larger unit.")


def is_size(number: object) -> bool:
    """Whether it is a finite number of at least 0, which a float can hold."""
    try:
        return isinstance(number, Real) and 0 <= float(number) < math.inf
    except OverflowError:  # a whole number that no float can hold
        return False


def _spread(name: str, value: PerStage, num_stages: int) -> tuple[float, ...]:
    if not isinstance(value, Sequence):
        return (float(value),) * num_stages
    if len(value) != num_stages:
        right = f"give {num_stages}, or one number for all"
        raise ValueError(f"{name} has {len(value)} numbers for {num_stages} stages; {right}.")
    return tuple(float(number) for number in value)
