"""DualPipe under a slider: how short an overlapped F&B must be for it to win."""

from typing import Any

from matplotlib.figure import Figure

from ppcourse.analysis.formulas import dualpipe_bubble_time
from ppcourse.analysis.simulate import simulate
from ppcourse.lab.explorer import HEADS, MOST_MICROBATCHES, MOST_RANKS, Predicted, cost_sliders, per_stage
from ppcourse.lab.gantt import gantt
from ppcourse.lab.panel import Drawn, Panel, choice, real, table, whole
from ppcourse.lab.svg import svg
from ppcourse.schedules import SCHEDULES
from ppcourse.schedules.costs import Costs

PAIRED = ("dualpipe", "dualpipe-v")
HALVINGS = 12  # of the time in which the break-even lies: to a four-thousandth of it


class Overlap(Panel):
    """What `explore_overlap` shows.

    predicted   the schedule with pairs, and the one beside it
    break_even  the longest F&B with which a step is no longer than in the one beside it; None if it always is
    """

    predicted: tuple[Predicted, ...] = ()
    break_even: float | None = None
    tells = True  # of the break-even, in words
    _found: tuple[Any, float | None] = ((), None)  # for which controls, the break-even found last

    def draw(self) -> Drawn:
        """The two charts on one time axis; the formula's bubble and the simulator's; the break-even."""
        self.predicted, self.break_even = (), None
        c = self.controls
        pair, most = c["pair"], c["forward"].value + c["input_grad"].value + c["weight_grad"].value
        pair.max = max(most, pair.value)  # it may be longer than F and B where one disturbs the other
        costs = Costs(c["forward"].value, c["input_grad"].value, c["weight_grad"].value, overlap=pair.value)
        sizes = c["p"].value, c["m"].value, 2
        ours, other = (Predicted.of(c[name].value, *sizes, costs) for name in ("schedule", "beside"))
        self.predicted = ours, other
        self.break_even = self._longest(ours, other, costs)
        chart = svg(ours.timeline, other.timeline, held=[ours.held, other.held])
        return Drawn(chart + table(HEADS, [ours.cells(), other.cells()]) + self._told(costs))

    def _longest(self, ours: Predicted, other: Predicted, costs: Costs) -> float | None:
        """The break-even, which is looked for again only if something else than F&B has changed."""
        others = tuple(control.value for name, control in self.controls.items() if name != "pair")
        if others != self._found[0]:
            self._found = others, _break_even(ours, other, costs)
        return self._found[1]

    def _told(self, costs: Costs) -> str:
        """Sentences below the charts."""
        ours, other = self.predicted
        forward, backward, pair = (self.controls[name].value for name in ("forward", "input_grad", "pair"))
        backward += self.controls["weight_grad"].value
        alone = per_stage(costs, ours.plan)
        halves = [float(part) for part in (alone.input_grad, alone.weight_grad, alone.overlap)]  # type: ignore[arg-type]
        closed = dualpipe_bubble_time(ours.plan.num_stages, halves[0] + halves[1], halves[1], halves[2])
        said = [
            f"(PP/2 − 1)(F&amp;B + B − 3W) = {closed:.4g}; the simulator's largest bubble of a rank:"
            f" {max(ours.timeline.idle):.4g}.",
            f"F and B one after the other last {forward + backward:.4g}, F&amp;B {pair:.4g}.",
        ]
        if pair < max(forward, backward):
            said.append("No overlap makes a pair shorter than the longer of its two.")
        names = ours.timeline.name, other.timeline.name
        if self.tells and self.break_even is None:
            said.append(f"No F&amp;B makes {names[0]} as fast as {names[1]} here.")
        elif self.tells:
            said.append(f"{names[0]} is as fast as {names[1]}, or faster, up to F&amp;B = {self.break_even:.3g}.")
        return "".join(f"<div>{sentence}</div>" for sentence in said)

    def figure(self) -> Figure:
        return gantt(*(each.timeline for each in self.predicted))


class Untold(Overlap):
    """The same, where finding the break-even is the exercise."""

    tells = False


def _break_even(ours: Predicted, other: Predicted, costs: Costs) -> float | None:
    """Where our makespan, which never falls as F&B grows, passes the other's."""

    def wins(pair: float) -> bool:
        under = Costs(costs.forward, costs.input_grad, costs.weight_grad, overlap=pair)
        return simulate(ours.plan, per_stage(under, ours.plan)).makespan <= other.timeline.makespan + 1e-9

    low = 0.0
    high = 2.0 * (float(costs.forward) + float(costs.input_grad) + float(costs.weight_grad))  # type: ignore[arg-type]
    if not wins(low):
        return None
    if wins(high):
        return high
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        low, high = (middle, high) if wins(middle) else (low, middle)
    return low


def explore_overlap(
    schedule: str = "dualpipe",
    beside: str = "zb-h1",
    *,
    p: int = 4,
    m: int = 16,
    costs: Costs | None = None,
    break_even: bool = True,
) -> Overlap:
    """DualPipe or DualPipeV with F&B on a slider, beside another schedule.

    p, m         ranks and microbatches; dualpipe: both even, m at least 2p
    costs        of one rank's layers, one number each, to begin with; `overlap` is F&B, by default F + B
    break_even   also say the longest F&B with which the first is no slower

    F and B alone include the all-to-all of a mixture of experts and all else that they wait for; a pair hides some
    of it. Needs a kernel; elsewhere a picture stands in its place. Raises ValueError for an unknown schedule.
    """
    costs = Costs() if costs is None else costs
    sliders = cost_sliders(costs)
    del sliders["hop"]  # what a stage waits for is in F and B here
    alone = sum(slider.value for slider in sliders.values())
    pair = alone if costs.overlap is None else float(costs.overlap)  # type: ignore[arg-type]
    controls: dict[str, Any] = {
        "pair": real("F&B, a pair", pair, alone, 0.05),
        "schedule": choice("schedule", list(PAIRED), schedule),
        "beside": choice("beside it", [name for name in SCHEDULES if name not in PAIRED], beside),
        "p": whole("p, ranks", p, 2, MOST_RANKS, 2),
        "m": whole("m, microbatches", m, 4, MOST_MICROBATCHES, 2),
        **sliders,
    }
    return (Overlap if break_even else Untold)(controls)
