"""The order of a plan as SVG, one box a position: for a plan that cannot run, so that time means nothing yet."""

from collections.abc import Sequence
from html import escape

from ppcourse.lab.colours import COLOURS
from ppcourse.schedules.schedule import Schedule
from ppcourse.schedules.validate import Violation

LEFT, HEAD, CELL, ROW, FILL = 56.0, 18.0, 40.0, 30.0, 22.0  # pixels
WRONG = "#D50000"


def order_svg(plan: Schedule, violations: Sequence[Violation]) -> str:
    """The rows, with the number of each violation at its place; the sentences are for the caller to list."""
    marks: dict[tuple[int, int], list[int]] = {}
    for number, (_, rank, position, _) in enumerate(violations, 1):
        at = position if 0 <= position < len(plan.rows[rank]) else len(plan.rows[rank])
        marks.setdefault((rank, at), []).append(number)
    longest = max(len(row) + ((rank, len(row)) in marks) for rank, row in enumerate(plan.rows))
    wide, high = LEFT + CELL * max(longest, 1) + 4, HEAD + ROW * plan.num_ranks + 4
    parts = [f'<text x="{LEFT + CELL * (n + 0.4):g}" y="12">{n}</text>' for n in range(longest)]
    for rank, row in enumerate(plan.rows):
        y = HEAD + rank * ROW
        parts.append(f'<text x="4" y="{y + 16:g}" font-family="sans-serif">rank {rank}</text>')
        for position, action in enumerate(row):
            x = LEFT + CELL * position
            parts.append(_box(x, y, COLOURS[action.op], marks.get((rank, position), [])))
            parts.append(f'<text x="{x + 6:g}" y="{y + 16:g}" fill="#000">{action}</text>')
        if (rank, len(row)) in marks:
            parts.append(_box(LEFT + CELL * len(row), y, "none", marks[rank, len(row)]))
    said = escape("Order of actions: " + "; ".join(map(str, plan.to_text().splitlines())), quote=True)
    return (
        f'<div style="overflow-x:auto" tabindex="0"><svg width="{wide:g}" height="{high:g}" role="img"'
        f' aria-label="{said}" font-family="monospace" font-size="12" fill="currentColor">{"".join(parts)}</svg></div>'
    )


def _box(x: float, y: float, colour: str, numbers: Sequence[int]) -> str:
    edge = f' stroke="{WRONG}" stroke-width="3"' if numbers else ""
    box = f'<rect x="{x + 2:g}" y="{y:g}" width="{CELL - 4:g}" height="{FILL:g}" fill="{colour}"{edge}/>'
    if not numbers:
        return box
    said = "✗" + ",".join(map(str, numbers))
    return f'{box}<text x="{x + 4:g}" y="{y + FILL + 8:g}" font-size="10" font-weight="bold">{said}</text>'
