"""When each action starts and ends: closed forms, published numbers, and what holds for every plan."""

import json
import sys
import time
from dataclasses import replace
from functools import cache
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from strategies import (
    equal_costs,
    made,
    microbatches,
    needed,
    plans,
    quick,
    ranks,
    refused,
    times,
    unequal_costs,
)

from ppcourse.analysis import formulas
from ppcourse.analysis.in_flight import in_flight
from ppcourse.analysis.simulate import simulate
from ppcourse.analysis.timeline import Span, Timeline
from ppcourse.schedules import build
from ppcourse.schedules.action import Action, Op
from ppcourse.schedules.costs import Costs
from ppcourse.schedules.forward_only import forward_only
from ppcourse.schedules.schedule import Schedule, ScheduleError

DATA = Path(__file__).parent / "data"
UNIT_COSTS = json.loads((DATA / "unit_costs.json").read_text())["rows"]


# The closed forms: exact for equal stages and free hops.


@quick
@given(ranks, microbatches, equal_costs())
def test_a_step_of_gpipe_and_1f1b_takes_m_and_p_minus_1_slots(p: int, m: int, costs: Costs) -> None:
    t_f, t_b = costs.forward, costs.input_grad + costs.weight_grad
    for name in ("gpipe", "1f1b"):
        timeline = simulate(build(name, p, m), costs)
        assert timeline.makespan == formulas.step_time(p, m, t_f, t_b) == (m + p - 1) * (t_f + t_b)
        assert timeline.busy == (formulas.ideal_time(m, t_f, t_b),) * p
        assert timeline.idle == (formulas.bubble_time(p, t_f, t_b),) * p


@quick
@given(ranks, microbatches, equal_costs())
def test_naively_no_two_ranks_work_at_the_same_time(p: int, m: int, costs: Costs) -> None:
    t_f, t_b = costs.forward, costs.input_grad + costs.weight_grad
    timeline = simulate(build("naive", p, m), costs)
    assert timeline.makespan == formulas.naive_step_time(p, m, t_f, t_b) == sum(timeline.busy)


@quick
@given(ranks, microbatches, equal_costs())
def test_the_ratios_have_closed_forms(p: int, m: int, costs: Costs) -> None:
    for name in ("gpipe", "1f1b"):
        timeline = simulate(build(name, p, m), costs)
        busy, makespan = sum(timeline.busy), timeline.makespan
        assert timeline.bubble_overhead == pytest.approx(formulas.bubble_overhead(p, m))
        assert timeline.bubble_rate == pytest.approx(formulas.bubble_rate(p, m))
        assert busy / (p * makespan) == pytest.approx(formulas.efficiency(p, m))
        assert busy / makespan == pytest.approx(formulas.speed_up(p, m))


@quick
@given(ranks, microbatches, equal_costs())
def test_the_last_rank_waits_before_its_first_action_and_after_its_last(p: int, m: int, costs: Costs) -> None:
    t_f, t_b = costs.forward, costs.input_grad + costs.weight_grad
    for name in ("gpipe", "1f1b"):
        timeline = simulate(build(name, p, m), costs)
        last = timeline.by_rank[-1]
        assert last[0].start == (p - 1) * t_f
        assert timeline.makespan - last[-1].end == (p - 1) * t_b


@quick
@given(ranks, microbatches, equal_costs())
def test_in_gpipe_rank_0_waits_only_between_its_last_forward_and_its_first_backward(
    p: int, m: int, costs: Costs
) -> None:
    timeline = simulate(build("gpipe", p, m), costs)
    first = timeline.by_rank[0]
    assert first[m].start - first[m - 1].end == timeline.idle[0]


@quick
@given(ranks, microbatches, st.integers(1, 4))
def test_the_formulas_agree_with_each_other(p: int, m: int, v: int) -> None:
    overhead, rate = formulas.bubble_overhead(p, m, v), formulas.bubble_rate(p, m, v)
    ideal, bubble = formulas.ideal_time(m, 1, 2), formulas.bubble_time(p, 1, 2, v)
    assert overhead == pytest.approx(bubble / ideal)
    assert rate == pytest.approx(overhead / (1 + overhead))
    assert formulas.efficiency(p, m, v) == pytest.approx(1 - rate)
    assert formulas.speed_up(p, m, v) == pytest.approx(p * ideal / formulas.step_time(p, m, 1, 2, v))


@pytest.mark.parametrize("p", [2, 4, 7, 64])
@pytest.mark.parametrize(("parts", "share"), [(0.5, 1), (0.2, 4), (0.1, 9), (0.05, 19), (0.01, 99)])
def test_the_m_for_a_rate_is_exact_where_it_is_whole(p: int, parts: float, share: int) -> None:
    m = formulas.microbatches_for_rate(p, parts)
    assert m == (p - 1) * share
    assert formulas.bubble_rate(p, (p - 1) * share) == pytest.approx(parts)


# The numbers of the lessons and of others.


@pytest.mark.parametrize(
    ("p", "m", "milliseconds", "efficiency"),
    [(2, 1, 40, 50.0), (2, 4, 100, 80.0), (4, 1, 80, 25.0), (4, 8, 220, 72.7), (4, 16, 380, 84.2)],
)
def test_the_textbooks_table(p: int, m: int, milliseconds: float, efficiency: float) -> None:
    timeline = simulate(build("gpipe", p, m), Costs(forward=10, input_grad=5, weight_grad=5))
    assert timeline.makespan == milliseconds
    assert round(100 * (1 - timeline.bubble_rate), 1) == efficiency
    assert round(100 * formulas.efficiency(p, m), 1) == efficiency


@pytest.mark.parametrize("name", ["gpipe", "1f1b"])
def test_four_ranks_and_six_microbatches_make_18_slots_of_which_6_are_idle(name: str) -> None:
    timeline = simulate(build(name, 4, 6), Costs(1, 0.5, 0.5))
    assert (timeline.makespan, timeline.busy, timeline.idle) == (18, (12,) * 4, (6,) * 4)


@pytest.mark.parametrize("name", ["gpipe", "1f1b"])
@pytest.mark.parametrize(
    ("p", "m", "overhead", "rate"),
    [
        (4, 8, 3 / 8, 3 / 11),
        (4, 16, 3 / 16, 3 / 19),
        (4, 4, 3 / 4, 3 / 7),
        (8, 32, 7 / 32, 7 / 39),
        (2, 1, 1, 1 / 2),
    ],
)
def test_one_bubble_has_two_names(name: str, p: int, m: int, overhead: float, rate: float) -> None:
    timeline = simulate(build(name, p, m))
    assert timeline.bubble_overhead == pytest.approx(overhead)
    assert timeline.bubble_rate == pytest.approx(rate)


def test_hops_cost_1f1b_more_than_gpipe() -> None:
    costs = Costs(forward=1, input_grad=1, weight_grad=1, comm=0.1)
    assert round(simulate(build("gpipe", 4, 8), costs).makespan, 9) == 33.6
    assert round(simulate(build("1f1b", 4, 8), costs).makespan, 9) == 34.6
    in_tenths = Costs(forward=10, input_grad=10, weight_grad=10, comm=1)
    assert simulate(build("gpipe", 4, 8), in_tenths).makespan == 336
    assert simulate(build("1f1b", 4, 8), in_tenths).makespan == 346


@pytest.mark.parametrize("name", ["gpipe", "1f1b"])
def test_a_last_stage_half_as_long_again_costs_every_rank(name: str) -> None:
    longer = [1, 1, 1, 1.5]
    assert simulate(build(name, 4, 8)).makespan == 33
    assert simulate(build(name, 4, 8), Costs(longer, longer, longer)).makespan == 45


@pytest.mark.parametrize("row", UNIT_COSTS, ids=lambda row: f"{row['schedule']} p={row['p']} m={row['m']}")
def test_unit_costs(row: dict[str, int]) -> None:
    plan = build(row["schedule"], row["p"], row["m"])
    timeline = simulate(plan)
    assert timeline.makespan == row["makespan"]
    assert set(timeline.busy) == {row["busy"]}
    assert max(timeline.idle) == row["bubble"]
    assert timeline.longest_stage_time - row["busy"] == row["bubble_of_longest_stage"]
    assert list(in_flight(plan)) == row["held"]


# What holds for every plan and all costs.


def ends(plan: Schedule, costs: Costs) -> dict[Action, float]:
    """When each action ends, by recursion: after the one before it in its row, and after what it needs.

    The two of an overlapped pair start and end together, and last as long as both.
    """
    lasts = costs.durations(plan.num_stages)
    place = {action: (rank, n) for rank, row in enumerate(plan.rows) for n, action in enumerate(row)}
    maker = {fact: action for action in place for fact in made(action)}

    @cache
    def end(action: Action) -> float:
        rank, n = place[action]
        n -= (rank, n - 1) in plan.overlapped
        together = plan.rows[rank][n : n + 1 + ((rank, n) in plan.overlapped)]
        before = [end(plan.rows[rank][n - 1])] if n else [0.0]
        for fact in (fact for each in together for fact in needed(each, plan.num_stages)):
            hop = costs.comm if place[maker[fact]][0] != rank else 0
            before.append(end(maker[fact]) + hop)
        return max(before) + sum(lasts[each.op][each.stage] for each in together)

    return {action: end(action) for action in place}


@st.composite
def plans_and_costs(draw: st.DrawFn) -> tuple[Schedule, Costs]:
    plan = draw(plans)
    return plan, draw(unequal_costs(plan.num_stages))


@quick
@given(plans_and_costs())
def test_each_action_starts_as_soon_as_it_may(drawn: tuple[Schedule, Costs]) -> None:
    plan, costs = drawn
    timeline = simulate(plan, costs)
    assert {span.action: span.end for span in timeline.spans} == ends(plan, costs)
    lasts = costs.durations(plan.num_stages)
    pairs = {plan.rows[rank][n] for rank, at in plan.overlapped for n in (at, at + 1)}
    alone = [span for span in timeline.spans if span.action not in pairs]
    assert all(span.end - span.start == lasts[span.action.op][span.action.stage] for span in alone)
    assert [tuple(span.action for span in row) for row in timeline.by_rank] == list(plan.rows)


@quick
@given(plans_and_costs())
def test_no_step_is_shorter_than_its_work_or_than_one_microbatchs_way(drawn: tuple[Schedule, Costs]) -> None:
    plan, costs = drawn
    timeline = simulate(plan, costs)
    lasts = costs.durations(plan.num_stages)
    work = [sum(lasts[action.op][action.stage] for action in row) for row in plan.rows]
    homes = plan.placement.ranks
    hops = sum(one != other for one, other in pairwise(homes))
    way = sum(lasts["F"]) + sum(lasts["I"]) + 2 * hops * costs.comm
    assert timeline.end >= max(work)
    assert timeline.end >= way


@quick
@given(plans_and_costs())
def test_busy_and_idle_fill_the_makespan_of_every_rank(drawn: tuple[Schedule, Costs]) -> None:
    plan, costs = drawn
    timeline = simulate(plan, costs)
    lasts = costs.durations(plan.num_stages)
    for rank, row in enumerate(plan.rows):
        assert timeline.busy[rank] == sum(lasts[action.op][action.stage] for action in row)
        assert timeline.busy[rank] + timeline.idle[rank] == timeline.makespan
    assert timeline.longest_stage_time <= timeline.makespan == timeline.end - timeline.start


@quick
@given(plans, times, times, times)
def test_the_three_bubbles_come_from_the_same_times(plan: Schedule, f: int, i: int, w: int) -> None:
    timeline = simulate(plan, Costs(f, i, w))
    p, busy, idle = plan.num_ranks, sum(timeline.busy), sum(timeline.idle)
    assert timeline.bubble_overhead == idle / busy
    assert timeline.bubble_rate == idle / (p * timeline.makespan)
    assert timeline.stage_bubble_rate == pytest.approx(1 - busy / (p * timeline.longest_stage_time))
    assert timeline.bubble_rate == pytest.approx(timeline.bubble_overhead / (1 + timeline.bubble_overhead))
    assert timeline.stage_bubble_rate <= timeline.bubble_rate + 1e-12


def test_by_default_f_i_and_w_last_1_and_hops_are_free() -> None:
    assert simulate(build("1f1b", 3, 4)) == simulate(build("1f1b", 3, 4), Costs(1, 1, 1, comm=0))


def test_a_split_backward_frees_the_rank_before_it_earlier() -> None:
    whole = simulate(Schedule.from_text("0F0 0B0\n1F0 1B0"))
    split = simulate(Schedule.from_text("0F0 0I0 0W0\n1F0 1I0 1W0"))
    assert (whole.makespan, split.makespan) == (6, 5)


def test_forwards_alone_can_be_simulated() -> None:
    assert simulate(forward_only(build("gpipe", 3, 4))).makespan == 6


def test_the_longest_stage_time_leaves_out_what_comes_before_a_ranks_first_action() -> None:
    timeline = simulate(Schedule.from_text("0F0 0F1 0F2\n1F0 1F1 1F2"))
    assert (timeline.makespan, timeline.longest_stage_time) == (4, 3)
    assert (timeline.bubble_rate, timeline.stage_bubble_rate) == (1 / 4, 0)


def test_a_hop_inside_a_rank_is_free() -> None:
    bent = Schedule.from_text("0F0 3F0 3B0 0B0\n1F0 2F0 2B0 1B0")
    assert simulate(bent, Costs(1, 1, 1, comm=10)).makespan == 12 + 4 * 10


# Overlapped pairs.


PAIR = "0F0 0F1 0F2+0B0 0B1 0B2\n1F0 1B0 1F1 1B1 1F2 1B2"


@pytest.mark.parametrize(("overlap", "lasts"), [(None, 3), (2, 2), ([1.5, 7], 1.5)])
def test_an_overlapped_pair_starts_when_both_may_and_ends_together(
    overlap: float | list[float] | None, lasts: float
) -> None:
    timeline = simulate(Schedule.from_text(PAIR), Costs(1, 1, 1, overlap=overlap))
    spans = {str(span.action): span for span in timeline.spans}
    assert spans["0F2"].start == spans["0B0"].start == spans["1B0"].end == 4
    assert spans["0F2"].end == spans["0B0"].end == 4 + lasts
    assert timeline.busy[0] == 1 + 1 + lasts + 2 + 2
    assert len(timeline.spans) == 12


def test_a_pair_lasts_as_long_as_its_own_stages_say() -> None:
    plan = Schedule.from_text("0F0 1F0 1B0 0F1 1F1+0B0 1B1 0B1")
    costs = Costs(forward=[1, 2], input_grad=[3, 4], weight_grad=[5, 6])
    f_of_stage_1, b_of_stage_0 = 2, 3 + 5
    [pair] = [span for span in simulate(plan, costs).spans if str(span.action) == "1F1"]
    assert pair.end - pair.start == f_of_stage_1 + b_of_stage_0
    [pair] = [span for span in simulate(plan, Costs(overlap=[1.5, 7])).spans if str(span.action) == "1F1"]
    assert pair.end - pair.start == 7


# Bytes over bandwidth.


def test_a_message_takes_its_bytes_over_the_bandwidth_and_then_the_hop() -> None:
    plan = Schedule.from_text("0F0 0B0\n1F0 1B0")
    spans = {str(s.action): s for s in simulate(plan, Costs(1, 1, 0, comm=0.5, size=[20, 999], bandwidth=10)).spans}
    assert spans["1F0"].start == 1 + 20 / 10 + 0.5
    assert spans["0B0"].start == spans["1B0"].end + 20 / 10 + 0.5  # the gradient of what stage 0 handed on


def test_each_stage_has_a_size_of_its_own() -> None:
    plan = Schedule.from_text("0F0 0B0\n1F0 1B0\n2F0 2B0")
    spans = {str(s.action): s for s in simulate(plan, Costs(1, 1, 0, size=[10, 40, 999], bandwidth=10)).spans}
    assert spans["1F0"].start - spans["0F0"].end == spans["0B0"].start - spans["1B0"].end == 1
    assert spans["2F0"].start - spans["1F0"].end == spans["1B0"].start - spans["2B0"].end == 4


def test_messages_on_the_same_way_queue() -> None:
    plan = Schedule.from_text("0F0 0F1 0F2\n1F0 1F1 1F2")
    starts = [s.start for s in simulate(plan, Costs(1, size=30, bandwidth=10)).by_rank[1]]
    assert starts == [1 + 3, 1 + 3 + 3, 1 + 3 + 3 + 3]
    assert [s.start for s in simulate(plan, Costs(1, comm=3)).by_rank[1]] == [4, 5, 6]


def test_activations_and_gradients_share_a_way() -> None:
    plan = Schedule.from_text("0F0 2F0 2B0 0F1 2F1 2B1 0B0 0B1\n1F0 1B0 1F1 1B1")
    spans = {str(s.action): s for s in simulate(plan, Costs(1, 1, 0, size=30, bandwidth=10)).spans}
    assert spans["1B0"].start == spans["2B0"].end + 3
    assert spans["0F1"].end == spans["2B0"].end + 1
    assert spans["1F1"].start == spans["2B0"].end + 3 + 3


def test_messages_on_different_ways_do_not() -> None:
    plan = Schedule.from_text("0F0 0F1\n1F0 1F1\n2F0 2F1")
    costs = Costs(10, size=30, bandwidth=10)
    assert [s.start for s in simulate(plan, costs).by_rank[2]] == [26, 36]


@quick
@given(plans_and_costs(), times)
def test_with_small_messages_or_wide_ways_only_the_hop_counts(drawn: tuple[Schedule, Costs], bandwidth: int) -> None:
    plan, costs = drawn
    nothing = replace(costs, size=0, bandwidth=bandwidth)
    assert simulate(plan, nothing) == simulate(plan, costs) == simulate(plan, replace(costs, size=7))


def test_nothing_arrives_without_bandwidth() -> None:
    with refused("Costs.bandwidth is 0, and nothing would ever arrive; leave it out if only comm counts."):
        Costs(bandwidth=0)


# Random delays.


@quick
@given(plans_and_costs(), st.floats(0.01, 2), st.integers(0, 9))
def test_delays_only_ever_lengthen_actions_and_come_from_the_seed(
    drawn: tuple[Schedule, Costs], jitter: float, seed: int
) -> None:
    plan, costs = drawn
    late = simulate(plan, costs, jitter=jitter, seed=seed)
    assert late == simulate(plan, costs, jitter=jitter, seed=seed)
    lasts = costs.durations(plan.num_stages)
    assert all(s.end - s.start >= lasts[s.action.op][s.action.stage] - 1e-9 for s in late.spans)
    assert late.end >= simulate(plan, costs).end
    assert simulate(plan, costs, jitter=0, seed=seed) == simulate(plan, costs)


def test_every_schedule_meets_the_same_delays() -> None:
    """Stage by stage and microbatch by microbatch; a B those of its I and its W."""

    def work(name: str) -> list[float]:
        return [pytest.approx(busy) for busy in simulate(build(name, 4, 8), jitter=0.5, seed=3).busy]

    assert work("gpipe") == work("1f1b") == work("zb-h1")
    other = simulate(build("gpipe", 4, 8), jitter=0.5, seed=4)
    assert list(other.busy) != work("gpipe")


def test_more_microbatches_and_stages_leave_the_delays_of_the_others_as_they_were() -> None:
    few, many = (simulate(build("naive", p, m), jitter=0.5, seed=3) for p, m in ((2, 3), (4, 8)))
    lasted = {span.action: span.end - span.start for span in many.spans}
    assert [s.end - s.start for s in few.spans] == pytest.approx([lasted[s.action] for s in few.spans])
    assert len({round(time, 9) for time in lasted.values()}) == len(many.spans)


def test_f_i_and_w_of_a_microbatch_have_delays_of_their_own() -> None:
    spans = simulate(build("zb-h1", 1, 4), jitter=0.5, seed=3).spans
    assert len({round(span.end - span.start, 9) for span in spans}) == 12


@pytest.mark.parametrize("seed", [None, "x", 1.5, [1]])
def test_a_seed_that_would_not_repeat_is_refused(seed: int) -> None:
    with refused(f"seed is {seed!r}; it must be a whole number, so that equal calls give equal delays."):
        simulate(build("gpipe", 2, 2), jitter=0.1, seed=seed)


def test_a_seed_may_be_a_numpy_integer() -> None:
    plan = build("gpipe", 2, 2)
    assert simulate(plan, jitter=0.1, seed=np.int64(3)) == simulate(plan, jitter=0.1, seed=3)


def test_delays_have_the_mean_that_was_asked_for() -> None:
    timeline = simulate(build("gpipe", 10, 400), Costs(2, 1, 1), jitter=0.25, seed=1)
    lateness = sum(timeline.busy) / (10 * 400 * 4) - 1
    assert lateness == pytest.approx(0.25, abs=0.02)


@pytest.mark.parametrize("wrong", [-0.1, float("nan"), float("inf"), "much"])
def test_a_jitter_that_is_none_is_refused(wrong: object) -> None:
    with refused(f"jitter is {wrong!r}; it must be a number of at least 0 (0.1: a tenth longer on average)."):
        simulate(build("gpipe", 2, 2), jitter=wrong)


# What cannot be simulated.


def test_a_deadlock_says_what_each_rank_waits_for() -> None:
    with refused(
        "Deadlock: rank 0 stands at 0B0 and waits for 1B0, which rank 1 has only after 1F1;"
        " rank 1 stands at 1F1 and waits for 0F1, which rank 0 has only after 0B0;"
        " rank 2 stands at 2F0 and waits for 1F0, which rank 1 has only after 1F1.",
        ScheduleError,
    ):
        simulate(Schedule.from_text("0F0 0B0 0F1 0B1\n1F1 1B1 1F0 1B0\n2F0 2B0 2F1 2B1"))


def test_1f1b_deadlocks_if_ranks_warm_up_with_a_forward_for_each_rank_before_them() -> None:
    """It is one for each rank after them."""
    rows = ["0F0 0B0 0F1 0B1", "1F0 1F1 1B0 1B1"]
    with refused(
        "Deadlock: rank 0 stands at 0B0 and waits for 1B0, which rank 1 has only after 1F1;"
        " rank 1 stands at 1F1 and waits for 0F1, which rank 0 has only after 0B0.",
        ScheduleError,
    ):
        simulate(Schedule.from_rows(rows))


def test_costs_for_another_number_of_stages_are_refused() -> None:
    with refused("Costs.input_grad has 3 numbers for 4 stages; give 4, or one number for all."):
        simulate(build("1f1b", 4, 8), Costs(input_grad=[1, 1, 1]))


@pytest.mark.parametrize(
    ("wrong", "shown"),
    [
        (-1, "-1"),
        (float("inf"), "inf"),
        (float("nan"), "nan"),
        (None, "None"),
        ("1", "'1'"),
        ([1, -1, 1], "-1"),
        ([[1], [2]], "[1]"),
        (10**400, str(10**400)),
    ],
)
@pytest.mark.parametrize("name", ["forward", "input_grad", "weight_grad"])
def test_costs_that_are_no_times_are_refused(name: str, wrong: object, shown: str) -> None:
    right = "it must be a finite number of at least 0, or a list of one a stage"
    with refused(f"Costs.{name} is {shown}; {right}."):
        Costs(**{name: wrong})


TOO_LARGE = "These costs add up to more than a number can hold, about 1.8e308; take a larger unit."


@pytest.mark.parametrize(
    "costs",
    [
        Costs(1e308),
        Costs(input_grad=1e308, weight_grad=1e308),
        Costs(comm=1e308),
        Costs(size=1e308, bandwidth=1e-9),
        Costs(overlap=1e308),
        Costs(3e306, 3e306, 3e306),  # each rank's end is a number, and the idle time of all ranks is none
        Costs(input_grad=1e308, weight_grad=1e308, overlap=1),  # inf less inf, which is no number either
    ],
    ids=str,
)
def test_costs_that_add_up_to_no_number_are_refused(costs: Costs) -> None:
    with refused(TOO_LARGE):
        simulate(build("dualpipe-v", 4, 8), costs)


def test_large_costs_that_add_up_to_a_number_are_not() -> None:
    timeline = simulate(build("1f1b", 4, 8), Costs(1e303, 1e303, 1e303))
    assert timeline.bubble_overhead == pytest.approx(3 / 8)
    with refused(TOO_LARGE):
        simulate(build("1f1b", 4, 8), Costs(1e303), jitter=1e300)
    with refused(TOO_LARGE):  # all ends add up to a number, 46 times this, and four makespans of 12 times this do not
        simulate(build("1f1b", 4, 1), Costs(3.82e306, 3.82e306, 3.82e306))


@pytest.mark.parametrize("wrong", [[1, 2], None, -0.1])
def test_a_hop_has_one_cost(wrong: object) -> None:
    with refused(f"Costs.comm is {wrong!r}; it must be a finite number of at least 0."):
        Costs(comm=wrong)


# Timelines by hand, as measured ones come.


def test_a_measured_timeline_may_start_anywhere_and_come_in_any_order() -> None:
    first, second = Action.parse("0F0"), Action.parse("0B0")
    timeline = Timeline.of("mine", 2, (Span(0, second, 7.0, 9.0), Span(0, first, 5.0, 6.0)), source="measured")
    assert [span.action for span in timeline.by_rank[0]] == [first, second]
    assert (timeline.start, timeline.end, timeline.makespan) == (5, 9, 4)
    assert (timeline.busy, timeline.idle) == ((3, 0), (1, 4))
    assert timeline.bubble_overhead == 5 / 3
    assert str(timeline) == ("mine (measured): makespan 4, longest stage 4, bubble overhead 166.7%, bubble rate 62.5%")


def test_time_that_two_spans_share_is_busy_once() -> None:
    long, inside, across = ((0.0, 4.0), (1.0, 2.0), (3.0, 5.0))
    within, beyond = (
        Timeline.of("mine", 1, [Span(0, Action(0, Op.F, i), *time) for i, time in enumerate(times)])
        for times in ([long, inside], [long, inside, across])
    )
    assert (within.busy, within.makespan, within.longest_stage_time) == ((4,), 4, 4)
    assert beyond.busy == (5,)


@pytest.mark.parametrize("rank", [-1, 2])  # -1: the last one, for a list
def test_a_span_of_a_rank_that_there_is_not_is_refused(rank: int) -> None:
    with refused(f"Rank {rank} runs 0F0, but the timeline has ranks 0 to 1."):
        Timeline.of("mine", 2, [Span(rank, Action.parse("0F0"), 0.0, 1.0)])


def test_of_two_that_start_at_once_the_shorter_came_first() -> None:
    free, long = Span(0, Action.parse("0F0"), 1.0, 1.0), Span(0, Action.parse("0B0"), 1.0, 3.0)
    assert Timeline.of("mine", 1, (long, free)).by_rank == ((free, long),)


def test_an_empty_timeline_has_no_bubble() -> None:
    empty = Timeline.of("nothing", 2, ())
    assert (empty.makespan, empty.longest_stage_time) == (0, 0)
    assert (empty.bubble_overhead, empty.bubble_rate, empty.stage_bubble_rate) == (0, 0, 0)


def test_no_span_is_made_until_somebody_asks_for_one() -> None:
    timeline = simulate(build("dualpipe", 4, 8))
    answers = (timeline.makespan, timeline.busy, timeline.bubble_rate, timeline.stage_bubble_rate, str(timeline))
    assert all(answers)
    assert not {"spans", "by_rank"} & {*vars(timeline)}
    assert timeline.spans == tuple(span for row in timeline.by_rank for span in row)
    assert timeline.spans is timeline.spans  # and then only once
    assert timeline.by_rank is timeline.by_rank
    assert Timeline.of("dualpipe", 4, timeline.spans) == timeline


# Linear in the number of actions.


def calls(plan: Schedule) -> int:
    """How many functions are called while `plan` is simulated: unlike seconds, the same every time."""
    count = 0

    def tick(frame: object, event: str, function: object) -> None:
        nonlocal count
        count += event in ("call", "c_call")

    sys.setprofile(tick)
    try:
        simulate(plan)
    finally:
        sys.setprofile(None)
    return count


@pytest.mark.parametrize(("small", "large"), [((4, 100), (4, 200)), ((20, 20), (40, 20))], ids=["m", "p"])
def test_twice_the_actions_take_twice_the_work(small: tuple[int, int], large: tuple[int, int]) -> None:
    assert calls(build("1f1b", *large)) < 2.1 * calls(build("1f1b", *small))


@pytest.mark.parametrize(("small", "large"), [((4, 200), (4, 1600)), ((10, 40), (80, 40))], ids=["m", "p"])
def test_eight_times_the_actions_take_far_less_than_64_times_the_time(
    small: tuple[int, int], large: tuple[int, int]
) -> None:
    def seconds(plan: Schedule) -> float:
        start = time.process_time()
        simulate(plan)
        return time.process_time() - start

    few, many = build("1f1b", *small), build("1f1b", *large)
    assert min(seconds(many) for _ in range(3)) < 24 * min(seconds(few) for _ in range(3))
