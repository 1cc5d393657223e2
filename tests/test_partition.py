"""How many layers each stage gets."""

import random
import time
from itertools import combinations, pairwise

import numpy
import pytest
from hypothesis import given
from hypothesis import strategies as st
from strategies import quick, refused

from ppcourse.analysis.in_flight import in_flight
from ppcourse.analysis.megatron_split import megatron_split
from ppcourse.analysis.partition import METHODS, partition
from ppcourse.analysis.rank_partition import Load, _Search, least_busy
from ppcourse.schedules import build
from ppcourse.schedules.placement import Placement, bidirectional, loop, table, vee

layers = st.integers(1, 9).flatmap(lambda n: st.lists(st.integers(0, 20), min_size=n, max_size=n))


def stage_costs(costs: list[float], sizes: tuple[int, ...]) -> list[float]:
    ends = [sum(sizes[:k]) for k in range(len(sizes) + 1)]
    return [sum(costs[a:b]) for a, b in pairwise(ends)]


def longest(costs: list[float], sizes: tuple[int, ...]) -> float:
    """The cost of the most expensive stage."""
    return max(stage_costs(costs, sizes))


def spread(costs: list[float], sizes: tuple[int, ...]) -> float:
    return longest(costs, sizes) - min(stage_costs(costs, sizes))


def busiest(costs: list[float], sizes: tuple[int, ...], placement: Placement) -> float:
    """The cost of all stages of the busiest rank."""
    stages = stage_costs(costs, sizes)
    return max(sum(stages[stage] for stage in placement.stages_of(rank)) for rank in range(placement.num_ranks))


def every_partition(num_layers: int, num_stages: int) -> list[tuple[int, ...]]:
    cuts = combinations(range(1, num_layers), num_stages - 1)
    return [tuple(b - a for a, b in pairwise((0, *places, num_layers))) for places in cuts]


@pytest.mark.parametrize("num_layers", range(1, 13))
def test_optimal_is_as_good_as_the_best_of_all_partitions(num_layers: int) -> None:
    rng = random.Random(num_layers)
    for num_stages in range(1, num_layers + 1):
        choices = every_partition(num_layers, num_stages)
        for _ in range(5 if num_layers < 10 else 1):
            costs = [rng.choice([0, 1, 2, 3, 10, 30]) for _ in range(num_layers)]
            sizes = partition(costs, num_stages)
            assert sizes in choices
            assert longest(costs, sizes) == min(longest(costs, choice) for choice in choices)


@quick
@given(layers, st.data(), st.sampled_from(METHODS))
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


def test_arrays_and_numbers_of_any_size_are_costs() -> None:
    """And what can be gone through once."""
    assert partition(numpy.array([1.0, 1.0, 2.0]), 2) == partition(iter([1, 1, 2]), 2) == (2, 1)
    assert partition([10**400, 1, 10**400], 2) == (2, 1)
    assert partition([1e308] * 5, 2, "max-minus-min") == partition([5e-324] * 5, 2, "max-minus-min") == (3, 2)
    bytes_ = {"layer_memory": numpy.array([4.0, 1.0, 1.0]), "limits": numpy.array([4, 9])}
    assert partition([1, 1, 1], 2, **bytes_) == (1, 2)


@pytest.mark.parametrize(
    ("costs", "num_stages", "method", "sentence"),
    [
        ([1, 1], 3, "optimal", "2 layers do not make 3 stages; take from 1 to 2 stages."),
        ([1, 1], 0, "optimal", "2 layers do not make 0 stages; take from 1 to 2 stages."),
        ([1, 1], 1.5, "uniform", "2 layers do not make 1.5 stages; take from 1 to 2 stages."),
        ([], 1, "optimal", "There are no layers to partition; give at least one cost."),
        ([1, -2], 1, "optimal", "A layer cost is -2; a cost is a finite number of at least 0."),
        ([float("nan")], 1, "uniform", "A layer cost is nan; a cost is a finite number of at least 0."),
        ([float("inf")], 1, "optimal", "A layer cost is inf; a cost is a finite number of at least 0."),
        (["1"], 1, "optimal", "A layer cost is '1'; a cost is a finite number of at least 0."),
        (None, 1, "optimal", "layer_costs is None, but it must be a list of numbers, one a layer."),
        ([1, 1], "2", "optimal", "2 layers do not make '2' stages; take from 1 to 2 stages."),
        ([1, 1], True, "optimal", "2 layers do not make True stages; take from 1 to 2 stages."),
        (
            [1, 1],
            2,
            "best",
            "There is no partition method 'best'; the methods are uniform, optimal, max-minus-min.",
        ),
    ],
)
def test_what_cannot_be_partitioned_gets_a_sentence(
    costs: list[float], num_stages: int, method: str, sentence: str
) -> None:
    with refused(sentence):
        partition(costs, num_stages, method)


# Which of the best.


def test_of_equally_good_partitions_the_smallest_last_stage_is_taken_and_so_on_towards_the_first() -> None:
    rng = random.Random(1)

    def rank(costs: list[float], sizes: tuple[int, ...]) -> list[float]:
        stages = stage_costs(costs, sizes)
        return [number for k in range(len(sizes), 0, -1) for number in (max(stages[:k]), sizes[k - 1])]

    for _ in range(60):
        costs = [rng.choice([0, 1, 1, 2]) for _ in range(rng.randint(2, 9))]
        num_stages = rng.randint(1, len(costs))
        expected = min(every_partition(len(costs), num_stages), key=lambda sizes: rank(costs, sizes))
        assert partition(costs, num_stages) == expected
    assert partition([0, 0, 0], 2, "max-minus-min") == (2, 1)


@pytest.mark.parametrize("unit", [0.1, 1 / 3, 1e-9, 1e12])
@pytest.mark.parametrize("method", METHODS)
def test_the_unit_of_the_costs_changes_nothing(unit: float, method: str) -> None:
    """With sums of rounded numbers, which of several equals comes out best would be chance."""
    assert partition([unit] * 23, 7, method) == partition([1] * 23, 7, method)


def test_200_layers_in_64_stages_take_no_time_worth_mentioning() -> None:
    rng = random.Random(0)
    costs = [rng.random() for _ in range(200)]
    started = time.process_time()
    for method in METHODS:
        partition(costs, 64, method)
    partition(costs, 64, placement=loop(8, 8))
    assert time.process_time() - started < 10  # below 1 s of one slow core; the recursion that was here took minutes


# The smallest difference, as a comparison.


def test_max_minus_min_is_as_even_as_the_best_of_all_partitions() -> None:
    rng = random.Random(2)
    for _ in range(120):
        costs = [rng.choice([0, 1, 2, 3, 7, 20, 0.5]) for _ in range(rng.randint(1, 12))]
        num_stages = rng.randint(1, len(costs))
        sizes = partition(costs, num_stages, "max-minus-min")
        best = min(every_partition(len(costs), num_stages), key=lambda s: (spread(costs, s), longest(costs, s)))
        assert (spread(costs, sizes), longest(costs, sizes)) == (spread(costs, best), longest(costs, best))


def test_the_most_even_partition_is_not_the_fastest() -> None:
    """Its slowest stage is what a pipeline waits for, and a stage that has less to do costs nothing."""
    costs = [1, 6, 3, 3]
    even, fast = partition(costs, 3, "max-minus-min"), partition(costs, 3)
    assert stage_costs(costs, even) == [7, 3, 3]
    assert stage_costs(costs, fast) == [1, 6, 6]


# Ranks that hold several stages.


@pytest.mark.parametrize(
    "placement",
    [
        loop(2, 2),
        loop(3, 2),
        loop(2, 3),
        loop(4, 2),
        loop(1, 4),
        vee(2),
        vee(3),
        bidirectional(4, 8),
        table([1, 0, 1], 2),
    ],
    ids=str,
)
def test_the_busiest_rank_is_as_little_busy_as_in_the_best_of_all_partitions(placement: Placement) -> None:
    rng = random.Random(3)
    for _ in range(12):
        costs = [rng.choice([0, 1, 2, 3, 7, 20, 0.5]) for _ in range(rng.randint(placement.num_stages, 12))]
        sizes = partition(costs, placement.num_stages, placement=placement)
        choices = every_partition(len(costs), placement.num_stages)
        assert busiest(costs, sizes, placement) == min(busiest(costs, choice, placement) for choice in choices)


def test_a_rank_with_both_ends_of_the_model_gets_fewer_layers_for_it() -> None:
    """In a vee, embedding and head meet on rank 0."""
    costs = [2, *[1] * 15, 4]
    sizes = partition(costs, 6, placement=vee(3))
    assert busiest(costs, sizes, vee(3)) == 7
    assert busiest(costs, partition(costs, 6), vee(3)) == 8


@pytest.mark.parametrize("placement", [loop(32, 2), loop(16, 4), loop(8, 8), vee(32)], ids=["2", "4", "8", "vee"])
def test_for_many_layers_the_search_comes_near_the_even_share(placement: Placement) -> None:
    rng = random.Random(4)
    costs = [rng.random() + 0.5 for _ in range(200)]
    ranks = placement.num_ranks
    sizes = partition(costs, 64, placement=placement)
    assert sum(sizes) == 200
    assert min(sizes) >= 1
    assert busiest(costs, sizes, placement) < sum(costs) / ranks + max(costs)


def test_the_search_halves_what_is_left_between_its_bounds() -> None:
    """One that only comes down from what it has found would give up at 1.4 even shares and more for some of these."""
    for seed in (1, 5, 7):
        rng = random.Random(seed)
        costs = [rng.random() + 0.2 for _ in range(24)]
        sizes = partition(costs, 16, placement=vee(8))
        assert busiest(costs, sizes, vee(8)) < 1.25 * sum(costs) / 8


def test_what_is_lost_on_a_rank_ends_a_search_early() -> None:
    """That nothing is better than the best takes 2,492 sizes here, and three times as many if only a rank's own room
    counts; more than half as many again if what ranks have lost is forgotten."""
    steps, homes = 0, tuple((rank,) for rank in vee(3).ranks)
    for seed in range(6):
        rng = random.Random(seed)
        load = Load([rng.randint(1, 30) for _ in range(16)], homes, {}, lambda rank, stretches: True)
        best = busiest(list(load.costs), least_busy(load, patience=10**6), vee(3))
        search = _Search(load, best - 1, patience=10**6)
        assert search.sizes() == ()
        steps += search.steps
    assert steps <= 3_000


# Sizes that are given.


def test_the_first_and_the_last_stage_get_what_they_are_given() -> None:
    """Embedding and 4 layers, 4, 4 and head."""
    assert partition([1] * 14, 3, "uniform", first=5, last=5) == (5, 4, 5)
    assert partition([1] * 14, 4, "uniform", last=2) == (4, 4, 4, 2)


@pytest.mark.parametrize("method", ["optimal", "max-minus-min"])
def test_what_is_left_is_cut_as_well_as_can_be(method: str) -> None:
    rng = random.Random(5)
    value = longest if method == "optimal" else spread
    for _ in range(60):
        costs = [rng.choice([0, 1, 2, 3, 7, 20]) for _ in range(rng.randint(5, 11))]
        num_stages, first, last = rng.randint(3, 4), rng.choice([None, 1, 2]), rng.choice([None, 1])
        choices = [
            sizes
            for sizes in every_partition(len(costs), num_stages)
            if first in (None, sizes[0]) and last in (None, sizes[-1])
        ]
        sizes = partition(costs, num_stages, method, first=first, last=last)
        assert sizes in choices
        assert value(costs, sizes) == min(value(costs, choice) for choice in choices)


def test_given_sizes_hold_for_ranks_with_several_stages_too() -> None:
    sizes = partition([1] * 10, 4, placement=loop(2, 2), first=1, last=4)
    assert (sizes[0], sizes[-1]) == (1, 4)
    assert busiest([1] * 10, sizes, loop(2, 2)) == min(
        busiest([1] * 10, choice, loop(2, 2)) for choice in every_partition(10, 4) if choice[0] == 1 and choice[3] == 4
    )


@pytest.mark.parametrize("placement", [loop(1, 2), loop(2, 2), loop(1, 3), vee(2), bidirectional(4, 8)], ids=str)
def test_no_layer_is_lost_to_a_last_stage_of_a_given_size(placement: Placement) -> None:
    rng, stages = random.Random(7), placement.num_stages
    for _ in range(25):
        costs = [rng.choice([0, 1, 2, 3, 7, 20]) for _ in range(rng.randint(stages + 3, 10))]
        first, last = rng.choice([None, 1, 2] if stages > 2 else [None]), rng.randint(1, 3)
        choices = [
            sizes for sizes in every_partition(len(costs), stages) if first in (None, sizes[0]) and sizes[-1] == last
        ]
        sizes = partition(costs, stages, placement=placement, first=first, last=last)
        assert sizes in choices
        assert busiest(costs, sizes, placement) == min(busiest(costs, choice, placement) for choice in choices)


# Under a memory limit.


def test_a_dear_embedding_moves_layers_away_where_memory_is_short() -> None:
    """Cheap in time and dear in memory: 1f1b's first rank holds most microbatches on top."""
    times, weights, stashed = [0, *[2] * 8, 1], [20, *[5] * 8, 20], [1, *[3] * 8, 1]
    held = in_flight(build("1f1b", 4, 8))

    def needs(sizes: tuple[int, ...]) -> list[float]:
        both = zip(stage_costs(weights, sizes), held, stage_costs(stashed, sizes), strict=True)
        return [fixed + times_ * each for fixed, times_, each in both]

    free = partition(times, 4)
    tight = partition(times, 4, layer_memory=weights, layer_stashed=stashed, held=held, limits=45)
    assert max(needs(free)) > 45
    assert max(needs(tight)) <= 45
    allowed = [sizes for sizes in every_partition(10, 4) if max(needs(sizes)) <= 45]
    assert longest(times, tight) == min(longest(times, sizes) for sizes in allowed) > longest(times, free)


@pytest.mark.parametrize(
    "placement", [None, loop(2, 2), vee(2), table([1, 0, 2, 3], 4)], ids=["stages", "ranks", "vee", "table"]
)
def test_of_all_partitions_that_fit_the_best_is_found_or_none_is_there(placement: Placement | None) -> None:
    rng = random.Random(6)
    place = placement or loop(4)
    fitting = 0
    for _ in range(60):
        layers = rng.randint(4, 12)
        costs = [rng.randint(0, 9) for _ in range(layers)]
        weights, stashed = ([rng.randint(0, 9) for _ in range(layers)] for _ in range(2))
        held = [rng.randint(1, 4) for _ in range(place.num_ranks)]
        limits = [rng.randint(20, 60) for _ in range(place.num_ranks)]

        def fits(sizes: tuple[int, ...]) -> bool:
            fixed, each = stage_costs(weights, sizes), stage_costs(stashed, sizes)  # noqa: B023
            return all(
                sum(fixed[s] + held[rank] * each[s] for s in place.stages_of(rank)) <= limits[rank]  # noqa: B023
                for rank in range(place.num_ranks)
            )

        allowed = [sizes for sizes in every_partition(layers, 4) if fits(sizes)]
        options = {"layer_memory": weights, "layer_stashed": stashed, "held": held, "limits": limits}
        if not allowed:
            with refused(f"No way to cut {layers} layers into 4 stages keeps every rank under its limit."):
                partition(costs, 4, placement=placement, **options)
            continue
        fitting += 1
        sizes = partition(costs, 4, placement=placement, **options)
        assert sizes in allowed
        assert busiest(costs, sizes, place) == min(busiest(costs, choice, place) for choice in allowed)
    assert 10 < fitting < 50


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"first": 0}, "first is 0; a stage gets a whole number of layers, at least 1."),
        ({"last": 1.5}, "last is 1.5; a stage gets a whole number of layers, at least 1."),
        ({"first": 3, "last": 1}, "With first=3 and last=1, 0 of 4 layers are left for 1 stages."),
        ({"limits": -1}, "limits is -1; it must be a number of at least 0."),
        ({"layer_memory": [1] * 4}, "limits is missing: say how many bytes a rank has."),
        ({"layer_memory": [1, 1], "limits": 9}, "layer_memory has 2 numbers for 4 layers; give one for each."),
        ({"limits": [9, 9]}, "limits has 2 numbers for 3 ranks; give one for each."),
        ({"limits": float("nan")}, "limits is nan; it must be a number of at least 0."),
        ({"limits": numpy.array(9.0)}, "limits is array(9.); it must be a number of at least 0."),
        (
            {"limits": 9, "layer_memory": [10**400, 1, 1, 1]},
            f"layer_memory is {10**400}; it must be a number of at least 0.",
        ),
        ({"limits": "9"}, "limits has 1 numbers for 3 ranks; give one for each."),
        ({"patience": 0}, "patience is 0; it must be a whole number of at least 1."),
        (
            {"placement": bidirectional(3, 6)},
            "The placement has a stage twice on one rank; its two copies must live on two.",
        ),
        ({"placement": loop(2)}, "The placement has 2 stages, and 3 are wanted; give as many."),
        ({"placement": "vee"}, "placement is 'vee', but it must be a Placement: give plan.placement."),
        (
            {"method": "uniform", "limits": 9},
            "The method uniform does not look at memory; take method='optimal', or leave that out.",
        ),
        (
            {"method": "max-minus-min", "placement": loop(3)},
            "The method max-minus-min does not look at ranks; take method='optimal', or leave that out.",
        ),
    ],
)
def test_arguments_that_do_not_fit_get_a_sentence(options: dict, sentence: str) -> None:
    with refused(sentence):
        partition([1] * 4, 3, **options)


# Megatron's flags.


@pytest.mark.parametrize(
    ("counts", "flags", "sizes"),
    [
        ((12, 4), {}, (3, 3, 3, 3)),
        ((16, 4), {"first": 4, "last": 2}, (4, 5, 5, 2)),
        ((13, 4), {"last": 1}, (4, 4, 4, 1)),
        ((15, 4), {"embedding": True}, (3, 4, 4, 4)),
        ((14, 4), {"embedding": True, "loss": True}, (3, 4, 4, 3)),
        ((2, 2), {"embedding": True, "loss": True}, (1, 1)),
        ((2, 4), {"embedding": True, "loss": True}, (0, 1, 1, 0)),
        ((16, 2, 2), {}, (4, 4, 4, 4)),
        ((14, 2, 2), {"embedding": True, "loss": True}, (3, 4, 4, 3)),
        ((12, 2, 2), {"first": 4}, (2, 4, 2, 4)),
    ],
)
def test_megatron_cuts_decoder_layers_evenly_but_for_its_flags(counts: tuple, flags: dict, sizes: tuple) -> None:
    assert megatron_split(*counts, **flags) == sizes


@pytest.mark.parametrize(
    ("counts", "flags", "sentence"),
    [
        ((13, 4), {}, "13 layers are left for 4 ranks; Megatron wants a multiple of 4."),
        ((12, 4), {"first": 4}, "8 layers are left for 3 ranks; Megatron wants a multiple of 3."),
        ((12, 4, 2), {}, "Rank 0 gets 3 layers, which do not make 2 stages of equal size."),
        (
            (12, 4),
            {"first": 4, "loss": True},
            "first and last say how many layers a rank gets; embedding and loss cannot count there too.",
        ),
        ((4, 2, 0), {}, "v is 0; it must be a whole number of at least 1."),
        ((4.0, 2), {}, "num_layers is 4.0; it must be a whole number of at least 1."),
        ((4, 2), {"first": 0}, "first is 0; it must be a whole number of at least 1."),
        ((4, 1), {"first": 4, "last": 4}, "There is one rank, so first and last are the same one; leave one out."),
    ],
)
def test_what_megatron_does_not_take_is_refused(counts: tuple, flags: dict, sentence: str) -> None:
    with refused(sentence):
        megatron_split(*counts, **flags)
