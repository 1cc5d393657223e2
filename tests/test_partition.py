"""How many layers each stage gets."""

import random
from itertools import combinations, pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st
from strategies import quick, refused

from ppcourse.analysis.partition import partition

layers = st.integers(1, 9).flatmap(lambda n: st.lists(st.integers(0, 20), min_size=n, max_size=n))


def longest(costs: list[float], sizes: tuple[int, ...]) -> float:
    """The cost of the most expensive stage."""
    ends = [sum(sizes[:k]) for k in range(len(sizes) + 1)]
    return max(sum(costs[a:b]) for a, b in pairwise(ends))


def every_partition(num_layers: int, num_stages: int) -> list[tuple[int, ...]]:
    cuts = combinations(range(1, num_layers), num_stages - 1)
    return [tuple(b - a for a, b in pairwise((0, *places, num_layers))) for places in cuts]


@pytest.mark.parametrize("num_layers", range(1, 10))
def test_optimal_is_as_good_as_the_best_of_all_partitions(num_layers: int) -> None:
    rng = random.Random(num_layers)
    for num_stages in range(1, num_layers + 1):
        choices = every_partition(num_layers, num_stages)
        for _ in range(5):
            costs = [rng.choice([0, 1, 2, 3, 10, 30]) for _ in range(num_layers)]
            sizes = partition(costs, num_stages)
            assert sizes in choices
            assert longest(costs, sizes) == min(longest(costs, choice) for choice in choices)


@quick
@given(layers, st.data(), st.sampled_from(["optimal", "uniform"]))
def test_every_layer_is_in_one_stage_and_no_stage_is_empty(costs: list[int], data: st.DataObject, method: str) -> None:
    num_stages = data.draw(st.integers(1, len(costs)))
    sizes = partition(costs, num_stages, method)
    assert len(sizes) == num_stages
    assert sum(sizes) == len(costs)
    assert min(sizes) >= 1


@pytest.mark.parametrize(
    ("num_layers", "num_stages", "sizes"),
    [(32, 4, (8, 8, 8, 8)), (10, 4, (3, 3, 2, 2)), (7, 3, (3, 2, 2)), (5, 5, (1, 1, 1, 1, 1)), (3, 1, (3,))],
)
def test_uniform_gives_the_remainder_to_the_earliest_stages(
    num_layers: int, num_stages: int, sizes: tuple[int, ...]
) -> None:
    assert partition([1] * num_layers, num_stages, "uniform") == sizes
    assert partition(range(num_layers), num_stages, method="uniform") == sizes


def test_a_dear_layer_gets_a_stage_of_its_own() -> None:
    assert partition([1, 1, 1, 1, 4], 2) == (4, 1)
    assert partition([4, 1, 1, 1, 1], 2) == (1, 4)
    assert partition([1, 1, 1, 1, 4], 2, "uniform") == (3, 2)


def test_zeros_and_fractions_are_costs() -> None:
    assert partition([0.0, 0.5, 0.25, 0.25], 2) == (2, 2)


@pytest.mark.parametrize(
    ("costs", "num_stages", "method", "sentence"),
    [
        ([1, 1], 3, "optimal", "2 layers do not make 3 stages; take from 1 to 2 stages."),
        ([1, 1], 0, "optimal", "2 layers do not make 0 stages; take from 1 to 2 stages."),
        ([1, 1], 1.5, "uniform", "2 layers do not make 1.5 stages; take from 1 to 2 stages."),
        ([], 1, "optimal", "There are no layers to partition; give at least one cost."),
        ([1, -2], 1, "optimal", "A layer cost is -2; a cost is a number of at least 0."),
        ([float("nan")], 1, "uniform", "A layer cost is nan; a cost is a number of at least 0."),
        ([1, 1], 2, "best", "There is no partition method 'best'; the methods are optimal and uniform."),
    ],
)
def test_what_cannot_be_partitioned_gets_a_sentence(
    costs: list[float], num_stages: int, method: str, sentence: str
) -> None:
    with refused(sentence):
        partition(costs, num_stages, method)
