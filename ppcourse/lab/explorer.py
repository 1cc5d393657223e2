"""Two schedules side by side, their sizes and costs on sliders: charts, both bubbles, memory a rank."""

import inspect
from collections.abc import Sequence
from html import escape
from typing import Any, NamedTuple

from matplotlib.figure import Figure

from ppcourse.analysis.in_flight import in_flight
from ppcourse.analysis.simulate import simulate
from ppcourse.analysis.timeline import Timeline
from ppcourse.lab.gantt import gantt
from ppcourse.lab.gantt_text import gantt_text
from ppcourse.lab.panel import Drawn, Panel, choice, in_words, real, sentence, table, tick, whole
from ppcourse.lab.svg import svg
from ppcourse.schedules import SCHEDULES, build
from ppcourse.schedules.costs import Costs, demand_costs
from ppcourse.schedules.schedule import Schedule
from ppcourse.schedules.zb_auto import zb_auto

NOTHING = "nothing"
HEADS = ("", "makespan", "longest stage", "bubble rate", "overhead", "holds at most")
MOST_RANKS, MOST_MICROBATCHES = 8, 32
QUICKLY = 100_000  # the work of a zb-auto that is planned while a slider moves: a twentieth of the usual


class Predicted(NamedTuple):
    """A plan, when it runs, and what each rank holds at most, in microbatches of its full activation."""

    plan: Schedule
    timeline: Timeline
    held: tuple[float, ...]

    @classmethod
    def of(cls, name: str, p: int, m: int, v: int, costs: Costs) -> "Predicted":
        """The schedule `name`; `costs` are those of one rank's layers, however many stages they are cut into.

        `v` counts only where the schedule has a choice; zb-auto is planned more quickly than by `build`, and perhaps
        not as well. Raises ValueError for counts that it cannot have.
        """
        if name == "zb-auto":
            return cls.from_plan(zb_auto(p, m, costs, work=QUICKLY), costs)
        takes = inspect.signature(SCHEDULES[name]).parameters
        return cls.from_plan(build(name, p, m, v if "v" in takes else None), costs)

    @classmethod
    def from_plan(cls, plan: Schedule, costs: Costs) -> "Predicted":
        """Any legal plan, under the costs of one rank's layers."""
        return cls(plan, simulate(plan, per_stage(costs, plan)), in_flight(plan))

    def cells(self) -> tuple[str, ...]:
        """Its line of the table."""
        t = self.timeline
        bubbles = f"{t.bubble_rate:.1%}", f"{t.bubble_overhead:.1%}"
        times = f"{t.makespan:.4g}", f"{t.longest_stage_time:.4g}"
        return escape(t.name), *times, *bubbles, f"{max(self.held):.3g}"


def per_stage(costs: Costs, plan: Schedule) -> Costs:
    """The costs of a stage, from those of one rank's layers; where they are given per stage, they stay."""
    share = plan.num_ranks / plan.num_stages

    def cut(cost: Any) -> Any:
        return cost if cost is None or isinstance(cost, Sequence) else share * cost

    parts = {name: cut(getattr(costs, name)) for name in ("forward", "input_grad", "weight_grad", "overlap")}
    return Costs(**parts, comm=costs.comm, size=costs.size, bandwidth=costs.bandwidth)


class Explorer(Panel):
    """What `explore` shows. `predicted` holds what is on the page: plans, timelines, memory."""

    predicted: tuple[Predicted, ...] = ()

    def costs(self) -> Costs:
        """What the sliders say, for one rank's layers."""
        c = self.controls
        return Costs(c["forward"].value, c["input_grad"].value, c["weight_grad"].value, comm=c["hop"].value)

    def draw(self) -> Drawn:
        """The charts on one time axis, and a table; a schedule that cannot be had leaves a sentence."""
        self.predicted = ()
        names = [name for name in (self.schedule.value, self.beside.value) if name != NOTHING]
        chosen = [SCHEDULES[name] for name in names]
        self.v.disabled = not any("v" in inspect.signature(builder).parameters for builder in chosen)
        found, problems = [], []
        for name in dict.fromkeys(names):
            try:
                found.append(Predicted.of(name, self.p.value, self.m.value, self.v.value, self.costs()))
            except ValueError as error:
                problems.append(sentence(error))
        self.predicted = tuple(found)
        return Drawn(self._pictures() if found else "", " ".join(problems))

    def _pictures(self) -> str:
        timelines = [each.timeline for each in self.predicted]
        if self.letters.value:
            texts = "\n\n".join(_with_memory(each) for each in self.predicted)
            chart = f'<pre style="line-height:1.3">{escape(texts)}</pre>'
        else:
            chart = svg(*timelines, held=[each.held for each in self.predicted])
        return chart + table(HEADS, [each.cells() for each in self.predicted])

    def figure(self) -> Figure:
        timelines = [each.timeline for each in self.predicted]
        return gantt(*timelines) if timelines else in_words(self.problem)


def _with_memory(predicted: Predicted) -> str:
    return f"{gantt_text(predicted.timeline)}\nranks hold {' '.join(f'{most:.3g}' for most in predicted.held)}"


def explore(
    schedule: str = "1f1b", beside: str | None = None, *, p: int = 4, m: int = 8, v: int = 2, costs: Costs | None = None
) -> Explorer:
    """A schedule, and another one beside it, with a slider for each count and each cost.

    p, m, v   ranks, microbatches; stages a rank where the schedule has a choice
    costs     of one rank's layers, one number each, to begin with; a rank that holds two stages divides them

    Needs a kernel; elsewhere a picture stands in its place. A choice that a schedule cannot have shows a
    sentence. Raises ValueError for an unknown schedule and for costs per stage.
    """
    return Explorer(
        {
            "schedule": choice("schedule", list(SCHEDULES), schedule),
            "beside": choice("beside it", [NOTHING, *SCHEDULES], beside or NOTHING),
            "p": whole("p, ranks", p, 1, MOST_RANKS),
            "m": whole("m, microbatches", m, 1, MOST_MICROBATCHES),
            "v": whole("v, stages a rank", v, 1, 4),
            **cost_sliders(Costs() if costs is None else costs),
            "letters": tick("in letters"),
        }
    )


def cost_sliders(costs: Costs) -> dict[str, Any]:
    """A slider each for F, I, W and a hop. Raises ValueError for no Costs, and for costs that are given per stage."""
    demand_costs(costs)
    labels = {"forward": "F", "input_grad": "I", "weight_grad": "W"}
    for name in labels:
        if isinstance(getattr(costs, name), Sequence):
            raise ValueError(f"Costs.{name} is a list; a slider needs one number, for all stages.")
    sliders = {name: real(label, float(getattr(costs, name)), 4) for name, label in labels.items()}
    return {**sliders, "hop": real("a hop", costs.comm, 4)}
