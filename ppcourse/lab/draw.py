"""A schedule of the learner's own: placed action by action, judged at once, and run on real ranks.

rank 0 [0F0 0F1 0B0 0B1  ]  ──► legal so far?  ──no──► the order, and each broken rule at its place
rank 1 [F0 B0 F1 B1      ]           └──────── yes──► when it runs, its bubble, its memory, and par
"""

import contextlib
import re
from collections.abc import Iterable, Iterator, Sequence
from html import escape
from typing import Any

import ipywidgets
from matplotlib.figure import Figure

from ppcourse.analysis.in_flight import in_flight
from ppcourse.analysis.timeline import Span, Timeline
from ppcourse.lab.draft import Draft, draft
from ppcourse.lab.explorer import HEADS, MOST_MICROBATCHES, MOST_RANKS, Predicted, per_stage
from ppcourse.lab.gantt import gantt
from ppcourse.lab.order_svg import order_svg
from ppcourse.lab.panel import LABEL, Drawn, Panel, button, choice, in_words, table
from ppcourse.lab.svg import svg
from ppcourse.lab.trial import Trial, trial
from ppcourse.schedules import SCHEDULES, build
from ppcourse.schedules.action import Action, Op
from ppcourse.schedules.costs import Costs, demand_costs
from ppcourse.schedules.placement import loop
from ppcourse.schedules.schedule import IDLE, Schedule, ScheduleError

EMPTY = "an empty grid"
PAR = ("1f1b", "zb-h1")  # for one stage a rank; with more, interleaved too
MOST_SHOWN = 6  # sentences at once
NO_STAGE = re.compile(r"[FBIW]\d+")


class Drawing(Panel):
    """What `draw_schedule` shows.

    plan     what is written so far
    looked   what may be said of it; None if it cannot be read
    trial    its last run on real ranks
    """

    quiet = frozenset({"start", "action"})

    def __init__(self, starts: dict[str, Schedule | None], p: int, m: int, v: int, costs: Costs) -> None:
        self.placement, self.m, self.costs, self.starts = loop(p, v), m, costs, starts
        self.plan = Schedule("mine", self.placement, m, ((),) * p)
        self.looked: Draft | None = None
        self.trial: Trial | None = None
        self.par = _par(p, m, v, costs)
        width = ipywidgets.Layout(width="98%")
        rows = [ipywidgets.Text(description=f"rank {r}", layout=width, style=LABEL) for r in range(p)]
        self.rows = rows
        super().__init__(_controls(starts, p), {f"row_{rank}": row for rank, row in enumerate(rows)})
        for name, work in (("fill", self.fill), ("place", self.place), ("undo", self.undo), ("run", self.run)):
            self.on_press(name, work)

    def draw(self) -> Drawn:
        """What is wrong, at its place; or when it runs, and how far it is from par."""
        self.looked = self.trial = None
        self.controls["run"].disabled = True
        rows = tuple(_read(row.value, rank, self.placement.stages_of(rank)) for rank, row in enumerate(self.rows))
        self.plan = Schedule("mine", self.placement, self.m, rows)
        self.looked = looked = draft(self.plan)
        self._offer()
        self.controls["run"].disabled = not looked.done
        if looked.violations:
            return Drawn(order_svg(self.plan, looked.violations) + _listed(looked) + self._table(), _count(looked))
        return Drawn(self._chart(looked) + _to_do(looked) + self._table())

    def fill(self) -> None:
        """Replace the rows by those of the chosen schedule."""
        plan = self.starts[self.controls["start"].value]
        self.write(plan.to_text().splitlines() if plan else [""] * self.placement.num_ranks)

    def write(self, rows: Sequence[str]) -> None:
        """Replace the rows, and draw once. Raises ValueError for another number of rows than ranks."""
        rows = [rows] if isinstance(rows, str) else rows
        if len(rows) != len(self.rows):
            raise ValueError(f"There are {len(rows)} rows for {len(self.rows)} ranks; write one a rank.")
        self.drawing = True
        for row, text in zip(self.rows, rows, strict=True):
            row.value = text
        self.redraw()

    def place(self) -> None:
        """Put the chosen action at the end of the chosen rank's row."""
        row = self.rows[self.controls["rank"].value]
        if self.controls["action"].value is None:
            raise ValueError(f"Nothing is left to place on rank {self.controls['rank'].value}.")
        row.value = f"{row.value} {self.controls['action'].value}".strip()

    def undo(self) -> None:
        """Take the last action of the chosen rank's row away."""
        row = self.rows[self.controls["rank"].value]
        row.value = " ".join(row.value.split()[:-1])

    def run(self) -> None:
        """Run the plan on real ranks, paced, and show the measured timeline under the predicted one."""
        if self.looked is None or not self.looked.done:
            raise ValueError("This plan cannot run yet: place what is missing, and mend what is marked.")
        pressed = self.controls["run"]
        pressed.disabled, pressed.description = True, "running …"
        try:
            self.trial = done = trial(self.plan, per_stage(self.costs, self.plan))
        finally:
            pressed.disabled, pressed.description = False, "run on real ranks"
        chart = svg(done.predicted, done.result.timeline, held=[in_flight(self.plan), done.result.peak_in_flight])
        self.tell("")
        self.shown.value = chart + f'<div role="status">✓ {escape(str(done))}</div>' + self._table()

    def figure(self) -> Figure:
        looked = self.looked
        if looked and looked.done:
            return gantt(Predicted.from_plan(self.plan, self.costs).timeline)
        told = [violation.message for violation in looked.violations] if looked else [self.problem]
        return in_words("\n".join([self.plan.to_text(), *told[:MOST_SHOWN]]))

    def _offer(self) -> None:
        """In the list of actions: for each stage of the rank, the next of each kind."""
        rank, action = self.controls["rank"].value, self.controls["action"]
        offers = tuple(map(str, _offers(self.plan, rank)))
        if action.options != offers:
            action.options = offers
            action.index = 0 if offers else None

    def _chart(self, looked: Draft) -> str:
        """The timeline of what is placed; what it waits for that is not placed yet is drawn pale."""
        if not any(self.plan.rows):
            return ""
        whole = Predicted.from_plan(looked.whole, self.costs)
        placed = {(rank, action) for rank, row in enumerate(self.plan.rows) for action in row}
        ours = [span for span in whole.timeline.spans if (span.rank, span.action) in placed]
        end = max(span.end for span in ours)
        pale = [span for span in whole.timeline.spans if span not in set(ours) and span.end <= end]
        return svg(_only(whole.timeline, [*ours, *pale]), held=[in_flight(self.plan)], pale=pale)

    def _table(self) -> str:
        done = self.looked is not None and self.looked.done
        mine = [Predicted.from_plan(self.plan, self.costs).cells()] if done else []
        return table(HEADS, [*mine, *self.par], "par for these sizes and costs" if not done else "")


def _read(text: str, rank: int, stages: Sequence[int]) -> tuple[Action, ...]:
    """A row as it was typed; a stage may be left out where the rank has one. Raises ScheduleError."""
    actions = []
    for position, word in enumerate(text.split()):
        if word == IDLE:
            continue
        alone = len(stages) == 1 and NO_STAGE.fullmatch(word)
        try:
            actions.append(Action.parse(f"{stages[0]}{word}" if alone else word))
        except ValueError as error:
            raise ScheduleError(f"rank {rank}, position {position}: {error}") from None
    return tuple(actions)


def _offers(plan: Schedule, rank: int) -> Iterator[Action]:
    done = {(action.stage, action.op, action.microbatch) for action in plan.rows[rank]}
    for stage in plan.placement.stages_of(rank):
        for op in Op:
            twins = (op, *{Op.B: (Op.I, Op.W), Op.I: (Op.B,), Op.W: (Op.B,)}.get(op, ()))
            free = (i for i in range(plan.num_microbatches) if not any((stage, twin, i) in done for twin in twins))
            yield from (Action(stage, op, i) for i in list(free)[:1])


def _par(p: int, m: int, v: int, costs: Costs) -> list[tuple[str, ...]]:
    """The lines of the table that a learner may want to reach."""
    names = (*PAR, "interleaved") if v > 1 else PAR
    return [Predicted.of(name, p, m, v, costs).cells() for name in names]


def _only(timeline: Timeline, spans: Sequence[Span]) -> Timeline:
    return Timeline.of(timeline.name, timeline.num_ranks, spans)


def _listed(looked: Draft) -> str:
    """The sentences of the broken rules, by the numbers at their places."""
    shown = [escape(violation.message) for violation in looked.violations[:MOST_SHOWN]]
    more = len(looked.violations) - len(shown)
    lines = [f"<div>✗{number} {message}</div>" for number, message in enumerate(shown, 1)]
    lines += [f"<div>… and {more} more.</div>"] if more else []
    lines += (
        ["<div>(What is not placed yet counts as placed at the ends of the rows.)</div>"] if any(looked.left) else []
    )
    return "".join(lines)


def _count(looked: Draft) -> str:
    n = len(looked.violations)
    return looked.violations[0].message if n == 1 else f"{n} rules are broken; their numbers stand at their places."


def _to_do(looked: Draft) -> str:
    left = [len(actions) for actions in looked.left]
    if not any(left):
        return '<div role="status">✓ Legal and whole.</div>'
    counts = ", ".join(f"rank {rank}: {n}" for rank, n in enumerate(left) if n)
    return f'<div role="status">Legal so far. Still to place: {counts}.</div>'


def _controls(starts: Iterable[str], p: int) -> dict[str, Any]:
    return {
        "start": choice("start from", list(starts), EMPTY),
        "fill": button("fill the grid", "Replace all rows by this schedule's"),
        "rank": choice("rank", list(range(p)), 0),
        "action": ipywidgets.Dropdown(description="action", style=LABEL),
        "place": button("place at the end", "Put the action at the end of the rank's row"),
        "undo": button("take back the last", "Remove the last action of the rank's row"),
        "run": button("run on real ranks", "One paced step of a small model, when the plan is legal and whole"),
    }


def _fitting(p: int, m: int, v: int) -> dict[str, Schedule | None]:
    """The schedules that place their stages as the grid does, by name, and nothing."""
    found: dict[str, Schedule | None] = {EMPTY: None}
    for name in SCHEDULES:
        with contextlib.suppress(ValueError):
            plan = build(name, p, m, v)
            if plan.placement == loop(p, v) and not plan.overlapped:
                found[name] = plan
    return found


def draw_schedule(
    p: int = 3, m: int = 4, v: int = 1, *, rows: Sequence[str] | None = None, costs: Costs | None = None
) -> Drawing:
    """A grid for a schedule of your own: type the rows, or place action by action, and see at once what is wrong.

    p, m, v   ranks, microbatches, stages a rank; stage s is on rank s mod p
    rows      to begin with, one a rank, as in ["0F0 0F1 0B0 0B1", "1F0 1B0 1F1 1B1"]; empty by default
    costs     of one rank's layers; 1 each for F, I and W by default

    `.plan` is the Schedule, `.looked` what is wrong and what is left. Needs a kernel; elsewhere a picture stands in
    its place. Raises ValueError for counts that are too large to draw, and for rows that are not one a rank.
    """
    for name, count, most in (("p", p, MOST_RANKS), ("m", m, MOST_MICROBATCHES), ("v", v, 4)):
        if isinstance(count, bool) or not isinstance(count, int) or not 1 <= count <= most:
            raise ValueError(f"{name} is {count!r}; to be drawn it must be a whole number from 1 to {most}.")
    costs = Costs() if costs is None else costs
    demand_costs(costs)
    drawing = Drawing(_fitting(p, m, v), p, m, v, costs)
    if rows is not None:
        drawing.write(rows)
    return drawing
