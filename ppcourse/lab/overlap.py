"""A slider for F&B: how DualPipe's step and bubble change as an overlapped pair gets shorter."""

import base64
from functools import cached_property
from html import escape
from typing import Any

import ipywidgets as widgets

from ppcourse.analysis.formulas import dualpipe_bubble_time
from ppcourse.analysis.simulate import simulate
from ppcourse.analysis.timeline import Timeline
from ppcourse.lab.colours import COLOURS, IDLE, MEANINGS
from ppcourse.lab.gantt import gantt
from ppcourse.lab.gantt_svg import gantt_svg
from ppcourse.schedules import build
from ppcourse.schedules.costs import Costs

WIDE = {"description_width": "11em"}


class OverlapSlider:
    """DualPipe's chart under four sliders: F, I, W, and F&B in per cent of F + B.

    p, m      ranks, and microbatches of both streams together
    costs     {"F": .., "I": .., "W": ..}, each from 0.5 to 4
    percent   F&B, from 50 to 100 per cent of F + B; but a pair never lasts less than the longer of the two

    Where no widget runs, as on a page that only shows a notebook, it is a picture of the same chart.
    """

    def __init__(self, p: int = 4, m: int = 8, f: float = 1.0, i: float = 1.0, w: float = 1.0, percent: float = 100.0):
        self.plan, self.rivals = build("dualpipe", p, m), [build(name, p, m) for name in ("1f1b", "zb-v")]
        self.costs, self.percent = {"F": f, "I": i, "W": w}, percent

    @property
    def pair(self) -> float:
        """F&B."""
        f, b = self.costs["F"], self.costs["I"] + self.costs["W"]
        return max(f, b, (f + b) * self.percent / 100)

    @property
    def timeline(self) -> Timeline:
        return simulate(self.plan, Costs(self.costs["F"], self.costs["I"], self.costs["W"], overlap=self.pair))

    def __str__(self) -> str:
        """The numbers of the chart, beside the formula's and two schedules that overlap nothing."""
        f, i, w = self.costs.values()
        timeline, closed = self.timeline, dualpipe_bubble_time(self.plan.num_ranks, i + w, w, self.pair)
        others = (f"{rival.name} {self._rival_step(n):g}" for n, rival in enumerate(self.rivals))
        return (
            f"F {f:g}, I {i:g}, W {w:g}: F + B = {f + i + w:g}, F&B = {self.pair:g}\n"
            f"largest bubble of a rank: formula {closed:g}, simulated {max(timeline.idle):g}\n"
            f"step: dualpipe {timeline.makespan:g}, {', '.join(others)}"
        )

    def _rival_step(self, number: int) -> float:
        rival = self.rivals[number]
        f, i, w = (cost / rival.stages_per_rank for cost in self.costs.values())
        return simulate(rival, Costs(f, i, w)).makespan

    @cached_property
    def panel(self) -> widgets.VBox:
        """The sliders, which arrow keys move too; below them the chart and its numbers, redrawn at each move."""
        longest = self.timeline.makespan
        picture, numbers = widgets.HTML(), widgets.HTML()
        sliders = {
            name: widgets.FloatSlider(cost, min=0.5, max=4, step=0.5, description=name, style=WIDE)
            for name, cost in self.costs.items()
        }
        share = widgets.FloatSlider(self.percent, min=50, max=100, step=1, description="F&B, % of F + B", style=WIDE)

        def redraw(_: object = None) -> None:
            self.costs, self.percent = {name: slider.value for name, slider in sliders.items()}, share.value
            picture.value = gantt_svg(self.timeline, until=longest)
            numbers.value = f"<pre>{escape(str(self))}</pre>"

        redraw()
        for slider in (*sliders.values(), share):
            slider.observe(redraw, "value")
        return widgets.VBox([*sliders.values(), share, widgets.HTML(_legend()), picture, numbers])

    def _repr_mimebundle_(self, **_: Any) -> tuple[dict[str, Any], dict[str, Any]]:
        """The widget, and for pages without one a picture and its numbers."""
        live: dict[str, Any] = self.panel._repr_mimebundle_() or {}
        chart = gantt(self.timeline)
        png, size = chart._repr_png_()
        still = {"image/png": base64.b64encode(png).decode(), "text/plain": f"{self}\n\n{chart!r}"}
        return live | still, {"image/png": size}


def _legend() -> str:
    colours = {MEANINGS[op]: colour for op, colour in COLOURS.items()} | {"idle": IDLE}
    boxes = (
        f'<span style="background:{colour};color:black;padding:0 6px">{name}</span>' for name, colour in colours.items()
    )
    return " ".join(boxes)
