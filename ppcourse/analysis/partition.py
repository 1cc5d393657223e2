"""How many layers each stage gets."""

import math
from collections.abc import Callable, Iterable, Sequence
from fractions import Fraction
from itertools import accumulate, pairwise
from numbers import Integral, Real
from typing import Any

from ppcourse.analysis.rank_partition import PATIENCE, Fits, Load, least_busy
from ppcourse.analysis.spread import least_spread
from ppcourse.schedules.costs import is_size
from ppcourse.schedules.placement import Placement, loop

METHODS = ("uniform", "optimal", "max-minus-min")


def partition(
    layer_costs: Sequence[float],
    num_stages: int,
    method: str = "optimal",
    *,
    placement: Placement | None = None,
    first: int | None = None,
    last: int | None = None,
    layer_memory: Sequence[float] | None = None,
    layer_stashed: Sequence[float] | None = None,
    held: Sequence[float] | None = None,
    limits: float | Sequence[float] | None = None,
    patience: int = PATIENCE,
) -> tuple[int, ...]:
    """Layers per stage, in stage order; every stage gets at least one.

    layer_costs     one number a layer, in any unit
    method          "optimal": the smallest possible most expensive stage; "uniform": equal numbers of layers, the
                    remainder going to the earliest stages; "max-minus-min": the smallest difference between the
                    most and the least expensive stage, which is not the same and no aim of its own
    placement       whose stages are added up: with `plan.placement`, "optimal" means the least busy busiest rank
    first, last     how many layers the first and the last stage get; the method decides on the others

    Under a memory limit ("optimal" only) no rank may take more than it has:

    layer_memory    bytes of a layer, whatever the plan: weights, gradients, optimizer state
    layer_stashed   bytes that a layer keeps of one microbatch
    held            how many microbatches each rank holds, as `in_flight(plan)` says; 1 by default
    limits          bytes, one number for all ranks or one a rank

    Costs are added up exactly, so layers of equal cost are equal whatever the unit. Of equally good partitions
    the one with the smallest last stage is taken, and so on towards the first. Where a rank holds several stages,
    the optimum is searched for, and found for a dozen layers; of more, the best that was found is given, after ten
    times that `patience` (sizes tried for one bound) led nowhere.

    Raises ValueError for fewer layers than stages, an unknown method, a cost that is not a finite number of at
    least 0, arguments that do not fit together, and limits that no partition keeps.
    """
    if not isinstance(layer_costs, Iterable):
        raise ValueError(f"layer_costs is {layer_costs!r}, but it must be a list of numbers, one a layer.")
    costs = exact(list(layer_costs))
    layers = len(costs)
    _check_counts(layers, num_stages)
    if isinstance(patience, bool) or not isinstance(patience, Integral) or patience < 1:
        raise ValueError(f"patience is {patience!r}; it must be a whole number of at least 1.")
    if method not in METHODS:
        raise ValueError(f"There is no partition method {method!r}; the methods are {', '.join(METHODS)}.")
    limited = any(argument is not None for argument in (layer_memory, layer_stashed, held, limits))
    if method != "optimal" and (limited or placement):
        what = "memory" if limited else "ranks"
        raise ValueError(f"The method {method} does not look at {what}; take method='optimal', or leave that out.")
    fixed = _fixed(layers, num_stages, first, last)
    if method == "uniform":
        return _uniform(layers, num_stages, fixed)
    if method == "max-minus-min":
        upper = max(_sums(costs, _least_maximum(costs, num_stages, fixed, _anything)))
        return least_spread(costs, num_stages, fixed, upper)
    homes = _homes(placement or loop(num_stages), num_stages)
    fits = memory_limit(layers, 1 + max(map(max, homes)), layer_memory, layer_stashed, held, limits)
    if len({home for homes_of in homes for home in homes_of}) == num_stages == sum(map(len, homes)):
        sizes = _least_maximum(costs, num_stages, fixed, lambda stage, a, b: fits(homes[stage][0], [(a, b)]))
    else:
        sizes = least_busy(Load(costs, homes, fixed, fits), patience)
    if not sizes:
        raise ValueError(f"No way to cut {layers} layers into {num_stages} stages keeps every rank under its limit.")
    return sizes


def _check_counts(layers: int, num_stages: int) -> None:
    if not layers:
        raise ValueError("There are no layers to partition; give at least one cost.")
    whole = isinstance(num_stages, Integral) and not isinstance(num_stages, bool)
    if not (whole and 1 <= num_stages <= layers):
        raise ValueError(f"{layers} layers do not make {num_stages!r} stages; take from 1 to {layers} stages.")


def exact(costs: Sequence[float]) -> tuple[int, ...]:
    """The costs as whole numbers, all multiplied by the same: sums are exact, and ties are no matter of rounding."""
    for cost in costs:
        if not (isinstance(cost, Real) and 0 <= cost < math.inf):
            raise ValueError(f"A layer cost is {cost!r}; a cost is a finite number of at least 0.")
    fractions = [Fraction(int(cost) if isinstance(cost, Integral) else float(cost)) for cost in costs]
    unit = math.lcm(*(fraction.denominator for fraction in fractions))
    return tuple(int(fraction * unit) for fraction in fractions)


def _fixed(layers: int, num_stages: int, first: int | None, last: int | None) -> dict[int, int]:
    """The sizes that are given, by stage."""
    given = {"first": (0, first), "last": (num_stages - 1, last)}
    fixed: dict[int, int] = {}
    for word, (stage, size) in given.items():
        if size is None:
            continue
        if isinstance(size, bool) or not isinstance(size, Integral) or size < 1:
            raise ValueError(f"{word} is {size!r}; a stage gets a whole number of layers, at least 1.")
        if fixed.get(stage, size) != size:
            raise ValueError(f"There is one stage, so first={first} and last={last} contradict each other.")
        fixed[stage] = int(size)
    rest, open_stages = layers - sum(fixed.values()), num_stages - len(fixed)
    if rest < open_stages or (rest and not open_stages):
        raise ValueError(
            f"With first={first} and last={last}, {rest} of {layers} layers are left for {open_stages} stages."
        )
    return fixed


def _uniform(layers: int, num_stages: int, fixed: dict[int, int]) -> tuple[int, ...]:
    open_stages = [stage for stage in range(num_stages) if stage not in fixed]
    each, more = divmod(layers - sum(fixed.values()), len(open_stages) or 1)
    sizes = fixed | {stage: each + (place < more) for place, stage in enumerate(open_stages)}
    return tuple(sizes[stage] for stage in range(num_stages))


def _homes(placement: Placement, num_stages: int) -> tuple[tuple[int, ...], ...]:
    """The ranks that run each stage: two if it lives on two."""
    if not isinstance(placement, Placement):
        raise ValueError(f"placement is {placement!r}, but it must be a Placement: give plan.placement.")
    if placement.num_stages != num_stages:
        raise ValueError(f"The placement has {placement.num_stages} stages, and {num_stages} are wanted; give as many.")
    if any(one == other for one, other in zip(placement.ranks, placement.opposite, strict=False)):
        raise ValueError("The placement has a stage twice on one rank; its two copies must live on two.")
    return tuple(zip(*[placement.ranks, *([placement.opposite] if placement.opposite else [])], strict=True))


def memory_limit(
    layers: int,
    num_ranks: int,
    layer_memory: Sequence[float] | None,
    layer_stashed: Sequence[float] | None,
    held: Sequence[float] | None,
    limits: float | Sequence[float] | None,
) -> Fits:
    """Whether a rank can take the layers in all of these stretches, each from a up to b."""
    if limits is None:
        if layer_memory is None and layer_stashed is None and held is None:
            return lambda rank, stretches: True
        raise ValueError("limits is missing: say how many bytes a rank has.")
    always = _prefix(_numbers("layer_memory", layer_memory, layers, "layers", 0.0))
    each = _prefix(_numbers("layer_stashed", layer_stashed, layers, "layers", 0.0))
    times = _numbers("held", held, num_ranks, "ranks", 1.0)
    most = _numbers("limits", limits, num_ranks, "ranks", 0.0)
    if layer_memory is None and layer_stashed is None:
        raise ValueError("limits has nothing to hold down: give layer_memory, layer_stashed, or both.")

    def fits(rank: int, stretches: Sequence[tuple[int, int]]) -> bool:
        taken = sum(always[b] - always[a] + times[rank] * (each[b] - each[a]) for a, b in stretches)
        return taken <= most[rank]

    return fits


def _numbers(
    name: str, value: float | Sequence[float] | None, count: int, of: str, default: float
) -> tuple[float, ...]:
    given = default if value is None else value
    if isinstance(given, Iterable) and getattr(given, "ndim", 1) > 0:  # an array without dimensions is one number
        numbers: list[Any] = list(given)
    else:
        numbers = [given] * count
    if len(numbers) != count:
        raise ValueError(f"{name} has {len(numbers)} numbers for {count} {of}; give one for each.")
    for number in numbers:
        if not (is_size(number) or number == math.inf):
            raise ValueError(f"{name} is {number!r}; it must be a number of at least 0.")
    return tuple(map(float, numbers))


def _prefix(numbers: Sequence[float]) -> list[float]:
    return list(accumulate(numbers, initial=0.0))


def _anything(stage: int, a: int, b: int) -> bool:
    return True


def _sums(costs: Sequence[int], sizes: Sequence[int]) -> list[int]:
    ends = list(accumulate(sizes, initial=0))
    return [sum(costs[a:b]) for a, b in pairwise(ends)]


def _least_maximum(
    costs: Sequence[int], num_stages: int, fixed: dict[int, int], fits: Callable[[int, int, int], bool]
) -> tuple[int, ...]:
    """best[n]: the least maximum of the first n layers in the stages so far; took[k][n]: how many of them the last
    of these takes. Stages × layers × the layers of a stage; empty if nothing fits."""
    layers, until = len(costs), list(accumulate(costs, initial=0))
    best: list[float] = [0, *[math.inf] * layers]
    took: list[list[int]] = []
    for stage in range(num_stages):
        now, sizes = [math.inf] * (layers + 1), [0] * (layers + 1)
        for n in range(stage + 1, layers - (num_stages - 1 - stage) + 1):
            wanted = fixed.get(stage)
            for size in range(1, n - stage + 1) if wanted is None else range(wanted, min(wanted, n) + 1):
                cost = until[n] - until[n - size]
                if cost >= now[n] or not fits(stage, n - size, n):
                    break  # larger ones cost and take no less
                if (value := max(best[n - size], cost)) < now[n]:
                    now[n], sizes[n] = value, size
        best = now
        took.append(sizes)
    if best[layers] == math.inf:
        return ()
    chosen: list[int] = []
    for sizes in reversed(took):
        chosen.append(sizes[layers - sum(chosen)])
    return tuple(reversed(chosen))
