"""A Gantt chart as SVG: drawn in milliseconds, so that it can follow a slider, and its boxes name themselves.

The same boxes, colours and letters as in `gantt`, whose pictures are for the page and for print.
"""

import math
from collections import defaultdict
from collections.abc import Collection, Sequence
from html import escape
from statistics import median

from ppcourse.analysis.timeline import Span, Timeline
from ppcourse.lab.boxes import Box, boxes, clock, headline, in_seconds, names, one_stage_a_rank, require_timeline
from ppcourse.lab.colours import COLOURS, IDLE, LATER, MEANINGS, shades, written
from ppcourse.schedules.action import Op

WIDTH, LEFT, RIGHT = 900.0, 56.0, 56.0  # pixels: all, left of the time axis, right of it
ROW, FILL = 22.0, 18.0  # a rank's row, and what its boxes take of it
HEAD, FOOT, LINE = 24.0, 18.0, 18.0
GAP = 0.5  # pixels that a box leaves free on each side, so that neighbours are told apart
SMALLEST, LARGEST = 6.5, 11.0  # of the letters, in pixels
ADVANCE = 0.62  # how wide a character of a monospaced font is, for one pixel of its size
PALE = 0.25


def svg(
    *timelines: Timeline, held: Sequence[Sequence[float]] = (), pale: Collection[Span] = (), seconds: bool = False
) -> str:
    """Timelines above each other on a common time axis, each from its own start.

    held      for each timeline what each of its ranks holds at most, in microbatches: written at the row's end
    pale      spans to be drawn pale and without a name
    seconds   the times of a simulated timeline are seconds too, and shown as ms

    Raises ValueError for no timeline, and for what is none.
    """
    if not timelines:
        raise ValueError("A chart needs a timeline, as in svg(simulate(plan)).")
    for timeline in timelines:
        require_timeline(timeline)
    seconds = seconds or any(in_seconds(timeline) for timeline in timelines)
    longest = max(timeline.makespan for timeline in timelines) or 1.0
    scale = (WIDTH - LEFT - RIGHT) / longest
    parts, top = [_legend(timelines)], LINE
    for n, timeline in enumerate(timelines):
        told = headline(timeline, seconds)
        parts.append(f'<text x="{LEFT}" y="{top + 15}">{escape(told)}</text>')
        parts += _panel(timeline, top + HEAD, scale, seconds, frozenset(pale))
        parts += _memory(held[n], top) if held else ()
        top += HEAD + timeline.num_ranks * ROW
    parts.append(_axis(top, longest, scale, seconds))
    said = escape("Gantt chart: " + "; ".join(headline(timeline, seconds) for timeline in timelines), quote=True)
    return (
        f'<svg viewBox="0 0 {WIDTH:g} {top + FOOT:g}" width="100%" style="max-width:{WIDTH:g}px" role="img"'
        f' aria-label="{said}" font-family="sans-serif" font-size="11" fill="currentColor">{"".join(parts)}</svg>'
    )


def _panel(timeline: Timeline, top: float, scale: float, seconds: bool, pale: frozenset[Span]) -> list[str]:
    """The rows of one timeline: idle bands, boxes on them, names on those that have room."""
    bands = [(top + rank * ROW, timeline.makespan * scale) for rank in range(timeline.num_ranks)]
    parts = [f'<text x="4" y="{y + 13:g}">rank {rank}</text>' for rank, (y, _) in enumerate(bands)]
    parts += [_rect(LEFT, y, wide, FILL, f' fill="{IDLE}"') for y, wide in bands]
    by_colour: dict[str, list[str]] = defaultdict(list)
    tints = {place: written(colour) for place, colour in shades(timeline).items()}
    faint = {(span.rank, span.action) for span in pale}
    labels: list[tuple[float, float, float, list[str]]] = []
    with_stage, lanes = not one_stage_a_rank(timeline), 1
    for box in boxes(timeline):
        tip = _tip(box, seconds)
        lanes = max(lanes, len(box.actions))
        high = FILL / len(box.actions)
        for n, action in enumerate(box.actions):
            x, y, wide = LEFT + box.start * scale, bands[box.rank][0] + n * high, (box.end - box.start) * scale
            gap = min(GAP, wide / 8)
            look = f' fill-opacity="{PALE}"' if (box.rank, action) in faint else ""
            rect = _rect(x + gap, y, wide - 2 * gap, high, look, tip)
            by_colour[tints[box.rank, action.stage, action.op]].append(rect)
            if not look:
                labels.append((x + wide / 2, y + high / 2, wide, names(action, with_stage)))
    parts += [f'<g fill="{colour}">{"".join(rects)}</g>' for colour, rects in by_colour.items()]
    return [*parts, _letters(labels, lanes)]


def _letters(labels: Sequence[tuple[float, float, float, list[str]]], lanes: int) -> str:
    """On each box the longest of its names that fits, in one size for all."""
    if not labels:
        return ""
    fits = median((wide - 1) / (ADVANCE * len(choices[-1])) for _, _, wide, choices in labels)
    size = min(max(SMALLEST, fits), LARGEST, FILL / lanes)
    texts = []
    for x, y, wide, choices in labels:
        name = next((name for name in choices if len(name) * ADVANCE * size + 1 <= wide), None)
        if name is not None:
            texts.append(f'<text x="{x:.1f}" y="{y + 0.36 * size:.1f}">{name}</text>')
    look = f'font-family="monospace" font-size="{size:.1f}" text-anchor="middle" fill="#000" pointer-events="none"'
    return f"<g {look}>{''.join(texts)}</g>"


def _rect(x: float, y: float, wide: float, high: float, look: str = "", tip: str = "") -> str:
    told = f"<title>{tip}</title>" if tip else ""
    return f'<rect x="{x:.1f}" y="{y:.1f}" width="{max(0.0, wide):.1f}" height="{high:.1f}"{look}>{told}</rect>'


def _tip(box: Box, seconds: bool) -> str:
    what = "+".join(map(str, box.actions))
    return f"rank {box.rank}: {what}, {clock(box.start, seconds)} to {clock(box.end, seconds)}"


def _memory(held: Sequence[float], top: float) -> list[str]:
    x = WIDTH - RIGHT + 10
    heads = [f'<text x="{x:g}" y="{top + 15:g}">holds</text>']
    return heads + [
        f'<text x="{x:g}" y="{top + HEAD + rank * ROW + 13:g}">{most:.3g}</text>' for rank, most in enumerate(held)
    ]


def _axis(y: float, longest: float, scale: float, seconds: bool) -> str:
    """Times below the last row, at round numbers."""
    rough = longest / 12
    unit = float(10 ** math.floor(math.log10(rough)))
    step = next(unit * n for n in (1, 2, 5, 10) if unit * n >= rough)
    ticks = [n * step for n in range(1 + math.floor(longest / step + 1e-9))]
    texts = [f'<text x="{LEFT + at * scale:.1f}" y="{y + 12:g}">{clock(at, seconds)}</text>' for at in ticks]
    return f'<g text-anchor="middle" font-size="10">{"".join(texts)}</g>'


def _legend(timelines: Sequence[Timeline]) -> str:
    """A line above everything: what the colours mean."""
    rows = [row for timeline in timelines for row in timeline.by_rank]
    ops = {span.action.op for row in rows for span in row}
    entries = [(COLOURS[op], MEANINGS[op]) for op in Op if op in ops]
    entries.append((IDLE, "idle"))
    if any(len({span.action.stage for span in row}) > 1 for row in rows):
        entries.append(("none", LATER))
    parts, x = [], LEFT
    for colour, meaning in entries:
        parts.append(_rect(x, 3, 11, 11, f' fill="{colour}"'))
        parts.append(f'<text x="{x + 15:g}" y="13">{meaning}</text>')
        x += 30 + 6.2 * len(meaning)
    return "".join(parts)
