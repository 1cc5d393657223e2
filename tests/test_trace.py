"""Traces: the rules of Chrome's trace event format, and what a viewer needs to show boxes and arrows."""

import json
import math
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from strategies import made, needed, quick, refused
from test_critical_path import PAIR, all_plans, simulated

from ppcourse.analysis.simulate import simulate
from ppcourse.analysis.timeline import Span, Timeline
from ppcourse.analysis.trace import chrome_trace
from ppcourse.schedules import build
from ppcourse.schedules.action import Action
from ppcourse.schedules.costs import Costs
from ppcourse.schedules.schedule import Schedule

Trace = dict[str, Any]
Event = dict[str, Any]

REQUIRED = {
    "M": {"ph", "name", "pid", "tid", "args"},
    "X": {"ph", "name", "cat", "pid", "tid", "ts", "dur", "cname", "args"},
    "s": {"ph", "name", "cat", "pid", "tid", "ts", "id"},
    "f": {"ph", "name", "cat", "pid", "tid", "ts", "id", "bp"},
}


def of(trace: Trace, *phases: str) -> list[Event]:
    return [event for event in trace["traceEvents"] if event["ph"] in phases]


def as_measured(timeline: Timeline) -> Timeline:
    """The same with times in seconds, 10 ms a unit, that start somewhere."""
    spans = (Span(s.rank, s.action, 7 + s.start / 100, 7 + s.end / 100) for s in timeline.spans)
    return Timeline.of(timeline.name, timeline.num_ranks, tuple(spans), "measured")


# The format.


@quick
@given(simulated(), simulated())
def test_a_trace_obeys_the_format(drawn: tuple[Any, Any, Timeline], other: tuple[Any, Any, Timeline]) -> None:
    trace = chrome_trace(drawn[2], other[2])
    assert json.loads(json.dumps(trace, allow_nan=False)) == trace
    assert set(trace) == {"traceEvents", "displayTimeUnit"}
    for event in trace["traceEvents"]:
        assert set(event) == REQUIRED[event["ph"]]
        assert type(event["pid"]) is type(event["tid"]) is int
    timed = of(trace, "X", "s", "f")
    assert all(type(event["ts"]) is int and event["ts"] >= 0 for event in timed)
    assert all(type(event["dur"]) is int and event["dur"] >= 0 for event in of(trace, "X"))
    assert all(one["ts"] <= next_one["ts"] for one, next_one in pairwise(timed))
    named = {(event["pid"], event["tid"]) for event in of(trace, "M") if event["name"] == "thread_name"}
    assert {(event["pid"], event["tid"]) for event in timed} <= named


@quick
@given(simulated())
def test_arrows_come_in_pairs_and_hang_on_boxes(drawn: tuple[Schedule, Costs, Timeline]) -> None:
    """As Perfetto reads it: an arrow's end hangs on the box that is open last in its thread at that moment."""
    plan, _, timeline = drawn
    open_box: dict[int, Event] = {}
    on: dict[str, dict[int, Event]] = {"s": {}, "f": {}}
    for event in of(chrome_trace(timeline), "X", "s", "f"):
        if event["ph"] == "X":
            open_box[event["tid"]] = event
            continue
        box = open_box[event["tid"]]
        assert box["ts"] <= event["ts"] < box["ts"] + box["dur"]
        assert event["id"] not in on[event["ph"]]
        assert event["ph"] == "s" or event["id"] in on["s"]
        on[event["ph"]][event["id"]] = box
    lasting = [span for span in timeline.spans if span.end > span.start]
    makers = {fact: span for span in lasting for fact in made(span.action)}
    expected = {
        (str(makers[fact].action), str(span.action))
        for span in lasting
        for fact in needed(span.action, plan.num_stages)
        if fact in makers and makers[fact].rank != span.rank
    }
    assert on["s"].keys() == on["f"].keys()
    assert {(on["s"][number]["name"], on["f"][number]["name"]) for number in on["s"]} == expected
    assert len(on["s"]) == len(expected)


def test_arrows_of_several_timelines_have_numbers_of_their_own() -> None:
    timeline = simulate(build("1f1b", 2, 3))
    trace = chrome_trace(timeline, timeline)
    numbers = [event["id"] for event in of(trace, "s")]
    assert len(numbers) == len(set(numbers)) == 12
    begins, ends = ({event["id"]: event["pid"] for event in of(trace, phase)} for phase in "sf")
    assert begins == ends


@quick
@given(all_plans)
def test_boxes_of_a_thread_never_cut_each_other(plan: Schedule) -> None:
    """Viewers drop a box that starts in another and ends outside of it; rounding could make such."""
    timeline = simulate(plan, Costs(0.26, 1 / 7, 0.1, comm=0.01))
    boxes: dict[int, list[tuple[int, int]]] = {}
    for event in of(chrome_trace(timeline, unit=1e-5), "X"):
        boxes.setdefault(event["tid"], []).append((event["ts"], event["ts"] + event["dur"]))
    for row in boxes.values():
        assert all(one[1] <= other[0] or one == other for one, other in pairwise(row))


# What is shown.


def test_a_box_an_action() -> None:
    timeline = simulate(build("1f1b", 2, 2))
    found = of(chrome_trace(timeline), "X")
    assert {(x["tid"], x["name"], x["ts"], x["dur"]) for x in found} == {
        (span.rank, str(span.action), 1000 * span.start, 1000 * (span.end - span.start)) for span in timeline.spans
    }
    for event in found:
        stage, op, microbatch = Action.parse(event["name"])
        assert event["args"] == {"stage": stage, "microbatch": microbatch}
        assert event["cat"] == op


def test_each_op_has_a_colour_of_its_own() -> None:
    plan = Schedule.from_text("0F0 0I0 0W0 0F1 0B1")
    colours = {(event["cat"], event["cname"]) for event in of(chrome_trace(simulate(plan)), "X")}
    assert len(colours) == len({name for _, name in colours}) == 4


def test_timelines_are_processes_and_ranks_are_threads() -> None:
    predicted = simulate(build("1f1b", 2, 2), Costs(0.01, 0.01, 0.01))
    trace = chrome_trace(predicted, replace(predicted, source="paced", name="mine"))
    names = {(e["pid"], e["tid"], e["name"]): e["args"] for e in of(trace, "M")}
    assert names[1, 0, "process_name"] == {"name": "1f1b (simulated)"}
    assert names[2, 0, "process_name"] == {"name": "mine (paced)"}
    for process in (1, 2):
        assert names[process, 0, "process_sort_index"] == {"sort_index": process}
        for rank in (0, 1):
            assert names[process, rank, "thread_name"] == {"name": f"rank {rank}"}
            assert names[process, rank, "thread_sort_index"] == {"sort_index": rank}
    assert len(names) == len(of(trace, "M")) == 12


def last(trace: Trace, process: int) -> int:
    return max(event["ts"] + event["dur"] for event in of(trace, "X") if event["pid"] == process)


def test_a_unit_is_a_millisecond_or_what_is_asked() -> None:
    timeline = simulate(build("1f1b", 2, 2))
    assert last(chrome_trace(timeline), 1) == 1e3 * timeline.makespan
    assert last(chrome_trace(timeline, unit=0.5), 1) == 5e5 * timeline.makespan


def test_beside_a_measured_timeline_a_unit_is_a_second() -> None:
    plan = build("1f1b", 2, 2)
    measured = as_measured(simulate(plan))
    trace = chrome_trace(simulate(plan, Costs(0.01, 0.01, 0.01)), measured)
    assert last(trace, 1) == last(trace, 2) == 90_000
    assert min(event["ts"] for event in of(trace, "X")) == 0
    assert last(chrome_trace(simulate(plan), measured, unit=0.02), 1) == 180_000
    assert last(chrome_trace(measured, unit=0.02), 1) == 90_000


def test_an_overlapped_pair_is_two_boxes_one_in_the_other() -> None:
    found = of(chrome_trace(simulate(Schedule.from_text(PAIR))), "X")
    pair = [event for event in found if event["name"] in ("0F2", "0B0")]
    assert [event["name"] for event in pair] == ["0F2", "0B0"]
    assert (pair[0]["ts"], pair[0]["dur"]) == (pair[1]["ts"], pair[1]["dur"])


def test_a_file_has_what_is_returned(tmp_path: Path) -> None:
    timeline = simulate(build("gpipe", 3, 4))
    for path in (tmp_path / "trace.json", str(tmp_path / "other.json")):
        trace = chrome_trace(timeline, path=path)
        assert json.loads(Path(path).read_text()) == trace == chrome_trace(timeline)


def test_an_empty_timeline_has_names_only() -> None:
    assert {event["ph"] for event in chrome_trace(Timeline.of("nothing", 2, ()))["traceEvents"]} == {"M"}


# What is refused.


def test_what_makes_no_trace_is_refused() -> None:
    with refused("chrome_trace needs a timeline, as in chrome_trace(simulate(plan))."):
        chrome_trace()
    sentence = "A trace is of timelines, and this is a Schedule: give simulate(plan), or result.timeline."
    with refused(sentence):
        chrome_trace(build("gpipe", 2, 2))  # type: ignore[arg-type]


@pytest.mark.parametrize("wrong", [0, -1.0, math.inf, math.nan, "1"])
def test_a_unit_is_a_time(wrong: Any) -> None:
    with refused(f"unit is {wrong!r}, but it must be a number of seconds above 0."):
        chrome_trace(simulate(build("gpipe", 2, 2)), unit=wrong)
