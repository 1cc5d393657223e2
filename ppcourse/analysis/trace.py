"""A timeline as a trace that Perfetto (ui.perfetto.dev) and Chrome (chrome://tracing) open."""

import json
import math
from collections.abc import Iterator
from numbers import Real
from pathlib import Path
from typing import Any, TypeAlias

from ppcourse.analysis.critical_path import messages
from ppcourse.analysis.timeline import Span, Timeline
from ppcourse.schedules.action import Op

Event: TypeAlias = dict[str, Any]

# Chrome's own names for blue, red, yellow and green. Perfetto colours by name without its digits: by op, too.
COLOURS = {Op.F: "rail_response", Op.B: "rail_animation", Op.I: "yellow", Op.W: "rail_load"}
MILLISECOND = 1e-3


def chrome_trace(*timelines: Timeline, path: str | Path | None = None, unit: float | None = None) -> dict[str, Any]:
    """The trace of timelines, one under the other, each from its own start; a box an action, an arrow a message.

    path   a file to write it to as JSON (`.json`), for Perfetto's "Open trace file"
    unit   how many seconds one unit of a simulated timeline stands for; by default 0.001, or 1 beside a
           measured timeline, as in `gantt`. Measured times are seconds anyway

    In the trace a timeline is a process, named `1f1b (simulated)`, and a rank a thread of it; times are whole
    microseconds, so that neighbours stay neighbours however a viewer rounds.
    Raises ValueError for no timeline, and for a unit that is not a finite time above 0.
    """
    for thing in timelines:
        if not isinstance(thing, Timeline):
            kind = type(thing).__name__
            raise ValueError(f"A trace is of timelines, and this is a {kind}: give simulate(plan), or result.timeline.")
    if not timelines:
        raise ValueError("chrome_trace needs a timeline, as in chrome_trace(simulate(plan)).")
    if unit is not None and not (isinstance(unit, Real) and 0 < unit < math.inf):
        raise ValueError(f"unit is {unit!r}, but it must be a number of seconds above 0.")
    if unit is None:
        unit = MILLISECOND if all(timeline.source == "simulated" for timeline in timelines) else 1.0
    names: list[Event] = []
    events: list[Event] = []
    for process, timeline in enumerate(timelines, 1):
        names += _names(process, timeline)
        seconds = unit if timeline.source == "simulated" else 1.0
        events += _boxes_and_arrows(process, timeline, 1e6 * seconds, first_arrow=1 + len(events))
    trace = {"traceEvents": names + sorted(events, key=lambda event: event["ts"]), "displayTimeUnit": "ms"}
    if path is not None:
        Path(path).write_text(json.dumps(trace))
    return trace


def _names(process: int, timeline: Timeline) -> Iterator[Event]:
    """What a viewer writes beside processes and threads."""
    label = {"name": f"{timeline.name} ({timeline.source})"}
    yield {"ph": "M", "name": "process_name", "pid": process, "tid": 0, "args": label}
    yield {"ph": "M", "name": "process_sort_index", "pid": process, "tid": 0, "args": {"sort_index": process}}
    for rank in range(timeline.num_ranks):
        yield {"ph": "M", "name": "thread_name", "pid": process, "tid": rank, "args": {"name": f"rank {rank}"}}
        yield {"ph": "M", "name": "thread_sort_index", "pid": process, "tid": rank, "args": {"sort_index": rank}}


def _boxes_and_arrows(process: int, timeline: Timeline, scale: float, first_arrow: int) -> Iterator[Event]:
    """The events of a timeline; `scale`: how many microseconds are one of the unit that its times are in.

    An arrow hangs on the boxes that are open in their threads at its two events. So these stand right after their
    boxes, and start with them (Perfetto draws the arrow from the end of the first to the start of the second); a
    box of no length has no arrow.
    """

    def moment(time: float) -> int:
        return round(scale * (time - timeline.start))

    def lasts(span: Span) -> int:
        return moment(span.end) - moment(span.start)

    leaves: dict[Span, Event] = {}
    arrives: dict[Span, Event] = {}
    drawn = ((maker, user) for maker, user in messages(timeline) if lasts(maker) and lasts(user))
    for number, (maker, user) in enumerate(drawn, first_arrow):
        arrow = {"name": f"result of {maker.action}", "cat": "message", "id": number, "pid": process}
        leaves[maker] = {**arrow, "ph": "s", "tid": maker.rank, "ts": moment(maker.start)}
        arrives[user] = {**arrow, "ph": "f", "bp": "e", "tid": user.rank, "ts": moment(user.start)}
    for span in timeline.spans:
        rank, action, start, _ = span
        yield {
            "ph": "X",
            "name": str(action),
            "cat": str(action.op),
            "pid": process,
            "tid": rank,
            "ts": moment(start),
            "dur": lasts(span),
            "cname": COLOURS[action.op],
            "args": {"stage": int(action.stage), "microbatch": int(action.microbatch)},
        }
        yield from (arrows[span] for arrows in (arrives, leaves) if span in arrows)
