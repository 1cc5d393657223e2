"""A Gantt chart of timelines: predicted, measured, or one over the other.

Built without pyplot, whose list of open figures would keep every chart alive and show some twice.
"""

import io
import math
from collections.abc import Sequence
from numbers import Real
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.collections import PolyCollection
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure
from matplotlib.patches import Patch
from matplotlib.ticker import MaxNLocator

from ppcourse.analysis.timeline import Timeline
from ppcourse.lab.boxes import boxes, headline, in_seconds, names, one_stage_a_rank, require_timeline
from ppcourse.lab.colours import COLOURS, IDLE, LATER, MEANINGS, shades
from ppcourse.lab.gantt_text import gantt_text as gantt_text
from ppcourse.lab.letters import write
from ppcourse.schedules.action import Op

FILL = 0.86  # of a rank's row that its boxes take
GAP = 0.35  # points that a box leaves free on each side, so that neighbours are told apart
SCREEN, PRINT = 100, 150  # pixels an inch: on the page, in the file
LEFT, RIGHT, TOP, BOTTOM, LINE = 0.65, 0.15, 0.25, 0.48, 0.17  # inches: margins, and a line of text
NARROWEST = 2  # inches, of a chart
COMPARABLE = 20  # if simulated and measured times are further apart than this, their units differ


class Gantt(Figure):
    """A figure that a notebook shows as the value of a cell, with the same content in letters beside it."""

    timelines: tuple[Timeline, ...] = ()

    @property
    def seconds(self) -> bool:
        """True if something in it is measured: then all its times are seconds, shown as ms."""
        return any(in_seconds(timeline) for timeline in self.timelines)

    def _repr_png_(self) -> tuple[bytes, dict[str, Any]]:
        buffer = io.BytesIO()
        self.savefig(buffer, format="png", dpi=PRINT)
        width, height = (int(inches * SCREEN) for inches in self.get_size_inches())
        alt = "Gantt chart: " + "; ".join(headline(timeline, self.seconds) for timeline in self.timelines)
        return buffer.getvalue(), {"width": width, "height": height, "alt": alt}

    def __repr__(self) -> str:
        return "\n\n".join(gantt_text(timeline) for timeline in self.timelines)


def gantt(*timelines: Timeline, title: str | None = None, width: float = 9.0, overlay: bool = False) -> Gantt:
    """A chart of timelines, one above the other on a common time axis, each from its own start.

    title     a line above everything
    width     in inches
    overlay   two timelines on one axis: the first in the upper half of each rank's row, the second below it

    Times are in the unit of the costs, or in ms if a timeline is measured: beside it, a simulated one is
    taken to be in seconds. Raises ValueError for no timeline, for a width below 2, for an overlay of anything but
    two timelines of equally many ranks, and for simulated and measured times too far apart to be in one unit.
    """
    _refuse(timelines, width, overlay)
    groups = [timelines] if overlay else [(timeline,) for timeline in timelines]
    ranks = sum(group[0].num_ranks for group in groups)
    row = min(0.5 if overlay else 0.3, max(0.1, 8 / ranks))
    head = LINE * len(groups[0]) + 0.14
    height = TOP + ranks * row + len(groups) * head + BOTTOM
    figure = Gantt(figsize=(width, height), dpi=SCREEN)
    FigureCanvasAgg(figure)
    figure.timelines = timelines
    lower = height - TOP
    for group in groups:
        inside = group[0].num_ranks * row
        lower -= head + inside
        axes = figure.add_axes((LEFT / width, lower / height, 1 - (LEFT + RIGHT) / width, inside / height))
        _panel(axes, group, figure)
    axes.tick_params(labelbottom=True)
    axes.set_xlabel("time (ms)" if figure.seconds else "time (in the unit of the costs)", fontsize=9)
    _legend(figure, title)
    return figure


def _refuse(timelines: Sequence[Timeline], width: float, overlay: bool) -> None:
    if not timelines:
        raise ValueError("gantt needs a timeline, as in gantt(simulate(plan)).")
    for timeline in timelines:
        require_timeline(timeline)
    if not (isinstance(width, Real) and NARROWEST <= width < math.inf):
        raise ValueError(f"width is {width!r}; it must be inches, at least {NARROWEST}, 9 for example.")
    counts = [timeline.num_ranks for timeline in timelines]
    if overlay and (len(counts) != 2 or counts[0] != counts[1]):
        said = " and ".join(str(count) for count in counts)
        raise ValueError(f"An overlay is of two timelines with equally many ranks; these have {said}.")
    predicted = max((t.makespan for t in timelines if not in_seconds(t)), default=0.0)
    measured = max((t.makespan for t in timelines if in_seconds(t)), default=0.0)
    if predicted and measured and not 1 / COMPARABLE < predicted / measured < COMPARABLE:
        raise ValueError(
            f"The simulated timeline lasts {predicted:.4g} and the measured one {measured:.4g} seconds:"
            " simulate with costs in seconds, as in Costs(forward=0.010), to draw both on one time axis."
        )


def _panel(axes: Axes, group: Sequence[Timeline], figure: Gantt) -> None:
    """One axis: a row a rank, shared by the timelines of the group."""
    factor = 1e3 if figure.seconds else 1.0
    ranks = group[0].num_ranks
    axes.set_xlim(0, factor * max(timeline.makespan for timeline in figure.timelines) or 1.0)
    axes.set_ylim(ranks - 0.5, -0.5)
    for n, timeline in enumerate(group):
        height = FILL / len(group)
        _bars(axes, timeline, factor, n * height - FILL / 2, height)
    lines = [headline(timeline, figure.seconds) for timeline in group]
    if len(group) > 1:
        lines = [f"above: {lines[0]}", f"below: {lines[1]}"]
    axes.set_title("\n".join(lines), loc="left", fontsize=9, pad=4)
    shown = range(0, ranks, 1 + ranks // 24)
    axes.set_yticks(shown, [f"rank {rank}" for rank in shown])
    axes.tick_params(axis="y", length=0, labelsize=8)
    axes.tick_params(axis="x", labelbottom=False, labelsize=8)
    axes.xaxis.set_major_locator(MaxNLocator(12, steps=[1, 2, 5, 10]))
    axes.spines[["top", "right", "left"]].set_visible(False)


def _bars(axes: Axes, timeline: Timeline, factor: float, top: float, height: float) -> None:
    """The boxes of a timeline, from `top` to `top + height` of each row, on a band that shows idle time."""
    edges = [(0.0, timeline.makespan, rank + top, height) for rank in range(timeline.num_ranks)]
    colours: list[Any] = [to_rgb(IDLE)] * timeline.num_ranks
    labels: list[list[str]] = []
    with_stage = not one_stage_a_rank(timeline)
    tints = shades(timeline)
    for rank, start, end, actions in boxes(timeline):
        part = height / len(actions)
        for n, action in enumerate(actions):
            edges.append((start, end, rank + top + n * part, part))
            colours.append(tints[rank, action.stage, action.op])
            labels.append(names(action, with_stage))
    left, right, upper, tall = np.array(edges).T * [[factor], [factor], [1], [1]]
    across, down = _points(axes)
    gap = np.minimum(GAP / across, (right - left) / 8)
    left, right, lower = left + gap, right - gap, upper + tall - GAP / down
    corners = np.stack([left, upper, right, upper, right, lower, left, lower], axis=1).reshape(-1, 4, 2)
    axes.add_collection(PolyCollection(corners, facecolors=colours, edgecolors="none"))  # type: ignore[arg-type]
    own = slice(timeline.num_ranks, None)
    sizes = np.stack([(right - left) * across, tall * down], axis=1)[own]
    write(axes, corners[own].mean(axis=1), sizes, labels)


def _points(axes: Axes) -> tuple[float, float]:
    """How many points one unit of the axes' own coordinates is, across and down."""
    corner, opposite = axes.transData.transform([[0, 0], [1, 1]]) * 72 / SCREEN
    return abs(opposite[0] - corner[0]), abs(opposite[1] - corner[1])


def _legend(figure: Gantt, title: str | None) -> None:
    """A line above the charts: the title, and what the colours mean."""
    width, height = figure.get_size_inches()
    rows = [row for timeline in figure.timelines for row in timeline.by_rank]
    ops = {span.action.op for row in rows for span in row}
    handles = [Patch(facecolor=COLOURS[op], label=MEANINGS[op]) for op in Op if op in ops]
    if any(len({span.action.stage for span in row}) > 1 for row in rows):
        handles.append(Patch(alpha=0, label=LATER))
    handles.append(Patch(facecolor=IDLE, label="idle"))
    corner = (1 - RIGHT / width, 1 - 0.07 / height)
    look = {"fontsize": 8, "frameon": False, "handlelength": 1.2, "columnspacing": 1.2, "borderpad": 0}
    figure.legend(
        handles=handles, ncols=len(handles), loc="upper right", bbox_to_anchor=corner, borderaxespad=0, **look
    )
    if title:
        figure.text(LEFT / width, 1 - 0.06 / height, title, va="top", fontsize=10, weight="bold")
