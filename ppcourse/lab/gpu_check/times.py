"""Timelines: paced runs of every schedule beside the simulator, and the spans of a GPT that runs as fast as it can."""

import functools
import time
from collections.abc import Iterator

import torch

from ppcourse.analysis.simulate import simulate
from ppcourse.analysis.timeline import Timeline
from ppcourse.lab.gpu_check import tasks
from ppcourse.lab.gpu_check.allowance import Allowance
from ppcourse.lab.gpu_check.finding import Finding, judged
from ppcourse.lab.gpu_check.setting import Setting
from ppcourse.runtime.data import batches, text_loss
from ppcourse.runtime.models import gpt
from ppcourse.schedules import build
from ppcourse.schedules.costs import Costs
from ppcourse.schedules.dependencies import RESULTS, RULES
from ppcourse.schedules.schedule import Schedule

SLOT = 0.02  # seconds that F, I and W of a rank's layers last
TRIES = 3  # of a paced run, the best of which counts: what else the machine does only makes it longer
FASTEST, SLOWEST = 0.999, 1.10  # of the simulator's makespan; below it a span would be missing
SKEW = 0.001  # seconds by which the clocks of two ranks may disagree
COVERED = 0.5  # of one rank's busy time must be in the spans of four: less, and they do not show the work
SIZES = {"cpu": (32, 32), "cuda": (512, 256)}  # width and context of the GPT
HEAD = ("schedule", "simulated, ms", "measured (paced), ms", "ratio", "tries")


def paced(setting: Setting, allowance: Allowance) -> Finding:
    """Each action lasts its nominal time, so a step should last what the simulator says."""
    table, wrong = [HEAD], []
    for name in allowance.each(setting.schedules):
        plan = build(name, tasks.P, tasks.M)
        share = SLOT * plan.num_ranks / plan.num_stages
        due, *took = tries(setting, plan, Costs(share, share, share))
        ratio = min(took) / due
        table.append((name, f"{due * 1e3:.0f}", f"{min(took) * 1e3:.1f}", f"{ratio:.3f}", str(len(took))))
        if not FASTEST <= ratio <= SLOWEST:
            wrong.append(f"{name}: {ratio:.3f} of the simulated makespan, not {FASTEST:g} to {SLOWEST:g}.")
    if wrong:
        wrong.append("So does a machine that is busy with something else: see what else it ran.")
    right = (
        f"{len(table) - 1} schedules, F, I and W of a rank's layers {SLOT * 1e3:g} ms each: every step took"
        f" {FASTEST:g} to {SLOWEST:g} of its simulated makespan, at the best of {TRIES} tries at most."
    )
    return judged(wrong, right, table=table, cut=allowance.cut)


def tries(setting: Setting, plan: Schedule, pace: Costs) -> Iterator[float]:
    """The simulated makespan, then measured ones until one is near it."""
    due = simulate(plan, pace).makespan
    yield due
    for _ in range(TRIES):
        took = setting.run(plan, tasks.small_mlp(plan.num_stages), pace=pace).timeline.makespan
        yield took
        if took <= SLOWEST * due:
            return


def unpaced(setting: Setting, allowance: Allowance) -> Finding:
    """A GPT in float32 on one rank and on four: the spans of its last step, from CUDA events on a GPU."""
    width, context = SIZES[setting.device]
    model = gpt(6, width, heads=4, context=context)
    data = list(batches(2 * tasks.M, context, 3))
    spans, walls = [], []
    for p in (1, tasks.P):
        began = time.perf_counter()
        options = {"steps": len(data), "optimizer": functools.partial(torch.optim.SGD, lr=0.01)}
        spans.append(setting.train(build("1f1b", p, tasks.M), (model, text_loss), data, **options).timeline)
        walls.append(time.perf_counter() - began)
    alone, four = spans
    wrong = [*early(four)]
    wrong += [
        f"{line.name}: a step of {line.makespan:.3f} s in {wall:.3f} s."
        for line, wall in zip(spans, walls, strict=True)
        if line.makespan > wall
    ]
    if not sum(four.busy) >= COVERED * sum(alone.busy):
        wrong.append(f"The spans of four ranks cover {sum(four.busy):.4f} s, those of one {sum(alone.busy):.4f} s.")
    right = "No action starts before what it needs is done, and the spans of four ranks cover the work of one."
    return judged(wrong, right, table=[*shares(alone, four)], cut=allowance.cut)


def shares(*timelines: Timeline) -> Iterator[tuple[str, ...]]:
    """A line a timeline: its step, the sum of its busy times, and what share of ranks × step that is."""
    yield "ranks", "step, ms", "sum of busy, ms", "busy ÷ (ranks × step)", "bubble rate"
    for it in timelines:
        busy = sum(it.busy)
        numbers = f"{it.makespan * 1e3:.2f}", f"{busy * 1e3:.2f}", f"{busy / (it.num_ranks * it.makespan):.3f}"
        yield str(it.num_ranks), *numbers, f"{it.bubble_rate:.1%}"


def early(timeline: Timeline) -> Iterator[str]:
    """A sentence for each action that starts before something it needs is done, or ends before it starts."""
    ends = {
        (result, span.action.stage, span.action.microbatch): span
        for span in timeline.spans
        for result in RESULTS[span.action.op]
    }
    for span in timeline.spans:
        stage, op, microbatch = span.action
        if span.end < span.start:
            yield f"{span.action} ends before it starts."
        for offset, result in RULES[op]:
            maker = ends.get((result, stage + offset, microbatch))
            if maker and maker.action != span.action and span.start < maker.end - SKEW:
                yield f"{span.action} starts {(maker.end - span.start) * 1e3:.2f} ms before {maker.action} ends."
