"""How many layers each stage gets."""

from collections.abc import Sequence
from functools import cache
from numbers import Integral


def partition(layer_costs: Sequence[float], num_stages: int, method: str = "optimal") -> tuple[int, ...]:
    """Layers per stage, in stage order; every stage gets at least one.

    layer_costs   one number a layer, in any unit
    method        "optimal": the smallest possible most expensive stage; "uniform": equal numbers of layers,
                  the remainder going to the earliest stages

    Raises ValueError for fewer layers than stages, an unknown method, or a cost that is not at least 0.
    """
    layers = len(layer_costs)
    if not layers:
        raise ValueError("There are no layers to partition; give at least one cost.")
    if not (isinstance(num_stages, Integral) and 1 <= num_stages <= layers):
        raise ValueError(f"{layers} layers do not make {num_stages} stages; take from 1 to {layers} stages.")
    wrong = [cost for cost in layer_costs if not cost >= 0]
    if wrong:
        raise ValueError(f"A layer cost is {wrong[0]}; a cost is a number of at least 0.")
    if method == "uniform":
        return tuple(layers // num_stages + (stage < layers % num_stages) for stage in range(num_stages))
    if method == "optimal":
        return _optimal(tuple(layer_costs), num_stages)
    raise ValueError(f"There is no partition method {method!r}; the methods are optimal and uniform.")


def _optimal(costs: tuple[float, ...], num_stages: int) -> tuple[int, ...]:
    """best(n, k): the least maximum of the first n layers in k stages, and the size of the last of these."""

    @cache
    def best(n: int, k: int) -> tuple[float, int]:
        if k == 1:
            return sum(costs[:n]), n
        sizes = range(1, n - k + 2)
        return min((max(best(n - size, k - 1)[0], sum(costs[n - size : n])), size) for size in sizes)

    sizes: list[int] = []
    n = len(costs)
    for k in range(num_stages, 0, -1):
        sizes.append(best(n, k)[1])
        n -= sizes[-1]
    return tuple(reversed(sizes))
