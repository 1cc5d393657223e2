"""Bubble and memory over the number of microbatches: what more of them buy, and what they cost."""

import asyncio
import math
import time
from collections.abc import Sequence
from html import escape
from typing import Any, NamedTuple

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import PercentFormatter

from ppcourse.lab.colours import LINES
from ppcourse.lab.explorer import MOST_MICROBATCHES, MOST_RANKS, Predicted, cost_sliders
from ppcourse.lab.panel import SCREEN, Drawn, Panel, sentence, table, tick, whole
from ppcourse.schedules import SCHEDULES
from ppcourse.schedules.costs import Costs
from ppcourse.schedules.schedule import Schedule

STYLES = ("", "7 3", "2 2", "7 2 2 2", "10 4", "4 4", "1 3")  # dashes of the curves, beside their colours
HEADS = ("m = {}", "bubble rate", "overhead", "makespan", "holds at most")
PATIENCE = 0.1  # seconds for a redraw while a slider moves
PAUSE = 0.02  # seconds until the next one finds more of the curves
HIGH, WIDE, LEFT, TOP = 190.0, 370.0, 46.0, 24.0  # pixels: a plot, and the room left of and above it


class Point(NamedTuple):
    """One schedule at one m: both bubbles, the step, and the most that any rank holds, in microbatches."""

    m: int
    rate: float
    overhead: float
    makespan: float
    held: float

    @classmethod
    def of(cls, predicted: Predicted) -> "Point":
        t = predicted.timeline
        held = max(predicted.held)
        return cls(predicted.plan.num_microbatches, t.bubble_rate, t.bubble_overhead, t.makespan, held)


class OverM(Panel):
    """What `explore_m` shows. `curves` holds what is on the page, by schedule."""

    def __init__(self, controls: dict[str, Any]) -> None:
        self.curves: dict[str, list[Point]] = {}
        self._plans: dict[tuple[str, int, int, int], Schedule] = {}  # costs come and go, most plans stay
        self._points: dict[tuple[str, int], Point | str] = {}  # under the costs and sizes of `_under`
        self._under: tuple[Any, ...] = ()
        self._patience, self._rest = PATIENCE, False  # is something of the curves still to come?
        super().__init__(controls)

    def draw(self) -> Drawn:
        """Two plots, and a table of the chosen m that is their legend too."""
        late = time.monotonic() + self._patience
        chosen = [name for name in SCHEDULES if self.controls[name].value]
        if not chosen:
            return Drawn("", "Tick a schedule to see its curves.")
        at, sizes = self.m.value, _sizes(self.p.value)
        here = {name: self._at(name, at) for name in chosen}
        self._look_for([(name, m) for m in sorted(sizes, key=_coarse) for name in chosen], late)
        found = {name: [self._points.get((name, m)) for m in sizes] for name in chosen}
        self.curves = {name: [each for each in row if isinstance(each, Point)] for name, row in found.items()}
        rows = [_row(n, name, here[name]) for n, name in enumerate(chosen)]
        plots = _plot(self.curves, "bubble rate", at, 0) + _plot(self.curves, "holds at most", at, 1)
        said = self.in_short()
        chart = (
            f'<svg viewBox="0 0 900 {TOP + HIGH + 22:g}" width="100%" style="max-width:900px" role="img"'
            f' aria-label="Bubble rate and memory over m: {escape(said, quote=True)}" font-family="sans-serif"'
            f' font-size="11" fill="currentColor">{plots}</svg>'
        )
        told = [told for told in here.values() if isinstance(told, str)]
        return Drawn(chart + table([HEADS[0].format(at), *HEADS[1:]], rows), " ".join(told))

    def _look_for(self, places: Sequence[tuple[str, int]], late: float) -> None:
        """Fill in the curves until it is late, and by one point at least; the rest comes once the kernel is free.

        Without a loop that would come back to it, nothing is left out.
        """
        missing = [place for place in places if place not in self._points]
        for n, place in enumerate(missing):
            if n and time.monotonic() > late and (loop := _running_loop()):
                if not self._rest:
                    loop.call_later(PAUSE, self._go_on)
                self._rest = True
                return
            self._at(*place)
        self._rest = False

    def _go_on(self) -> None:
        if self._rest:
            self._rest = False
            self.redraw()

    def _at(self, name: str, m: int) -> Point | str:
        """The schedule with m microbatches, or why it cannot be had."""
        c = self.controls
        p, v = c["p"].value, c["v"].value
        costs = Costs(c["forward"].value, c["input_grad"].value, c["weight_grad"].value, comm=c["hop"].value)
        if self._under != (p, v, costs):
            self._under = p, v, costs
            self._points.clear()
        if (name, m) not in self._points:
            try:
                self._points[name, m] = Point.of(self._predicted(name, p, m, v, costs))
            except ValueError as error:
                self._points[name, m] = sentence(error)
        return self._points[name, m]

    def _predicted(self, name: str, p: int, m: int, v: int, costs: Costs) -> Predicted:
        sizes = name, p, m, v
        if name != "zb-auto" and sizes in self._plans:  # which is planned for its costs
            return Predicted.from_plan(self._plans[sizes], costs)
        made = Predicted.of(*sizes, costs)
        self._plans[sizes] = made.plan
        return made

    def in_short(self) -> str:
        return "; ".join(_in_words(name, curve) for name, curve in self.curves.items()) or self.problem

    def figure(self) -> Figure:
        if self._rest:  # a still picture does not fill in
            self._patience = math.inf
            self.redraw()
            self._patience = PATIENCE
        figure = Figure(figsize=(9, 2.8), dpi=SCREEN, layout="constrained")
        FigureCanvasAgg(figure)
        left, right = figure.subplots(1, 2)
        for n, (name, curve) in enumerate(self.curves.items()):
            look: dict[str, Any] = {"color": LINES[n % len(LINES)], "ls": ("-", "--", ":", "-.")[n % 4], "marker": "."}
            left.plot([point.m for point in curve], [point.rate for point in curve], label=name, **look)
            right.plot([point.m for point in curve], [point.held for point in curve], label=name, **look)
        left.set(xlabel="m, microbatches", title=f"bubble rate, p = {self.p.value}", ylim=(0, 1))
        left.yaxis.set_major_formatter(PercentFormatter(1))
        right.set(xlabel="m, microbatches", title="holds at most (microbatches)")
        right.set_ylim(bottom=0)
        left.legend()
        return figure


def _sizes(p: int) -> list[int]:
    """The m at which the curves have their points."""
    return sorted({m for m in (1, 2, 4, p, 2 * p, 12, 3 * p, 16, 24, 32) if m <= MOST_MICROBATCHES})


def _coarse(m: int) -> tuple[int, int]:
    """Sorts the ends of a curve before what refines it."""
    return m not in (1, 8, MOST_MICROBATCHES), m


def _running_loop() -> asyncio.AbstractEventLoop | None:
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None


def _row(n: int, name: str, here: Point | str) -> tuple[str, ...]:
    """A line of the table; its first cell shows how the schedule's curve is drawn."""
    sample = f'<svg width="40" height="8" aria-hidden="true"><path d="M0 4H40" {_pen(n)}/></svg> {escape(name)}'
    if isinstance(here, str):
        return (sample, *["–"] * (len(HEADS) - 1))
    _, rate, overhead, makespan, held = here
    return sample, f"{rate:.1%}", f"{overhead:.1%}", f"{makespan:.4g}", f"{held:.3g}"


def _in_words(name: str, curve: Sequence[Point]) -> str:
    ends = [curve[0], curve[-1]] if curve else []
    return f"{name} " + ", ".join(f"m = {p.m}: {p.rate:.0%}, {p.held:.3g} held" for p in ends)


def _pen(n: int) -> str:
    return f'fill="none" stroke="{LINES[n % len(LINES)]}" stroke-width="2" stroke-dasharray="{STYLES[n % len(STYLES)]}"'


def _plot(curves: dict[str, list[Point]], what: str, at: int, place: int) -> str:
    """One plot; `at` is marked, `place` counts plots from the left."""
    left = LEFT + place * (WIDE + 80)
    values = {name: [(q.m, q.held if place else q.rate) for q in curve] for name, curve in curves.items()}
    top = max((value for curve in values.values() for _, value in curve), default=0.0) or 1.0
    across, down = WIDE / MOST_MICROBATCHES, HIGH / top
    parts = [f'<text x="{left:g}" y="12">{what}</text>']
    for share in (0.0, 0.5, 1.0):
        y = TOP + HIGH * (1 - share)
        label = f"{share * top:.3g}" if place else f"{share * top:.0%}"
        parts.append(f'<path d="M{left:g} {y:g}h{WIDE:g}" stroke="currentColor" stroke-opacity="0.2"/>')
        parts.append(f'<text x="{left - 6:g}" y="{y + 4:g}" text-anchor="end">{label}</text>')
    parts += [
        f'<text x="{left + m * across:g}" y="{TOP + HIGH + 15:g}" text-anchor="middle">{m}</text>'
        for m in (1, 8, 16, 24, 32)
    ]
    parts.append(f'<path d="M{left + at * across:g} {TOP:g}v{HIGH:g}" stroke="currentColor" stroke-dasharray="2 3"/>')
    for n, curve in enumerate(values.values()):
        line = " ".join(f"{left + m * across:.1f},{TOP + HIGH - value * down:.1f}" for m, value in curve)
        parts.append(f'<polyline points="{line}" {_pen(n)}/>')
    return "".join(parts)


def explore_m(
    schedules: Sequence[str] = ("gpipe", "1f1b", "zb-h1"),
    *,
    p: int = 4,
    m: int = 8,
    v: int = 2,
    costs: Costs | None = None,
) -> OverM:
    """Bubble rate and memory over m, a curve a schedule; the table shows the chosen m in numbers.

    p, v    ranks; stages a rank where the schedule has a choice
    costs   of one rank's layers, one number each, to begin with

    Needs a kernel; elsewhere a picture stands in its place. Raises ValueError for an unknown schedule.
    """
    if isinstance(schedules, str):
        raise ValueError(f"schedules is {schedules!r}, but it must be a list, as in ['gpipe', '1f1b'].")
    for name in schedules:
        if name not in SCHEDULES:
            raise ValueError(f"There is no schedule {name!r}; the schedules are {', '.join(SCHEDULES)}.")
    return OverM(
        {
            "p": whole("p, ranks", p, 1, MOST_RANKS),
            "m": whole("m, microbatches", m, 1, MOST_MICROBATCHES),
            "v": whole("v, stages a rank", v, 1, 4),
            **cost_sliders(Costs() if costs is None else costs),
            **{name: tick(name, name in schedules) for name in SCHEDULES},
        }
    )
