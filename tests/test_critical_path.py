"""The critical path: a chain without holes that is as long as the step, whatever the plan and its costs."""

import random
import sys
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from strategies import made, needed, plans, quick, random_order, refused, times, unequal_costs

from ppcourse.analysis.critical_path import causes, critical_links, critical_path, messages
from ppcourse.analysis.gaps import gaps
from ppcourse.analysis.simulate import simulate
from ppcourse.analysis.timeline import Span, Timeline
from ppcourse.analysis.trace import chrome_trace
from ppcourse.schedules import build
from ppcourse.schedules.action import Action
from ppcourse.schedules.costs import Costs
from ppcourse.schedules.forward_only import forward_only
from ppcourse.schedules.placement import Placement, bidirectional
from ppcourse.schedules.schedule import Schedule, ScheduleError
from ppcourse.schedules.validate import validate

PAIR = "0F0 0F1 0F2+0B0 0B1 0B2\n1F0 1B0 1F1 1B1 1F2 1B2"


@st.composite
def mirrored_plans(draw: st.DrawFn) -> Schedule:
    """Each stage on two ranks: a legal order of all the work, dealt out to the ranks in that order."""
    p, m = draw(st.integers(2, 4)), draw(st.integers(2, 4))
    [everything] = random_order(random.Random(draw(st.integers(0, 2**32))), [0] * p, m).rows
    placement = bidirectional(p, m)
    rows: list[list[Action]] = [[] for _ in range(p)]
    for action in everything:
        rows[placement.rank_of(action.stage, action.microbatch)].append(action)
    return Schedule("mirrored", placement, m, tuple(map(tuple, rows)))


@st.composite
def paired_plans(draw: st.DrawFn) -> Schedule:
    """Some plan with some of its neighbouring F and B overlapped."""
    plan = draw(st.one_of(plans, mirrored_plans()))
    neighbours = [
        (rank, position)
        for rank, row in enumerate(plan.rows)
        for position, (one, other) in enumerate(pairwise(row))
        if one.op == "F" and other.op == "B" and one.microbatch != other.microbatch
    ]
    assume(neighbours)
    paired = replace(plan, overlapped=frozenset(draw(st.lists(st.sampled_from(neighbours), min_size=1))))
    assume(not validate(paired))
    return paired


all_plans = st.one_of(plans, mirrored_plans(), paired_plans())


@st.composite
def simulated(draw: st.DrawFn) -> tuple[Schedule, Costs, Timeline]:
    """Whole numbers, so that sums and differences are exact."""
    plan = draw(all_plans)
    costs = draw(unequal_costs(plan.num_stages))
    overlap = draw(st.one_of(st.none(), times))
    costs = replace(costs, overlap=overlap)
    return plan, costs, simulate(plan, costs)


def partners(plan: Schedule, span: Span, timeline: Timeline) -> list[Span]:
    """The span, and the other one of its overlapped pair."""
    row, place = timeline.by_rank[span.rank], plan.rows[span.rank].index(span.action)
    pairs = [{n, n + 1} for n in (place, place - 1) if (span.rank, n) in plan.overlapped]
    names = {plan.rows[span.rank][n] for pair in pairs for n in pair} | {span.action}
    return [other for other in row if other.action in names]


def before(plan: Schedule, span: Span) -> Action | None:
    row = plan.rows[span.rank]
    place = row.index(span.action)
    return row[place - 1] if place else None


# What holds for every plan and all costs.


@quick
@given(simulated())
def test_spans_and_hops_along_the_path_add_up_to_the_makespan(drawn: tuple[Schedule, Costs, Timeline]) -> None:
    plan, costs, timeline = drawn
    links = critical_links(plan, timeline)
    work = sum(span.end - span.start for span in critical_path(plan, timeline))
    hops = sum(link.reason == "message" for link in links)
    assert work + hops * costs.comm == timeline.makespan
    assert work + sum(link.waited for link in links) == timeline.makespan
    assert tuple(link.span for link in links) == critical_path(plan, timeline)


@quick
@given(simulated())
def test_each_span_of_the_path_starts_when_the_one_before_lets_it(drawn: tuple[Schedule, Costs, Timeline]) -> None:
    plan, costs, timeline = drawn
    path = critical_path(plan, timeline)
    assert set(path) <= set(timeline.spans)
    assert path[0].start == timeline.start
    assert not needed(path[0].action, plan.num_stages)
    assert path[-1].end == timeline.end
    for one, other in pairwise(path):
        facts = set().union(*(made(span.action) for span in partners(plan, one, timeline)))
        if one.rank == other.rank:
            earlier = [before(plan, span) for span in partners(plan, other, timeline)]
            assert {span.action for span in partners(plan, one, timeline)} & set(earlier)
            assert other.start == one.end
        else:
            assert facts & needed(other.action, plan.num_stages)
            assert other.start == one.end + costs.comm


@quick
@given(simulated())
def test_the_reason_is_a_message_only_if_the_rank_was_free_before_it_came(
    drawn: tuple[Schedule, Costs, Timeline],
) -> None:
    plan, costs, timeline = drawn
    why = causes(plan, timeline)
    assert list(why) == [action for row in plan.rows for action in row]
    ends = {fact: span for span in timeline.spans for fact in made(span.action)}
    for action, link in why.items():
        pair = {span.action for span in partners(plan, link.span, timeline)}
        assert action in pair
        if link.reason == "message":
            assert link.after in [ends[fact] for fact in needed(link.span.action, plan.num_stages)]
            assert link.after.rank != link.span.rank
            busy = [span for span in timeline.by_rank[link.span.rank] if span.action not in pair]
            assert all(span.end < link.span.start for span in busy if span.start < link.span.start)
            assert link.waited == costs.comm
        elif link.reason == "rank":
            assert link.after.rank == link.span.rank
            assert link.after.end == link.span.start
        else:
            assert (link.after, link.waited) == (None, 0)
            assert action in pair
            assert plan.rows[link.span.rank][0] in pair


@quick
@given(simulated())
def test_a_measured_timeline_with_the_same_times_has_the_same_reasons(
    drawn: tuple[Schedule, Costs, Timeline],
) -> None:
    plan, _, timeline = drawn
    measured = Timeline.of("mine", timeline.num_ranks, timeline.spans[::-1], "measured")
    assert causes(plan, measured) == causes(plan, timeline)
    moved = tuple(Span(s.rank, s.action, s.start + 1000, s.end + 1000) for s in timeline.spans)
    later = critical_links(plan, Timeline.of("mine", timeline.num_ranks, moved))
    assert [(x.reason, x.waited) for x in later] == [(x.reason, x.waited) for x in critical_links(plan, timeline)]


@quick
@given(all_plans)
def test_messages_are_what_one_rank_makes_and_another_needs(plan: Schedule) -> None:
    rank_of = {fact: rank for rank, row in enumerate(plan.rows) for action in row for fact in made(action)}
    expected = [
        (fact, action)
        for rank, row in enumerate(plan.rows)
        for action in row
        for fact in needed(action, plan.num_stages)
        if rank_of[fact] != rank
    ]
    found = list(messages(simulate(plan)))
    assert len(found) == len(expected)
    for maker, user in found:
        assert any((fact, user.action) in expected for fact in made(maker.action))


# By hand.


def path(plan: Schedule, costs: Costs | None = None) -> str:
    return " ".join(str(span.action) for span in critical_path(plan, simulate(plan, costs)))


def reasons(plan: Schedule, costs: Costs | None = None) -> str:
    return " ".join(link.reason for link in critical_links(plan, simulate(plan, costs)))


def test_the_path_of_1f1b_goes_down_stays_on_the_last_rank_and_comes_back() -> None:
    plan = build("1f1b", 3, 3)
    assert path(plan) == "0F0 1F0 2F0 2B0 2F1 2B1 2F2 2B2 1B2 0B2"
    assert reasons(plan) == "start message message rank rank rank rank rank message message"


def test_a_slow_stage_keeps_the_path() -> None:
    slow = Costs([1, 9, 1], [1, 9, 1], [1, 9, 1])
    assert path(build("gpipe", 3, 3), slow) == "0F0 1F0 1F1 1F2 2F2 2B0 1B0 1B1 1B2 0B2"


def test_with_hops_1f1b_goes_to_and_fro() -> None:
    """Why 1F1B loses more to hops than GPipe: 16 of them lie on its path here, and in GPipe 6."""
    costs = Costs(10, 10, 10, comm=1)
    assert reasons(build("gpipe", 4, 8), costs).count("message") == 6
    assert reasons(build("1f1b", 4, 8), costs).count("message") == 16
    assert simulate(build("1f1b", 4, 8), costs).makespan == 33 * 10 + 16


def test_an_overlapped_pair_is_on_the_path_with_the_one_that_waits() -> None:
    """0B0 waits for 1B0, and 1F2 for 0F2, which is joined to 0B0."""
    assert path(Schedule.from_text(PAIR), Costs(overlap=5)) == "0F0 1F0 1B0 0B0 1F2 1B2 0B2"


def test_a_pair_that_ran_one_after_the_other_is_explained_one_by_one() -> None:
    """As on a machine that cannot overlap them."""
    plan = Schedule.from_text(PAIR)
    timeline = simulate(replace(plan, overlapped=frozenset()), Costs(forward=[5, 1]))
    link = causes(plan, timeline)[Action.parse("0B0")]
    assert (link.reason, str(link.after.action), link.waited) == ("rank", "0F2", 0)


def test_a_plan_of_forwards_has_a_path_too() -> None:
    assert path(forward_only(build("gpipe", 3, 2))) == "0F0 1F0 2F0 2F1"


def test_an_empty_timeline_has_an_empty_path() -> None:
    empty = Schedule("nothing", Placement(1, (0,)), 0, ((),))
    assert critical_path(empty, Timeline.of("nothing", 1, ())) == ()


# Measured: starts are never exact.

TWO = Schedule.from_text("0F0 0F1\n1F0 1F1")


def measured(*times: tuple[float, float]) -> Timeline:
    """The spans of TWO: 0F0, 0F1, 1F0, 1F1."""
    actions = [(rank, action) for rank, row in enumerate(TWO.rows) for action in row]
    spans = (Span(rank, action, *time) for (rank, action), time in zip(actions, times, strict=True))
    return Timeline.of("mine", 2, tuple(spans), "measured")


def test_what_came_last_is_the_reason() -> None:
    late_message = measured((5, 10), (10.1, 20), (10.5, 15), (20.5, 25))
    assert [str(span.action) for span in critical_path(TWO, late_message)] == ["0F0", "0F1", "1F1"]
    busy_rank = measured((5, 10), (10.1, 12), (10.5, 20), (20.1, 25))
    links = critical_links(TWO, busy_rank)
    assert [(str(x.span.action), x.reason) for x in links] == [("0F0", "start"), ("1F0", "message"), ("1F1", "rank")]
    assert [x.waited for x in links] == pytest.approx([0, 0.5, 0.1])


def test_a_message_comes_one_hop_after_its_makers_end() -> None:
    """0F1 ends before 1F0 does, but what it sends is on its way for as long as the quickest message, for 3."""
    timeline = measured((5, 10), (10, 14), (13, 16), (17.1, 20))
    assert [link.reason for link in critical_links(TWO, timeline)] == ["start", "rank", "message"]


def test_a_rank_that_starts_late_is_said_to_have_waited() -> None:
    plan = Schedule.from_text("0F0 1F0")
    timeline = Timeline.of("mine", 1, (Span(0, plan.rows[0][0], 2, 3), Span(0, plan.rows[0][1], 4, 6)), "measured")
    assert [(x.reason, x.waited) for x in critical_links(plan, timeline)] == [("start", 0), ("rank", 1)]


def test_clocks_that_differ_do_not_make_hops_shorter_than_nothing() -> None:
    """By its clock rank 1 uses what 0F0 has not made yet: a hop of -2, by which 0F1 would not be late."""
    timeline = measured((5, 10), (10, 15), (8, 14), (16, 20))
    assert [(x.reason, x.waited) for x in critical_links(TWO, timeline)] == [("start", 0), ("rank", 0), ("message", 1)]


# What is refused.

explain = pytest.mark.parametrize("function", [critical_path, gaps])
PLAN = build("1f1b", 2, 3)


@explain
@pytest.mark.parametrize(
    ("other", "sentence"),
    [
        (build("gpipe", 2, 3), "0F2 starts before 0B0, in the plan after it, on rank 0"),
        (build("1f1b", 2, 2), "rank 0 does not run 0F2, in the plan it does"),
        (build("1f1b", 2, 4), "rank 0 runs 0F3, in the plan it does not"),
    ],
    ids=["order", "fewer", "more"],
)
def test_a_timeline_of_another_plan_is_refused(
    function: Callable[[Schedule, Timeline], object], other: Schedule, sentence: str
) -> None:
    with refused(f"In this timeline {sentence}; give the timeline of this plan."):
        function(PLAN, simulate(other))


@explain
def test_two_steps_at_once_are_refused(function: Callable[[Schedule, Timeline], object]) -> None:
    timeline = simulate(PLAN)
    with refused("The timeline has an action twice on a rank; give the timeline of one step."):
        function(PLAN, Timeline.of("mine", timeline.num_ranks, timeline.spans * 2))


@explain
def test_plan_and_timeline_the_wrong_way_round_are_refused(function: Callable[[object, object], object]) -> None:
    with refused("A Timeline stands where a Schedule belongs: give the plan first, and then its timeline."):
        function(simulate(PLAN), PLAN)
    with refused("A Schedule stands where a Timeline belongs: give the plan first, and then its timeline."):
        function(PLAN, PLAN)


@explain
def test_a_plan_that_waits_for_itself_is_refused(function: Callable[[Schedule, Timeline], object]) -> None:
    """Or the path would go round for ever."""
    plan = Schedule.from_text("0F1 0F0\n1F0 1F1\n2F0 2F1")
    rows = Schedule.from_text("0F1 2F0\n1F0 0F0 1F1 2F1")
    spans = tuple(Span(rank, action, 0.0, 1.0) for rank, row in enumerate(rows.rows) for action in row)
    assert not validate(plan)
    with pytest.raises(ScheduleError):
        function(rows, Timeline.of("mine", 2, spans))


# Linear in the number of spans.


def calls(function: Callable[[], object]) -> int:
    """How many functions are called: unlike seconds, the same every time."""
    count = 0

    def tick(frame: object, event: str, function: object) -> None:
        nonlocal count
        count += event in ("call", "c_call")

    sys.setprofile(tick)
    try:
        function()
    finally:
        sys.setprofile(None)
    return count


EXPLAINERS = {
    "critical_path": critical_path,
    "gaps": gaps,
    "chrome_trace": lambda plan, timeline: chrome_trace(timeline),
}


@pytest.mark.parametrize("name", EXPLAINERS)
@pytest.mark.parametrize(("small", "large"), [((4, 50), (4, 100)), ((20, 20), (40, 20))], ids=["m", "p"])
def test_twice_the_spans_take_twice_the_work(name: str, small: tuple[int, int], large: tuple[int, int]) -> None:
    few, many = build("1f1b", *small), build("1f1b", *large)
    short, long = simulate(few, Costs(comm=1)), simulate(many, Costs(comm=1))
    twice = calls(lambda: EXPLAINERS[name](many, long))
    assert twice < 2.2 * calls(lambda: EXPLAINERS[name](few, short))
