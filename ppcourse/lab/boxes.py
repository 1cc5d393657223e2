"""What a chart of a timeline shows, drawn or in letters: boxes, their names, and one line of numbers."""

from typing import NamedTuple

from ppcourse.analysis.timeline import Timeline
from ppcourse.schedules.action import Action


class Box(NamedTuple):
    """One action, or an overlapped pair; `start` and `end` count from the timeline's start."""

    rank: int
    start: float
    end: float
    actions: tuple[Action, ...]


def require_timeline(thing: object) -> None:
    """Raise ValueError for a plan or a result, which are easily taken for their timeline."""
    if not isinstance(thing, Timeline):
        kind = type(thing).__name__
        raise ValueError(f"A chart is of a timeline, and this is a {kind}: give simulate(plan), or result.timeline.")


def boxes(timeline: Timeline) -> list[Box]:
    """All boxes, rank by rank."""
    found: list[Box] = []
    for row in timeline.by_rank:
        for rank, action, start, end in row:
            box = Box(rank, start - timeline.start, end - timeline.start, (action,))
            if found and found[-1][:3] == box[:3] and end > start:
                found[-1] = found[-1]._replace(actions=(*found[-1].actions, action))
            else:
                found.append(box)
    return found


def one_stage_a_rank(timeline: Timeline) -> bool:
    """True if stage s is all that rank s holds, so that naming the stage would say nothing."""
    return all(span.action.stage == span.rank for span in timeline.spans)


def names(action: Action, with_stage: bool) -> list[str]:
    """How to name an action, from the longest name to the shortest."""
    short = [f"{action.op}{action.microbatch}", str(action.microbatch)]
    return [str(action), *short] if with_stage else short


def in_seconds(timeline: Timeline) -> bool:
    """True if its times are seconds; a simulated time is in the unit of its costs."""
    return timeline.source != "simulated"


def clock(time: float, seconds: bool) -> str:
    """A time as text: seconds as ms, anything else as a bare number."""
    return f"{time * 1e3:.4g} ms" if seconds else f"{time:.4g}"


def headline(timeline: Timeline, seconds: bool = False) -> str:
    """Name, source, makespan and both bubbles; `seconds`: a simulated timeline counts in seconds too."""
    makespan = clock(timeline.makespan, seconds or in_seconds(timeline))
    bubbles = f"bubble rate {timeline.bubble_rate:.1%}, overhead {timeline.bubble_overhead:.1%}"
    return f"{timeline.name} · {timeline.source} · makespan {makespan} · {bubbles}"
