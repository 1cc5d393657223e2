"""`ppcourse demo`: one small GPT, four real ranks, two schedules, their table, memory and charts, and a plan."""

import functools
import statistics
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

import torch

from ppcourse.analysis.shape import Shape
from ppcourse.analysis.simulate import simulate
from ppcourse.analysis.timeline import Timeline
from ppcourse.lab.gantt import gantt
from ppcourse.lab.sizing import first_choice, memory_table
from ppcourse.runtime.data import batches, text_loss
from ppcourse.runtime.errors import RankError
from ppcourse.runtime.launch import run
from ppcourse.runtime.models import gpt
from ppcourse.runtime.train import train
from ppcourse.schedules import build
from ppcourse.schedules.costs import Costs

NAMES = ("gpipe", "1f1b")
P, M = 4, 8
BATCH, CONTEXT = 16, 64
SHAPE = Shape(layers=6, hidden=64, heads=4, vocab=256, sequence=CONTEXT)  # what gpt() makes
PACE = Costs(forward=0.02, input_grad=0.02, weight_grad=0.02)  # more than the work takes on two cores
HEADS = (
    *("schedule", "first loss", "last", "step (paced)", "bubble predicted", "measured (paced)"),
    *("peak MB by rank", "microbatches held"),
)


class Outcome(NamedTuple):
    """What came of one schedule; times are paced, memory is from a step of its own, which is slower."""

    name: str
    losses: Sequence[float]
    step_times: Sequence[float]
    predicted: Timeline
    measured: Timeline
    peak_bytes: Sequence[int]
    held: Sequence[float]
    memory: str

    def cells(self) -> tuple[str, ...]:
        """Its line of the table."""
        losses = f"{self.losses[0]:.3f}", f"{self.losses[-1]:.3f}"
        bubbles = f"{self.predicted.bubble_rate:.1%}", f"{self.measured.bubble_rate:.1%}"
        megabytes = " ".join(f"{size / 1e6:.1f}" for size in self.peak_bytes)
        step = f"{statistics.median(self.step_times) * 1e3:.0f} ms"
        return self.name, *losses, step, *bubbles, megabytes, " ".join(f"{n:g}" for n in self.held)


def main(steps: int, out: str | Path) -> int:
    """Train, print, draw: the exit code."""
    try:
        Path(out).mkdir(parents=True, exist_ok=True)
    except OSError as error:
        print(f"--out is {out}, but that cannot be a folder: {error.strerror}.", file=sys.stderr)
        return 2
    try:
        print(f"Training a GPT of {P} stages on {P} ranks, {M} microbatches a step, with each schedule.", flush=True)
        outcomes = [train_with(name, steps) for name in NAMES]
        _show(outcomes)
        for outcome in outcomes:
            path = Path(out, f"{outcome.name}.png")
            gantt(outcome.predicted, outcome.measured, overlay=True).savefig(path, dpi=150)
            print(f"{path}: predicted over measured")
    except (ValueError, OSError, RankError) as error:
        print(error, file=sys.stderr)
        return 1
    return 0


def train_with(name: str, steps: int) -> Outcome:
    """Some paced steps of training, and one step with its memory measured."""
    plan, model, one = build(name, P, M), gpt(context=CONTEXT), BATCH // M
    data = list(batches(BATCH, CONTEXT, max(1, steps)))
    optimizer = functools.partial(torch.optim.AdamW, lr=1e-3)
    trained = train(plan, model, data, loss_fn=text_loss, optimizer=optimizer, steps=steps, pace=PACE)
    inputs, targets = data[0]
    weighed = run(plan, model, inputs, targets, loss_fn=text_loss, memory=True)
    return Outcome(
        name=name,
        losses=trained.losses,
        step_times=trained.step_times,
        predicted=simulate(plan, PACE),
        measured=trained.timeline,
        peak_bytes=weighed.peak_bytes or (),
        held=trained.peak_in_flight,
        memory=memory_table(plan, model, inputs[:one], targets[:one], text_loss, weighed),
    )


def _show(outcomes: Sequence[Outcome]) -> None:
    print(_table([HEADS, *(outcome.cells() for outcome in outcomes)]))
    apart = max(abs(a - b) for a, b in zip(*(outcome.losses for outcome in outcomes), strict=True))
    print(f"\nLosses of the two schedules differ by {apart:.1g} at most, over {len(outcomes[0].losses)} steps.")
    print("Times are paced: real tensors and messages, but every forward lasts 20 ms and every backward 40.")
    print("\nMemory by rank and kind, predicted from a profile of one microbatch, and measured:")
    for outcome in outcomes:
        print(f"\n{outcome.memory}")
    print(f"\nWhat the planner would take here:\n\n{first_choice(SHAPE, P, BATCH)}\n")


def _table(rows: Iterable[Sequence[str]]) -> str:
    columns = [[cell.ljust(max(map(len, column))) for cell in column] for column in zip(*rows, strict=True)]
    return "\n".join("  ".join(line).rstrip() for line in zip(*columns, strict=True))
