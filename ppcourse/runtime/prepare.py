"""Everything that can be said before a process starts: what is run, by whom, and whether it makes sense."""

import re
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import combinations
from numbers import Integral, Real
from typing import Any, TypeAlias

from torch import nn

from ppcourse.analysis.partition import partition as partition_layers
from ppcourse.runtime.layers import Model, layers_of
from ppcourse.runtime.links.carriers import choose
from ppcourse.runtime.processes.shipping import check_travels, weights_in
from ppcourse.runtime.training import Tie
from ppcourse.runtime.values.together import groups, overlap
from ppcourse.schedules import SCHEDULES, build
from ppcourse.schedules.costs import Costs
from ppcourse.schedules.schedule import Row, Schedule
from ppcourse.schedules.validate import check

Plan: TypeAlias = Schedule | str | Sequence[Row]


def resolve_plan(plan: Plan, p: int | None, m: int | None, v: int | None) -> Schedule:
    """A legal Schedule from a Schedule, the name of one, or rows that a learner typed.

    Raises ValueError if it breaks a rule, or disagrees with `p`, `m` or `v`.
    """
    if isinstance(plan, str) and not re.match(r"\s*(#|\d+[A-Z])", plan):
        if plan not in SCHEDULES:
            build(plan, 1, 1)  # says which there are
        if p is None or m is None:
            raise ValueError(f"{plan!r} is a schedule's name, so say for how many ranks and microbatches: p=4, m=8.")
        plan = build(plan, p, m, v)
    elif isinstance(plan, str):
        plan = Schedule.from_text(plan)
    elif isinstance(plan, list | tuple):
        plan = Schedule.from_rows(plan)
    elif not isinstance(plan, Schedule):
        raise ValueError(f"plan is {plan!r}, but it must be a Schedule, the name of one, or rows of actions.")
    check(plan)
    has = {"p": plan.num_ranks, "m": plan.num_microbatches, "v": plan.stages_per_rank}
    for letter, wanted in (("p", p), ("m", m), ("v", v)):
        if wanted is not None and wanted != has[letter]:
            raise ValueError(
                f"{letter} is {wanted}, but the plan {plan.name} has {letter} = {has[letter]}; leave {letter} out."
            )
    return plan


def sizes_of(partition: str | Sequence[int], layers: Sequence[nn.Module], num_stages: int) -> tuple[int, ...]:
    """Layers per stage, in stage order: "uniform", "parameters" (the fewest in the largest stage), or as given."""
    if num_stages > len(layers):
        raise ValueError(
            f"The plan has {num_stages} stages, but the model has {len(layers)} layers, and a stage needs at least one;"
            f" take at most {len(layers)} stages, or a model of more layers."
        )
    if partition == "uniform":
        return partition_layers([1.0] * len(layers), num_stages, "uniform")
    if partition == "parameters":
        return partition_layers([float(sum(p.numel() for p in layer.parameters())) for layer in layers], num_stages)
    if isinstance(partition, str):
        raise ValueError(
            f"There is no partition {partition!r}; it is uniform, parameters, profiled, or the layers of each stage."
        )
    sizes = tuple(partition) if isinstance(partition, list | tuple) else (partition,)
    whole = all(isinstance(size, int) and size >= 1 for size in sizes)
    if not whole or len(sizes) != num_stages or sum(sizes) != len(layers):
        fits = partition_layers([1.0] * len(layers), num_stages, "uniform")
        raise ValueError(
            f"The partition {sizes} does not cut {len(layers)} layers into {num_stages} stages of at least one layer;"
            f" {fits} does."
        )
    return sizes


@dataclass(frozen=True)
class Cut:
    """The model, cut: stages[stage] is {number: layer}; aliases lists, for each weight, all the names it has."""

    plan: Schedule
    stages: tuple[dict[int, nn.Module], ...]
    aliases: dict[str, tuple[str, ...]]

    def of_rank(self, rank: int) -> dict[int, dict[int, nn.Module]]:
        """{stage: its layers} for the stages of a rank."""
        return {stage: self.stages[stage] for stage in self.plan.placement.stages_of(rank)}

    def ties(self, rank: int) -> tuple[Tie, ...]:
        """The weights that live on several ranks, in one order for all of them, as `rank` sees them."""
        found = []
        for names in self.aliases.values():
            holders = {r: name for name in reversed(names) for r in self.holders(name)}
            if len(holders) > 1:
                weight = self._weight(names[0])
                counted = rank == min(holders)
                found.append(Tie(holders.get(rank), counted, tuple(weight.shape), weight.dtype))
        return tuple(found)

    def holders(self, name: str) -> set[int]:
        """The ranks that a weight of this name lives on."""
        stage = self._stage(name)
        return {self.plan.rank_of(stage, i) for i in range(self.plan.num_microbatches)}

    def _stage(self, name: str) -> int:
        number = int(name.partition(".")[0])
        return next(stage for stage, layers in enumerate(self.stages) if number in layers)

    def _weight(self, name: str) -> nn.Parameter:
        number, _, rest = name.partition(".")
        return self.stages[self._stage(name)][int(number)].get_parameter(rest)


def cut(plan: Schedule, model: Model, partition: str | Sequence[int]) -> Cut:
    """The model's layers, dealt out to the stages of `plan`."""
    layers = layers_of(model)
    numbered = iter(enumerate(layers))
    stages = tuple(dict(next(numbered) for _ in range(size)) for size in sizes_of(partition, layers, plan.num_stages))
    return Cut(plan, stages, aliases_of(layers))


def aliases_of(layers: Sequence[nn.Module]) -> dict[str, tuple[str, ...]]:
    """For each weight, by its first name, all the names it has."""
    names: dict[int, list[str]] = defaultdict(list)
    for name, weight in nn.Sequential(*layers).named_parameters(remove_duplicate=False):
        names[id(weight)].append(name)
    return {group[0]: tuple(group) for group in names.values()}


def check_weights(cut: Cut, loss_fn: Callable[..., Any] | None) -> None:
    """Raise ValueError if a layer or the loss function reaches weights that are not its own.

    Each rank would get a copy of them, and their gradients would be lost.
    """
    for layers in cut.stages:
        for number, layer in layers.items():
            own, name = {id(weight) for weight in layer.parameters()}, f"Layer {number} ({type(layer).__name__})"
            others = [x for key, x in weights_in(layer).items() if key not in own]
            if any(not x.is_leaf for x in others):
                raise ValueError(
                    f"{name} keeps a tensor that was computed from weights, without which it cannot travel; compute it"
                    " in forward, as torch.nn.utils.parametrizations do for weight_norm."
                )
            if others:
                raise ValueError(
                    f"{name} reaches weights that it has not registered; make them attributes of the layer, so that its"
                    " rank has them."
                )
    own = {id(weight) for weight in loss_fn.parameters()} if isinstance(loss_fn, nn.Module) else set()
    if loss_fn is not None and set(weights_in(loss_fn)) - own:
        raise ValueError("loss_fn reaches weights of the model; it must depend on outputs and targets alone.")


def check_memory(cut: Cut) -> None:
    """Raise ValueError if weights that lie in one memory, and are not one, live on different ranks: there each would
    have memory of its own, and train on its own."""
    names = {id(cut._weight(name)): name for name in cut.aliases}
    for group in groups([cut._weight(name) for name in cut.aliases]):
        for one, other in combinations(group, 2):
            first, second = names[id(one)], names[id(other)]
            if cut.holders(first) != cut.holders(second) and overlap(one, other):
                raise ValueError(
                    f"The weights {first} and {second} lie in one memory, but are two that live on different ranks;"
                    " make them one parameter, which both layers have."
                )


def check_all_travel(cut: Cut, jobs: Sequence[Any]) -> None:
    """Raise ValueError, naming it, if a layer, the loss function or the optimizer cannot be sent to a rank."""
    things: dict[str, Any] = {}
    for layers in cut.stages:
        things |= {f"Layer {number} ({type(layer).__name__})": layer for number, layer in layers.items()}
    for job in jobs:
        things |= {"loss_fn": job.loss_fn} if job.loss_fn else {}
        things |= {"optimizer": job.trainer.optimizer} if job.trainer else {}
    check_travels(things)


def check_function(value: Any, name: str, example: str) -> Callable[..., Any]:
    """Raise ValueError if `value` is no function."""
    if not callable(value):
        given = repr(value) if len(repr(value)) < 40 else f"a {type(value).__name__}"
        raise ValueError(f"{name} is {given}, but it must be a function, for example {example}.")
    return value  # type: ignore[no-any-return]


def check_count(value: Any, name: str) -> int:
    """Raise ValueError if `value` is no whole number of at least 1."""
    if isinstance(value, bool) or not isinstance(value, Integral) or value < 1:
        raise ValueError(f"{name} is {value!r}; it must be a whole number of at least 1.")
    return int(value)


def check_trains(plan: Schedule) -> Schedule:
    """Raise ValueError if the plan has no backward."""
    if not plan.trains:
        raise ValueError(f"The plan {plan.name} has no backward; use evaluate() for a forward pass.")
    return plan


def check_seed(seed: Any) -> None:
    """Raise ValueError for what gives other random numbers in another process, as a word does."""
    if isinstance(seed, bool) or not isinstance(seed, Integral):
        raise ValueError(f"seed is {seed!r}; it must be a whole number, for example 0.")


def check_options(plan: Schedule, device: str, link: str, pace: Costs | None, seed: int, timeout: float) -> str:
    """Which link carries messages, and why. Raises ValueError for an option that cannot be had."""
    chosen = choose(device, link, plan.num_ranks).link
    check_seed(seed)
    if not (isinstance(timeout, Real) and timeout > 0):
        raise ValueError(f"timeout is {timeout!r}; it is a number of seconds above 0, for example 60.")
    if pace is not None:
        if not isinstance(pace, Costs):
            raise ValueError(f"pace is {pace!r}, but it must be Costs in seconds, for example Costs(forward=0.01).")
        longest = max(max(lasts) for lasts in pace.durations(plan.num_stages).values())
        if longest >= timeout:
            raise ValueError(f"An action paced to {longest:g} s would pass for a hang; timeout must be longer.")
    return chosen
