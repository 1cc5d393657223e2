"""Why ranks are idle: every moment of it has a reason, and the reasons are those of the rules."""

from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given
from strategies import made, needed, quick
from test_critical_path import simulated

from ppcourse.analysis.gaps import Gap, gaps
from ppcourse.analysis.simulate import simulate
from ppcourse.analysis.timeline import Span, Timeline
from ppcourse.schedules import build
from ppcourse.schedules.action import Action, Op
from ppcourse.schedules.costs import Costs
from ppcourse.schedules.placement import Placement, table
from ppcourse.schedules.schedule import Schedule

Drawn = tuple[Schedule, Costs, Timeline]

# What holds for every plan and all costs.


@quick
@given(simulated())
def test_the_gaps_of_a_rank_are_all_of_its_idle_time_and_nothing_else(drawn: Drawn) -> None:
    plan, _, timeline = drawn
    found = gaps(plan, timeline)
    assert list(found) == sorted(found, key=lambda gap: (gap.rank, gap.start))
    for rank, row in enumerate(timeline.by_rank):
        own = [gap for gap in found if gap.rank == rank]
        assert sum(gap.end - gap.start for gap in own) == timeline.idle[rank]
        for gap in own:
            assert timeline.start <= gap.start < gap.end <= timeline.end
            assert not any(span.start < gap.end and span.end > gap.start for span in row if span.end > span.start)


@quick
@given(simulated())
def test_a_rank_waits_for_the_last_of_what_its_next_action_needs(drawn: Drawn) -> None:
    """Told from the rules as the tests know them: facts, who makes them, and when they arrive."""
    plan, costs, timeline = drawn
    makers = {fact: span for span in timeline.spans for fact in made(span.action)}
    for gap in gaps(plan, timeline):
        row = plan.rows[gap.rank]
        spans = [span for span in timeline.by_rank[gap.rank] if span.start >= gap.end]
        if gap.action is None:
            assert not spans
            assert (gap.end, gap.needed, gap.hop) == (timeline.end, None, 0)
            continue
        following = min(row.index(span.action) for span in spans)
        together = row[following : following + 1 + ((gap.rank, following) in plan.overlapped)]
        assert gap.action in together
        arrivals = {
            fact: makers[fact].end + (costs.comm if makers[fact].rank != gap.rank else 0)
            for action in together
            for fact in needed(action, plan.num_stages)
        }
        assert gap.end == max(arrivals.values())
        assert gap.needed in {makers[fact].action for fact, time in arrivals.items() if time == gap.end}
        assert made(gap.needed) & needed(gap.action, plan.num_stages)
        ended = next(span.end for span in timeline.spans if span.action == gap.needed)
        assert gap.hop == gap.end - max(gap.start, ended)


@quick
@given(simulated())
def test_every_sentence_names_who_waits_and_for_what(drawn: Drawn) -> None:
    plan, _, timeline = drawn
    rank_of = {span.action: span.rank for span in timeline.spans}
    for gap in gaps(plan, timeline):
        assert str(gap) == gap.sentence
        assert gap.sentence.startswith(f"rank {gap.rank} ")
        if gap.needed:
            assert f"{gap.needed}, which rank {rank_of[gap.needed]} end" in gap.sentence
            assert ("arrives" in gap.sentence) == (gap.hop > 0)


# By hand.


def said(plan: Schedule, costs: Costs | None = None) -> list[str]:
    return [gap.sentence for gap in gaps(plan, simulate(plan, costs))]


def test_1f1b_in_words() -> None:
    assert said(build("1f1b", 2, 2)) == [
        "rank 0 waits for 1B0, which rank 1 ends at 4",
        "rank 0 waits for 1B1, which rank 1 ends at 7",
        "rank 1 waits for 0F0, which rank 0 ends at 1",
        "rank 1 has nothing left to do",
    ]


def test_a_wait_may_be_for_the_maker_and_the_hop_or_for_the_hop_only() -> None:
    plan = Schedule.from_text("0F0 0F1\n1F0 1F1")
    costs = Costs(forward=[2, 4], comm=3)
    assert said(plan, costs) == [
        "rank 0 has nothing left to do",
        "rank 1 waits for 0F0, which rank 0 ends at 2; it arrives at 5",
    ]
    costs = Costs(forward=[2, 1], comm=1)
    assert said(plan, costs)[2] == "rank 1 waits for the message of 0F1, which rank 0 ended at 4; it arrives at 5"
    slow, fast = Costs(forward=[2, 1], comm=3), Costs(forward=[1, 1.5], comm=3)
    assert said(plan, slow)[2] == "rank 1 waits for the message of 0F1, which rank 0 ended at 4; it arrives at 7"
    assert [gap.hop for gap in gaps(plan, simulate(plan, slow))] == [0, 3, 1]
    assert said(plan, fast)[1:] == ["rank 1 waits for 0F0, which rank 0 ends at 1; it arrives at 4"]


def test_a_split_backward_is_waited_for_by_its_i() -> None:
    plan = Schedule.from_text("0F0 0I0 0W0\n1F0 1I0 1W0")
    assert said(plan)[0] == "rank 0 waits for 1I0, which rank 1 ends at 3"


def test_an_overlapped_pair_waits_once_with_the_action_that_needs_what_is_missing() -> None:
    plan = Schedule.from_text("0F0 0F1 0F2+0B0 0B1 0B2\n1F0 1B0 1F1 1B1 1F2 1B2")
    [gap] = [gap for gap in gaps(plan, simulate(plan)) if gap.action in (Action(0, Op.F, 2), Action(0, Op.B, 0))]
    sentence = "rank 0 waits for 1B0, which rank 1 ends at 4"
    assert gap == Gap(0, 2, 4, Action(0, Op.B, 0), Action(1, Op.B, 0), 0, sentence)


def test_a_rank_without_a_row_has_nothing_to_do() -> None:
    plan = Schedule("lazy", table([0], 2), 1, ((Action(0, Op.F, 0),), ()))
    assert said(plan) == ["rank 1 has nothing to do"]


def test_what_rounding_leaves_is_no_gap() -> None:
    """0F2 arrives at 0.3 + 0.3, when 1F1 ends, at 0.3 + 0.3 + ...: in floating point these are not the same."""
    plan, costs = build("gpipe", 4, 16), Costs(0.1, 0.1, 0.1, comm=0.3)
    timeline = simulate(plan, costs)
    between = [b.start - a.end for row in timeline.by_rank for a, b in pairwise(row)]
    assert any(0 < time < 1e-12 for time in between)
    found = gaps(plan, timeline)
    assert min(gap.end - gap.start for gap in found) > 0.01
    for rank, idle in enumerate(timeline.idle):
        assert sum(gap.end - gap.start for gap in found if gap.rank == rank) == pytest.approx(idle, abs=1e-12)


def test_an_empty_timeline_has_no_gaps() -> None:
    assert gaps(Schedule("nothing", Placement(1, (0,)), 0, ((),)), Timeline.of("nothing", 1, ())) == ()


# Measured.


def test_measured_times_are_told_in_ms_from_the_timelines_start() -> None:
    plan = build("1f1b", 2, 2)
    spans = (Span(s.rank, s.action, 70 + s.start / 100, 70 + s.end / 100) for s in simulate(plan).spans)
    paced = Timeline.of("1f1b", 2, tuple(spans), "paced")
    first = gaps(plan, paced)[0]
    assert first.sentence == "rank 0 waits for 1B0, which rank 1 ends at 40.00 ms"
    assert (first.start, first.end) == pytest.approx((70.02, 70.04))


def test_a_rank_may_be_late_by_itself_when_measured() -> None:
    plan = Schedule.from_text("0F0 0F1\n1F0 1F1")
    row_0, row_1 = plan.rows
    spans = (
        Span(0, row_0[0], 0.0, 0.010),
        Span(0, row_0[1], 0.012, 0.020),
        Span(1, row_1[0], 0.011, 0.030),
        Span(1, row_1[1], 0.031, 0.040),
    )
    timeline = Timeline.of("mine", 2, spans, "measured")
    found = gaps(plan, timeline)
    assert [gap.sentence for gap in found] == [
        "rank 0 starts 0F1 at 12.00 ms, though nothing that it needs is late",
        "rank 0 has nothing left to do",
        "rank 1 waits for 0F0, which rank 0 ends at 10.00 ms; it arrives at 11.00 ms",
        "rank 1 starts 1F1 at 31.00 ms, though nothing that it needs is late",
    ]
    assert [gap.needed is None for gap in found] == [True, True, False, True]
    for rank in range(2):
        assert sum(gap.end - gap.start for gap in found if gap.rank == rank) == pytest.approx(timeline.idle[rank])


def test_a_rank_that_works_on_two_things_at_once_is_not_idle() -> None:
    plan = Schedule.from_text("0F0 0F1 0F2")
    times = [(0.0, 4.0), (1.0, 2.0), (3.0, 5.0)]
    spans = (Span(0, action, *time) for action, time in zip(plan.rows[0], times, strict=True))
    assert gaps(plan, Timeline.of("mine", 1, tuple(spans), "measured")) == ()


@quick
@given(simulated())
def test_times_that_are_measured_have_the_gaps_of_the_same_times_simulated(drawn: Drawn) -> None:
    plan, _, timeline = drawn
    told = [gap[:-1] for gap in gaps(plan, replace(timeline, source="measured"))]
    assert told == [gap[:-1] for gap in gaps(plan, timeline)]
