"""A Gantt chart as SVG text, made in a few milliseconds: for what is redrawn while a learner moves a slider."""

from html import escape

from ppcourse.analysis.timeline import Timeline
from ppcourse.lab.boxes import Box, boxes, headline, names, one_stage_a_rank, require_timeline
from ppcourse.lab.colours import COLOURS, IDLE
from ppcourse.lab.gantt import FILL

LEFT, TOP, ROW, AXIS = 60, 24, 30, 22  # pixels: margin, headline, a rank, the numbers below
LETTER = 6.5  # pixels a letter is wide


def gantt_svg(timeline: Timeline, width: int = 900, until: float = 0.0) -> str:
    """What `gantt` shows of one timeline, without its legend.

    width   in pixels
    until   where the time axis ends; the makespan by default. Given, charts can be compared by eye

    The whole content stands in its label too, for whoever has it read aloud.
    """
    require_timeline(timeline)
    until = max(until, timeline.makespan) or 1.0
    scale = (width - LEFT - 10) / until
    bottom = TOP + ROW * timeline.num_ranks
    parts = [f'<text x="{LEFT}" y="14">{escape(headline(timeline))}</text>']
    for rank in range(timeline.num_ranks):
        upper = TOP + ROW * rank
        parts.append(f'<text x="4" y="{upper + 19}">rank {rank}</text>')
        parts.append(_rectangle(0, timeline.makespan, upper, ROW * FILL, scale, IDLE))
    with_stage = not one_stage_a_rank(timeline)
    for box in boxes(timeline):
        parts += _drawn(box, scale, with_stage)
    for n in range(11):
        at = until * n / 10
        parts.append(f'<text x="{LEFT + at * scale:.1f}" y="{bottom + 15}" text-anchor="middle">{at:.3g}</text>')
    size = f'width="{width}" height="{bottom + AXIS}" font-family="sans-serif" font-size="11"'
    label = escape(f"Gantt chart: {headline(timeline)}", quote=True)
    return f'<svg xmlns="http://www.w3.org/2000/svg" role="img" aria-label="{label}" {size}>{"".join(parts)}</svg>'


def _drawn(box: Box, scale: float, with_stage: bool) -> list[str]:
    """A box, or the halves of an overlapped pair one below the other, with the longest name that fits."""
    parts = []
    height = ROW * FILL / len(box.actions)
    for n, action in enumerate(box.actions):
        upper = TOP + ROW * box.rank + n * height
        parts.append(_rectangle(box.start, box.end, upper, height, scale, COLOURS[action.op]))
        room = (box.end - box.start) * scale / LETTER
        fits = [name for name in names(action, with_stage) if len(name) <= room]
        if fits:
            middle = LEFT + (box.start + box.end) / 2 * scale
            parts.append(
                f'<text x="{middle:.1f}" y="{upper + height / 2 + 4:.1f}" text-anchor="middle">{fits[0]}</text>'
            )
    return parts


def _rectangle(start: float, end: float, upper: float, height: float, scale: float, colour: str) -> str:
    where = f'x="{LEFT + start * scale + 0.5:.1f}" y="{upper:.1f}" width="{max(0.5, (end - start) * scale - 1):.1f}"'
    return f'<rect {where} height="{height - 1:.1f}" fill="{colour}"/>'
