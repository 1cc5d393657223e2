"""Which p, m, v and schedule: predictions, ranks, and reasons."""

import dataclasses
import itertools
import math
import random
import re
import time
from collections.abc import Callable
from functools import cache

import numpy
import pytest
from strategies import refused

from ppcourse.analysis.candidate import REPEATING, Candidate, Cluster
from ppcourse.analysis.hardware import GPU, GPUS, LINKS, Link, all_reduce_time
from ppcourse.analysis.leaner import leaner
from ppcourse.analysis.memory import Sizes, held_by_plan, ledger
from ppcourse.analysis.planner import Choice, choose
from ppcourse.analysis.shape import Shape
from ppcourse.analysis.simulate import simulate
from ppcourse.schedules import SCHEDULES, build
from ppcourse.schedules.costs import Costs

SMALL = Shape(layers=6, hidden=64, heads=4, vocab=512, sequence=32)
SEVEN_B = Shape(layers=32, hidden=4096, heads=32, vocab=32000, sequence=4096)
ROOMY = GPU("roomy", memory=1e15, flops=1e12)
FREE = LINKS["free"]
SLOW = Link("far", bandwidth=1e6, latency=1e-3)

EVERY = tuple(name for name in SCHEDULES if name != "zb-auto")
ABOVE = "it must be a finite number above 0"


@cache
def small(**changed: object) -> Choice:
    options: dict = {"gpus": 4, "gpu": ROOMY, "link": FREE, "batch": 16, "top": 1000}
    return choose(SMALL, **(options | changed))


def all_of(choice: Choice) -> tuple[Candidate, ...]:
    return choice.candidates + choice.slower


def step_times(choice: Choice) -> dict[tuple, float]:
    return {(c.schedule, c.p, c.v, c.m): c.step_time for c in all_of(choice)}


# What is predicted.


def test_a_shape_counts_parameters_and_operations_by_hand() -> None:
    """2 operations a token and weight in each of F, I and W; attention's products 4 s h a token in F, 8 s h in I, and
    4 s h again where they are not kept."""
    embedding, layer, *_, head = SMALL.work(2)
    tokens, h, s = 64, 64, 32
    assert embedding.parameters == 512 * h
    assert layer.parameters == 4 * h * h + 8 * h * h + 4 * h
    assert head.parameters == 512 * h + 2 * h
    assert SMALL.parameters == 2 * 512 * h + 2 * h + 6 * layer.parameters
    assert embedding.total == 0
    # of a lookup: 8 bytes a number of a token, and the mask of its dropout; then the gradient, of 16 bits, instead
    assert (embedding.stashed, embedding.kept_for_w) == (8 * tokens + tokens * h, 8 * tokens + 2 * tokens * h)
    assert head.forward == head.input_grad == head.weight_grad == 2 * tokens * 512 * h
    assert layer.forward == tokens * (24 * h * h + 4 * s * h)
    assert layer.input_grad == tokens * (24 * h * h + 8 * s * h + 4 * s * h)
    assert layer.weight_grad == tokens * 24 * h * h
    assert SMALL.work(2, "none")[1].input_grad == tokens * (24 * h * h + 8 * s * h)
    assert SMALL.work(2, "full")[1].input_grad == layer.input_grad + tokens * 24 * h * h
    assert (layer.stashed, SMALL.work(2, "full")[1].stashed) == (34 * tokens * h, 2 * tokens * h)
    assert layer.kept_for_w == 32 * tokens * h


def test_a_candidate_predicts_what_simulate_says_of_its_stages() -> None:
    """Two pipelines of two ranks, 1f1b, four microbatches of two sequences, at 1 GB a second: by hand."""
    gpu, link = GPU("plain", memory=1e12, flops=2e12), Link("cable", bandwidth=1e9, latency=1e-5)
    choice = choose(SMALL, gpus=4, gpu=gpu, link=link, batch=16, efficiency=0.25, top=1000, schedules=["1f1b"])
    [candidate] = [c for c in all_of(choice) if (c.p, c.microbatch) == (2, 2)]
    assert candidate.m == 4
    embedding, layer, *_, head = SMALL.work(2)
    assert candidate.layers == (4, 4)  # embedding and 3 layers; 3 layers and head, or rank 0 would be slower still
    stages = [[embedding, *[layer] * 3], [*[layer] * 3, head]]
    speed = 2e12 * 0.25
    times = [
        [sum(getattr(x, w) for x in stage) / speed for stage in stages]
        for w in ("forward", "input_grad", "weight_grad")
    ]
    message = 2 * 64 * 64  # bytes: 2 a number, 64 tokens, 64 wide
    costs = Costs(*times, comm=1e-5, size=message, bandwidth=1e9)
    assert simulate(build("1f1b", 2, 4), costs).makespan == pytest.approx(candidate.pipeline[0], rel=1e-12)
    gradients = 4 * max(sum(x.parameters for x in stage) for stage in stages)
    summed = 2 * (1e-5 + gradients / 2 / 1e9)
    assert candidate.all_reduce_time == pytest.approx(summed, rel=1e-12)
    assert candidate.step_time == pytest.approx(candidate.pipeline[0] + summed, rel=1e-12)
    done = 3 * 16 * sum(x.forward for x in SMALL.work(1))
    assert candidate.utilisation == pytest.approx(done / (4 * 2e12 * candidate.step_time))


@pytest.mark.thorough
def test_its_memory_is_that_of_its_ledger() -> None:
    """Windows and closed forms are short cuts: the whole plan says the same."""
    for candidate in all_of(small(share_optimizer=True)):
        book = ledger(candidate.plan, candidate.sizes)
        for found, right in zip(candidate.ledger.rows, book.rows, strict=True):
            assert found == pytest.approx(right), str(candidate)


@pytest.mark.parametrize(
    ("name", "v"), [(name, v) for name in REPEATING for v in ((2, 3) if name == "interleaved" else (2,))]
)
def test_a_few_rounds_of_a_repeating_plan_hold_as_much_as_all(name: str, v: int) -> None:
    """Stages of all sizes, so that it matters which of them are held."""
    rng = random.Random(0)
    for p in (2, 4, 6):
        for m in range(3 * p, 8 * p, 1 if p < 6 else 5):
            if name == "dualpipe" and m % 2:
                continue
            candidate = dataclasses.replace(small().best, schedule=name, p=p, v=v, m=m)
            short, whole = candidate._settled, candidate.plan
            assert short.num_microbatches <= min(m, 5 * p)
            for _ in range(3):
                stashed, kept = ([rng.randint(0, 9) for _ in range(whole.num_stages)] for _ in range(2))
                sizes = Sizes(stashed=stashed, kept_for_w=kept)
                assert held_by_plan(short, sizes) == held_by_plan(whole, sizes), (p, m)


def test_replicas_may_share_the_optimizer() -> None:
    apart, shared = (
        next(c for c in all_of(small(share_optimizer=share)) if (c.p, c.schedule) == (1, "1f1b"))
        for share in (False, True)
    )
    assert sum(row["optimizer"] for row in apart.ledger.rows) == 12 * SMALL.parameters
    assert sum(row["optimizer"] for row in shared.ledger.rows) == 3 * SMALL.parameters


@pytest.mark.parametrize("factor", [1.0, 1000.0, 0.5])
def test_a_paced_candidate_lasts_so_many_times_as_long(factor: float) -> None:
    """Where messages do not queue; where they do (a pair of DualPipe's sends two at once), pace lets them pass."""
    for candidate in all_of(small(link=LINKS["pcie4"], schedules=("gpipe", "1f1b", "zb-h1"))):
        plan, costs = candidate.paced(factor)
        assert plan.rows == candidate.plan.rows
        assert costs.bandwidth is None
        assert simulate(plan, costs).makespan == pytest.approx(factor * candidate.pipeline[0], rel=1e-9)
    for candidate in all_of(small(link=SLOW))[::5]:
        assert simulate(*candidate.paced(factor)).makespan <= factor * candidate.pipeline[0] * (1 + 1e-9)


@pytest.mark.parametrize("factor", [0, -1, math.inf, "2"])
def test_a_factor_that_is_none_is_refused(factor: object) -> None:
    with refused(f"factor is {factor!r}; it must be a finite number above 0."):
        small().best.paced(factor)


# How they are ranked.


@pytest.mark.thorough
@pytest.mark.parametrize("link", [FREE, LINKS["pcie4"], SLOW], ids=lambda link: link.name)
def test_no_candidate_is_faster_than_its_bound(link: Link) -> None:
    for candidate in all_of(small(link=link, gpus=8, schedules=EVERY)):
        assert candidate.least_time <= candidate.step_time * (1 + 1e-9), str(candidate)


def test_the_bound_is_exact_for_equal_stages_without_bubbles_in_between() -> None:
    """Embedding apart, which costs nothing: rank 0 has one layer more, and the others wait for it as in the formula."""
    shape = dataclasses.replace(SMALL, layers=8, vocab=1)
    for candidate in all_of(choose(shape, gpus=4, gpu=ROOMY, link=FREE, batch=32, top=1000)):
        if candidate.schedule in ("1f1b", "gpipe") and candidate.m >= candidate.p:
            assert candidate.least_time == pytest.approx(candidate.step_time, rel=1e-3)


@pytest.mark.thorough
@pytest.mark.parametrize("top", [1, 3, 8])
@pytest.mark.parametrize("link", [FREE, SLOW], ids=lambda link: link.name)
def test_the_first_few_are_those_of_all_even_though_few_are_simulated(top: int, link: Link) -> None:
    every = small(link=link)
    few = small(link=link, top=top)
    assert len(every.slower) == 0
    times = [c.step_time for c in every.candidates]
    assert times == sorted(times)
    assert [c.step_time for c in few.candidates] == pytest.approx(times[:top])
    assert len(few.candidates + few.slower) == len(every.candidates)
    assert min(c.step_time for c in few.slower) >= few.candidates[-1].step_time


def test_all_divisions_of_gpus_and_batch_are_looked_at_once() -> None:
    choice = small(
        schedules=(
            "gpipe",
            "1f1b",
        )
    )
    found = {(c.schedule, c.p, c.data_parallel, c.m, c.microbatch) for c in all_of(choice)}
    expected = {
        (name, p, 4 // p, 16 * p // 4 // b, b)
        for name, p in [("1f1b", 1), ("1f1b", 2), ("gpipe", 2), ("1f1b", 4), ("gpipe", 4)]
        for b in (1, 2, 4, 8, 16)
        if b <= 16 * p // 4
    }
    assert found == expected
    assert len(all_of(choice)) == len(found)
    assert choice.refused == ()


def test_with_free_links_and_memory_gpipe_takes_as_long_as_1f1b_if_stages_are_equal() -> None:
    """With a head, which has a larger share of its time in F than a decoder layer has, they differ."""

    def ratios(choice: Choice) -> list[float]:
        times = step_times(choice)
        return [times[key] / times["gpipe", *key[1:]] for key in times if key[0] == "1f1b" and key[1] > 1]

    headless = dataclasses.replace(SMALL, layers=8, vocab=1)
    equal = ratios(choose(headless, gpus=4, gpu=ROOMY, link=FREE, batch=16, schedules=("gpipe", "1f1b"), top=1000))
    assert equal == pytest.approx([1.0] * 9, rel=1e-3)
    assert max(abs(1 - ratio) for ratio in ratios(small(schedules=("gpipe", "1f1b")))) > 1e-2


def test_interleaving_gains_where_links_are_free_and_loses_where_they_are_slow() -> None:
    def ratio(link: Link) -> float:
        times = step_times(
            small(
                link=link,
                schedules=(
                    "1f1b",
                    "interleaved",
                ),
                batch=4,
            )
        )
        return times["interleaved", 4, 2, 4] / times["1f1b", 4, 1, 4]

    assert ratio(FREE) < 1 < ratio(Link("late", bandwidth=math.inf, latency=1e-3))
    assert ratio(Link("narrow", bandwidth=1e7, latency=0.0)) > 1


def test_between_nodes_messages_take_the_network_and_sums_stay_inside_if_they_can() -> None:
    link, network = Link("inside", 1e9, 0.0), Link("outside", 1e8, 0.0)
    one, two, four = (
        Cluster(gpus, ROOMY, link, network, per_node=2, efficiency=0.5, headroom=0.1) for gpus in (2, 4, 8)
    )
    assert (one.hop, two.hop, four.hop) == (link, network, network)
    assert (four.among(2), four.among(4)) == (link, network)
    assert all_reduce_time(1e9, 1, network) == 0
    assert all_reduce_time(1e9, 4, network) == pytest.approx(2 * 3 / 4 * 10)


def test_the_two_copies_of_a_stage_in_dualpipe_are_summed_like_replicas_a_hop_away() -> None:
    """Four ranks hold a stage: two pipelines, two ends. Of 1f1b's, two neighbours do."""
    inside, outside = Link("inside", 1e9, 0.0), Link("outside", 1e6, 0.0)
    options = {"gpus": 8, "link": inside, "network": outside, "per_node": 4, "schedules": ("1f1b", "dualpipe")}
    found = {c.schedule: c for c in all_of(small(**options)) if (c.p, c.microbatch) == (4, 1)}
    for name, members, bandwidth in (("1f1b", 2, 1e9), ("dualpipe", 4, 1e6)):
        gradients = max(found[name].ledger.of("gradients"))
        summed = 2 * (members - 1) / members * gradients / bandwidth
        assert found[name].all_reduce_time == pytest.approx(summed, rel=1e-12)


# What is feasible.


@pytest.mark.thorough
def test_more_memory_never_makes_fewer_feasible() -> None:
    counts = []
    for gib in (1, 2, 4, 8, 16, 32, 64):
        gpu = GPU("growing", memory=gib * 2**20, flops=1e12)
        choice = small(gpu=gpu, headroom=0.0)
        feasible = {str(c) for c in all_of(choice)}
        counts.append(len(feasible))
        assert all(c.ledger.peak <= gpu.memory for c in all_of(choice))
        assert {r.what for r in choice.refused}.isdisjoint(feasible)
        assert len(feasible) + len(choice.refused) == len(all_of(small())) + len(small().refused)
    assert counts == sorted(counts)
    assert counts[0] == 0 < counts[3] < counts[-1] == len(all_of(small()))


def every_cut(layers: int, stages: int) -> list[tuple[int, ...]]:
    cuts = itertools.combinations(range(1, layers), stages - 1)
    return [tuple(b - a for a, b in itertools.pairwise((0, *places, layers))) for places in cuts]


@pytest.mark.thorough
@pytest.mark.parametrize("mib", [2, 2.5, 3, 3.5, 4])
def test_what_is_short_of_memory_is_so_however_it_is_cut(mib: float) -> None:
    """All cuts were tried; of those that fit, the one with the least busy stage is taken."""
    gpu = GPU("short", memory=mib * 2**20, flops=1e12)
    options = {"schedules": ("gpipe", "1f1b"), "headroom": 0.0}
    choice = small(gpu=gpu, **options)
    short, found = {r.what for r in choice.refused}, {str(c): c for c in all_of(choice)}
    for roomy in all_of(small(**options)):
        cuts = [dataclasses.replace(roomy, cut=cut) for cut in every_cut(8, roomy.p)]
        fit = [each for each in cuts if each.ledger.peak <= gpu.memory]
        assert (str(roomy) in short) == (not fit)
        if fit:
            taken = found[str(roomy)]
            assert taken.ledger.peak <= gpu.memory
            assert busiest(taken) == min(map(busiest, fit))
    moved = [c for c in found.values() if c.cut]
    assert moved or mib not in (2.5, 3, 3.5)


def with_memory(candidate: Candidate, share: float) -> Candidate:
    """On GPUs that have so much of what it takes."""
    gpu = GPU("short", memory=share * candidate.ledger.peak, flops=1e12)
    return dataclasses.replace(candidate, cluster=dataclasses.replace(candidate.cluster, gpu=gpu, headroom=0.0))


def test_the_ledger_has_the_last_word_on_a_cut_and_what_w_keeps_counts() -> None:
    """Of interleaved stages a rank holds unlike numbers of microbatches: what should fit does not."""
    shape = dataclasses.replace(SMALL, layers=10, vocab=2048)

    def one(name: str, p: int) -> Candidate:
        choice = choose(shape, gpus=p, gpu=ROOMY, link=FREE, batch=16, top=1000, schedules=[name])
        return next(c for c in all_of(choice) if (c.p, c.microbatch, c.v) == (p, 1, 2 if name == "interleaved" else 1))

    assert leaner(with_memory(one("interleaved", 2), 0.95))
    assert leaner(with_memory(one("interleaved", 2), 0.9)) is None
    found = leaner(with_memory(one("zb-h2", 4), 0.84))  # three ranks of it owe W
    assert found
    assert found.layers == (3, 3, 4, 2)


def busiest(candidate: Candidate) -> float:
    costs = candidate.costs
    return max(map(sum, zip(costs.forward, costs.input_grad, costs.weight_grad, strict=True)))


def test_ranks_with_several_stages_and_a_split_backward_are_cut_again_too() -> None:
    """With a 20th less than they would take: a heavy head leaves rank 0 with many layers, and with their activations.
    Each rank of DualPipe on two has both stages, however they are cut."""
    shape = dataclasses.replace(SMALL, layers=10, vocab=2048)
    names = ("interleaved", "zb-h1", "zb-h2", "zb-v", "v-half", "dualpipe-v", "dualpipe")
    every = all_of(choose(shape, gpus=2, gpu=ROOMY, link=FREE, batch=16, top=1000, schedules=names))
    for each in every:
        if (each.p, each.microbatch) != (2, 1):
            continue
        tight = with_memory(each, 0.95)
        found = leaner(tight)
        assert tight.shortage
        assert (found is None) == (each.schedule == "dualpipe")
        if found:
            assert max(ledger(found.plan, found.sizes).totals) <= tight.cluster.usable


def test_seven_billion_parameters_do_not_fit_one_gpu_of_24_gb_and_it_says_why() -> None:
    choice = choose(SEVEN_B, gpus=1, gpu="rtx4090", link="pcie4", batch=32)
    assert choice.candidates == ()
    weights = 18 * SEVEN_B.parameters / 2**30
    assert (
        str(choice)
        .splitlines()[1]
        .startswith("Nothing of this is feasible. 1f1b, p = 1, 1 of them, m = 32 of 1: rank 0")
    )
    [nearest] = [r for r in choice.refused if "m = 32" in r.what]
    assert nearest.why.endswith("GiB, and may take 20.1 GiB: short by at least 109.9 GiB.")
    assert 20.1 + nearest.by / 2**30 > weights > 112
    with pytest.raises(ValueError, match=r"^Nothing of this is feasible\. 1f1b, p = 1"):
        _ = choice.best


def test_what_comes_nearest_is_what_is_least_short() -> None:
    choice = choose(SEVEN_B, gpus=8, gpu="l4", link="pcie4", batch=64)
    exact = [r for r in choice.refused if "short by" in r.why and "at least" not in r.why]
    nearest = min(exact, key=lambda r: r.by)
    assert str(choice).splitlines()[1] == f"Nothing of this is feasible. {nearest}"


def test_seven_billion_parameters_fit_eight_gpus_of_80_gb_in_a_pipeline_only() -> None:
    choice = choose(
        SEVEN_B, gpus=8, gpu="a100-80", link="nvlink3", batch=64, schedules=["gpipe", "1f1b", "interleaved"]
    )
    assert {c.p for c in all_of(choice)} <= {4, 8}
    assert choice.best.ledger.peak < 0.9 * 80e9
    assert 0.3 < choice.best.utilisation < 0.5
    text = str(choice)
    assert text.startswith("8 x A100 SXM 80 GB, NVLink 3, 64 sequences a step\n")
    assert f"{choice.best.step_time:.3g} s" in text.splitlines()[2]
    gpipe = [r for r in choice.refused if r.what.startswith("gpipe, p = 8")]
    assert gpipe
    assert all("short by" in r.why for r in gpipe)


@pytest.mark.parametrize(
    ("options", "what", "why"),
    [
        ({"batch": 6}, "p = 1", "a batch of 6 does not divide evenly among 4 pipelines."),
        (
            {"batch": 12},
            "p = 4, 1 of them, microbatches of 8",
            "the 12 sequences of a pipeline do not divide evenly into microbatches of 8.",
        ),
        ({"most_microbatches": 8}, "p = 4, 1 of them, microbatches of 1", "a step has 16 microbatches, more than 8."),
        (
            {},
            "interleaved, p = 4, v = 4, 1 of them, m = 16 of 1",
            "8 layers, embedding and head counted in, do not make 16 stages.",
        ),
        (
            {"batch": 4},
            "dualpipe, p = 4, v = 2, 1 of them, m = 4 of 1",
            "m is 4, but dualpipe on p = 4 ranks needs at least 2p = 8 and even; the nearest valid m is 8.",
        ),
        (
            {"batch": 9},
            "dualpipe, p = 4, v = 2, 1 of them, m = 9 of 1",
            "m is 9, but dualpipe on p = 4 ranks needs at least 2p = 8 and even; the nearest valid m is 10.",
        ),
    ],
)
def test_what_is_not_possible_has_its_reason(options: dict, what: str, why: str) -> None:
    reasons = {refused.what: refused.why for refused in small(**options).refused}
    assert reasons[what] == why


def test_a_refused_rank_is_short_by_what_its_ledger_says() -> None:
    gpu = GPU("short", memory=3 * 2**20, flops=1e12)
    short = {r.what: r for r in small(gpu=gpu, headroom=0.0).refused if r.kind == "short of memory"}
    told = 0
    for candidate in all_of(small()):
        if reason := short.get(str(candidate)):
            peak = candidate.ledger.peak
            at_least = "at least" in reason.why
            assert reason.by <= peak - gpu.memory if at_least else reason.by == pytest.approx(peak - gpu.memory)
            told += not at_least
    assert told > 5


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"gpus": 0}, "gpus is 0; it must be a whole number of at least 1."),
        ({"batch": 1.5}, "batch is 1.5; it must be a whole number of at least 1."),
        ({"efficiency": 0}, "efficiency is 0; it must be a share above 0 and up to 1."),
        ({"efficiency": "1"}, "efficiency is '1'; it must be a share above 0 and up to 1."),
        ({"headroom": 1}, "headroom is 1; it must be a share of at least 0 and below 1."),
        ({"headroom": math.nan}, "headroom is nan; it must be a share of at least 0 and below 1."),
        ({"most_microbatches": 0}, "most_microbatches is 0; it must be a whole number of at least 1."),
        ({"gpu": "h10"}, f"There is no GPU 'h10'; there are {', '.join(GPUS)}. Did you mean 'h100'?"),
        ({"link": 9}, f"There is no Link 9; there are {', '.join(LINKS)}."),
        ({"recompute": "some"}, "recompute is 'some'; it is none, selective or full."),
    ],
)
def test_names_and_numbers_that_are_none_are_refused(options: dict, sentence: str) -> None:
    with refused(sentence):
        small(**options)


def test_numbers_of_numpy_are_numbers() -> None:
    """And predictions are as exact as with Python's."""
    options = {"gpus": numpy.int64(4), "batch": numpy.int64(16), "per_node": numpy.int64(8), "top": numpy.int64(1000)}
    shape = Shape(*map(numpy.int64, (6, 64, 4, 512, 32)))
    gpu = GPU("roomy", memory=numpy.float32(1e12), flops=numpy.float32(2**40))
    link = Link("cable", bandwidth=numpy.float32(2**30), latency=numpy.float32(0.0))
    plain = (
        GPU("roomy", memory=float(numpy.float32(1e12)), flops=2.0**40),
        Link("cable", bandwidth=2.0**30, latency=0.0),
    )
    kinds = {"schedules": ("1f1b",), "efficiency": numpy.float32(0.5), "headroom": numpy.float32(0.25)}
    found = choose(shape, gpu=gpu, link=link, **options, **kinds)
    expected = small(gpu=plain[0], link=plain[1], schedules=("1f1b",), efficiency=0.5, headroom=0.25)
    assert str(found) == str(expected)
    assert step_times(found) == step_times(expected)
    assert all(type(c.step_time) is float for c in all_of(found))


@pytest.mark.parametrize(
    ("make", "sentence"),
    [
        (lambda: small(gpus=10**30), f"gpus is {10**30}; it must be at most 1,000,000."),
        (lambda: Shape(10**6, 8, 1, 8, 8), "Shape.layers is 1000000; it must be at most 10,000."),
        (lambda: Shape(1, 8, 1, 10**400, 8), f"Shape.vocab is {10**400}; it must be at most 1,000,000,000."),
        (lambda: GPU("x", 10**400, 1), f"GPU.memory is {10**400}; {ABOVE}: 80e9 for 80 GB."),
        (lambda: Link("x", 1, 10**400), f"Link.latency is {10**400}; it must be a finite number of at least 0."),
    ],
)
def test_what_no_machine_can_hold_is_refused(make: Callable[[], object], sentence: str) -> None:
    with refused(sentence):
        make()


def test_schedules_and_shapes_that_are_none_are_refused() -> None:
    for names in ((), ("1f1v",), 5, ((),)):
        with pytest.raises(ValueError, match=r"^schedules is .*; name one or more of naive, gpipe, 1f1b,"):
            small(schedules=names)
    with refused("Shape.heads is 0; it must be a whole number of at least 1."):
        Shape(1, 1, 0, 1, 1)
    with refused("shape is 7; it must be a Shape, as in Shape(layers=32, hidden=4096, ...)."):
        choose(7, gpus=1, batch=1)  # type: ignore[arg-type]


# Hardware.


def test_every_preset_says_where_it_is_from() -> None:
    """A title, and an address of its maker; the free link is nobody's."""
    for name, thing in (GPUS | LINKS).items():
        assert re.match(
            r".+, https://[a-z.]*(nvidia|mlcommons|github|pcisig|infinibandta|ieee802)\.", thing.source
        ) or (name == "free" and thing.bandwidth == math.inf)


@pytest.mark.parametrize(
    ("name", "cores", "products", "clock"),
    [
        ("h100", 132 * 4, 512, 1.83e9),
        ("h200", 132 * 4, 512, 1.83e9),
        ("a100-80", 108 * 4, 256, 1.41e9),
        ("a100-40", 108 * 4, 256, 1.41e9),
        ("v100-32", 80 * 8, 64, 1.53e9),
        ("v100-16", 80 * 8, 64, 1.53e9),
        ("rtx4090", 128 * 4, 64, 2.52e9),  # half of what its tensor cores do with 16-bit sums
    ],
)
def test_a_peak_is_what_its_tensor_cores_do_in_a_second(name: str, cores: int, products: int, clock: float) -> None:
    """Cores, products of 16-bit numbers that each adds up in a cycle, and the boost clock; two operations a product."""
    assert GPUS[name].flops == pytest.approx(2 * cores * products * clock, rel=0.003)


def test_a_direction_of_nvlink_is_half_of_what_its_links_carry() -> None:
    """25 GB/s a link and direction in all three: 6, 12 and 18 links."""
    assert [LINKS[f"nvlink{n}"].bandwidth for n in (2, 3, 4)] == [links * 25e9 for links in (6, 12, 18)]


def test_presets_are_what_their_makers_print() -> None:
    """Memory in GB; the peaks without sparsity, L4's as half of the one with it; four lanes of InfiniBand, in Gbit/s.
    What a small message takes is assumed: twice as long between nodes as within one."""
    memory = {"h200": 141, "h100": 80, "a100-80": 80, "a100-40": 40, "v100-32": 32, "v100-16": 16, "l4": 24}
    assert {name: gpu.memory / 1e9 for name, gpu in GPUS.items()} == memory | {"rtx4090": 24}
    assert GPUS["l4"].flops == 242e12 / 2
    lanes = {"ndr": 4 * 100, "hdr": 4 * 50, "edr": 4 * 25, "ethernet100": 100}
    networks = {name: link for name, link in LINKS.items() if link.latency == 20e-6}
    assert {name: link.bandwidth * 8 / 1e9 for name, link in networks.items()} == lanes
    inside = {"nvlink4", "nvlink3", "nvlink2", "pcie5", "pcie4", "pcie3"}
    assert {name for name, link in LINKS.items() if link.latency == 10e-6} == inside
    assert FREE.carry(1e12) == 0


def test_a_direction_of_pcie_is_what_its_lanes_carry() -> None:
    """16 lanes, 8, 16 and 32 GT/s, 128 of 130 bits."""
    assert LINKS["pcie3"].bandwidth / 1e9 == pytest.approx(15.75, abs=0.01)
    assert LINKS["pcie4"].bandwidth / 1e9 == pytest.approx(31.5, abs=0.02)
    assert LINKS["pcie5"].bandwidth / 1e9 == pytest.approx(63.0, abs=0.02)


@pytest.mark.parametrize(
    ("make", "sentence"),
    [
        (lambda: GPU("x", 0, 1), f"GPU.memory is 0; {ABOVE}: 80e9 for 80 GB."),
        (lambda: GPU("x", 1, math.inf), f"GPU.flops is inf; {ABOVE}: 989e12 for 989 TFLOP/s."),
        (lambda: Link("x", -1), f"Link.bandwidth is -1; {ABOVE}: 450e9 for 450 GB/s."),
        (lambda: Link("x", 1, -1), "Link.latency is -1; it must be a finite number of at least 0."),
    ],
)
def test_hardware_that_is_none_is_refused(make: object, sentence: str) -> None:
    with refused(sentence):
        make()  # type: ignore[operator]


@pytest.mark.thorough
def test_64_gpus_are_planned_for_in_seconds() -> None:
    started = time.process_time()
    choice = choose(SEVEN_B, gpus=64, batch=1024)
    assert time.process_time() - started < 15  # 3 on a slow core
    assert len(choice.candidates) == 10
    assert len(choice.candidates + choice.slower + choice.refused) > 500
