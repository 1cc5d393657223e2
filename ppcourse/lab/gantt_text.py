"""A Gantt chart in letters: what the picture shows, for whoever reads, compares or cannot see it."""

import math
from numbers import Integral
from typing import NamedTuple

from ppcourse.analysis.timeline import Timeline
from ppcourse.lab.boxes import boxes, clock, headline, in_seconds, names, one_stage_a_rank, require_timeline

FEWEST = 20  # characters in a line, the rank's name included


class Grid(NamedTuple):
    """Characters in all, characters a column, and what that means."""

    width: int
    column: int
    remark: str


class Named(NamedTuple):
    """A box with its name and, for where that does not fit, the letter of its op."""

    rank: int
    start: float
    end: float
    name: str
    letter: str


def gantt_text(timeline: Timeline, columns: int = 112) -> str:
    """One line a rank, `..` where it is idle.

        1f1b · simulated · makespan 12 · bubble rate 25.0%, overhead 33.3%
        each column is 1
        rank 0  F0 F1 .. .. B0--- F2 B1--- .. B2---
        rank 1  .. F0 B0--- F1 B1--- F2 B2--- .. ..

    If all times are multiples of a common one, that is a column, and the chart is exact. If this takes more
    than `columns` characters, the chart is to scale, and a name that does not fit is cut to its letter.

    Raises ValueError for what is no timeline, and for fewer than 20 columns.
    """
    require_timeline(timeline)
    if isinstance(columns, bool) or not isinstance(columns, Integral) or columns < FEWEST:
        raise ValueError(f"columns is {columns!r}; it must be a whole number of at least {FEWEST}, 112 for example.")
    if not timeline.makespan:
        return headline(timeline)
    named = _named(timeline)
    margin = len(f"rank {timeline.num_ranks - 1}  ")
    width, column, remark = _exact(timeline, named, columns - margin) or _scaled(timeline, columns - margin)
    idle = ("." * (column - 1) + " ") * (width // column) if column > 1 else "." * width
    rows = [list(idle) for _ in range(timeline.num_ranks)]
    for rank, start, end, name, letter in named:
        first, last = (round(time / timeline.makespan * width) for time in (start, end))
        shown = name if len(name) < last - first else letter
        rows[rank][first:last] = (shown.ljust(last - first - 1, "-") + " ")[: last - first]
    lines = [f"{f'rank {rank}':{margin}}{''.join(row).rstrip()}" for rank, row in enumerate(rows)]
    return "\n".join([headline(timeline), remark, *lines])


def _named(timeline: Timeline) -> list[Named]:
    with_stage = not one_stage_a_rank(timeline)
    return [
        Named(rank, start, end, "+".join(names(a, with_stage)[0] for a in actions), str(actions[0].op))
        for rank, start, end, actions in boxes(timeline)
    ]


def _exact(timeline: Timeline, named: list[Named], room: int) -> Grid | None:
    """Columns of the common time, as wide as the names need; None if there is no room for it."""
    unit = _common_unit([time for box in named for time in (box.start, box.end)], timeline.makespan / room)
    if not unit:
        return None
    slots = [max(1, round((box.end - box.start) / unit)) for box in named]
    column = max(math.ceil((len(box.name) + 1) / n) for box, n in zip(named, slots, strict=True))
    width = round(timeline.makespan / unit) * column
    if width > room + 1:  # a row ends with a blank
        return None
    return Grid(width, column, f"each column is {clock(unit, in_seconds(timeline))}")


def _scaled(timeline: Timeline, room: int) -> Grid:
    unit = clock(timeline.makespan / room, in_seconds(timeline))
    return Grid(room, 1, f"to scale: each character is {unit}")


def _common_unit(times: list[float], least: float) -> float:
    """The largest time that all `times` are multiples of; 0 if it is below `least`."""
    near = least * 1e-6
    unit = 0.0
    for time in times:
        while time > near:
            unit, time = time, unit % time
        if 0 < unit < least:
            return 0.0
    return unit
