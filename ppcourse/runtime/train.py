"""train: many steps, each with an optimizer step."""

import functools
import itertools
from collections.abc import Callable, Iterable, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from numbers import Real
from pathlib import Path
from typing import Any

import torch
from torch import nn
from tqdm.auto import tqdm

from ppcourse.runtime.checkpoints.saving import Saving, saving_of
from ppcourse.runtime.errors import briefly
from ppcourse.runtime.launch import CROSS_ENTROPY, measured
from ppcourse.runtime.layers import Model, layers_of
from ppcourse.runtime.links.carriers import choose
from ppcourse.runtime.prepare import (
    Plan,
    check_count,
    check_function,
    check_memory,
    check_options,
    check_trains,
    check_weights,
    cut,
    resolve_plan,
)
from ppcourse.runtime.processes.job import Job, Report
from ppcourse.runtime.processes.ranks import START_TIMEOUT
from ppcourse.runtime.processes.session import Session, session
from ppcourse.runtime.profile import partition_by_profile
from ppcourse.runtime.result import Training
from ppcourse.runtime.stages.batch import Batch, batch_of, reduction_of, rows_of
from ppcourse.runtime.stages.stage import LossFunction
from ppcourse.runtime.stages.statistics import check_statistics
from ppcourse.runtime.training import Trainer
from ppcourse.runtime.values.extras import check_extras
from ppcourse.schedules.costs import Costs
from ppcourse.schedules.schedule import Schedule


@briefly
def train(
    plan: Plan,
    model: Model,
    batches: Iterable[tuple[Any, ...]],
    *,
    loss_fn: LossFunction,
    optimizer: Callable[[Iterable[nn.Parameter]], torch.optim.Optimizer],
    steps: int,
    clip_norm: float | None = None,
    checkpoint_dir: str | Path | None = None,
    checkpoint_every: int = 10,
    p: int | None = None,
    m: int | None = None,
    v: int | None = None,
    reduction: str | None = None,
    weight: Callable[[Any], float] | None = None,
    partition: str | Sequence[int] = "uniform",
    device: str = "auto",
    link: str = "auto",
    pace: Costs | None = None,
    memory: bool = False,
    recompute: bool = False,
    keep_sent: bool = False,
    seed: int = 0,
    timeout: float = 60.0,
    progress: bool = True,
) -> Training:
    """`steps` training steps on real ranks, each one step of `plan` and one optimizer step.

    batches    (inputs, targets) or (inputs, targets, extras) a step, of any number of rows; training ends early if
               there are fewer than `steps`. The first must have m rows; a later one of fewer, as the last of a data set
               may be, is run one row a microbatch, by the plan without the other microbatches
    optimizer  makes a torch optimizer from parameters, as torch.optim.SGD does, or functools.partial(AdamW, lr=1e-3);
               each rank has its own, over its own weights
    clip_norm  the most that the norm of all gradients of all ranks together may be
    progress   show a progress bar
    checkpoint_dir, checkpoint_every
               a folder for checkpoints, which one training has at a time, and after how many steps to write one (and
               at the end). If the folder has some, training goes on from the newest that is whole, as if it had never
               ended: give the model, the seed and all batches again, those done are skipped. The plan, p, m and v may
               be others. What an optimizer remembers of each weight is kept; its settings, such as lr, are those given
               now. Of a layer, what its state_dict has is kept

    The caller's model stays as it is; the trained weights are in the result's state_dict. If a later batch cannot be
    used, or `batches` raises an error, that error has what was trained until then, as its attribute `training`. The
    other arguments and the errors are those of `run`.
    """
    resolved = check_trains(resolve_plan(plan, p, m, v))
    carrier = check_options(resolved, device, link, pace, seed, timeout)
    places = choose(device, link, resolved.num_ranks).devices
    check_function(optimizer, "optimizer", "torch.optim.SGD or functools.partial(torch.optim.AdamW, lr=1e-3)")
    kind = reduction_of(check_function(loss_fn, "loss_fn", CROSS_ENTROPY), reduction)
    check_count(steps, "steps")
    if clip_norm is not None and not (isinstance(clip_norm, Real) and clip_norm > 0):
        raise ValueError(f"clip_norm is {clip_norm!r}; it is a number above 0, or None for no limit.")
    if not isinstance(batches, Iterable):
        raise ValueError(f"batches is {batches!r}, but it must be pairs (inputs, targets), for example a list of them.")

    layers, m = layers_of(model), resolved.num_microbatches
    with closing(saving_of(checkpoint_dir, checkpoint_every, layers, optimizer, seed, steps)) as saving:
        saving.begin()
        coming = (_cut(batch, layers, m, number == 0, kind, weight) for number, batch in saving.left(batches))
        first = next(coming, None)  # looked at before a rank starts
        made = cut(resolved, model, _partition(partition, resolved, model, first, loss_fn, saving.begun.step))
        check_weights(made, loss_fn)
        check_memory(made)
        twins = check_statistics(made)

        def job(rank: int) -> Job:
            owns = Trainer(optimizer, clip_norm, made.ties(rank))
            options = pace, memory, recompute, seed, owns, keep_sent
            return Job(resolved, made.of_rank(rank), loss_fn, *options, twins=twins, link=carrier, device=places[rank])

        log = _Log(carrier, places[0].partition(":")[0], saving)
        bar = functools.partial(tqdm, total=steps, initial=saving.begun.step, disable=not progress, unit="step")
        with saving.told(), session(made, job, timeout) as ranks, bar() as shown:
            saving.restore(log.ask(ranks))
            wrong = log.steps(ranks, itertools.chain([] if first is None else [first], coming), shown)
            training = log.training(ranks)
    if wrong:
        vars(wrong)["training"] = training
        wrong.add_note(f"What was trained in {len(log.losses)} steps before is not lost: it is this error's .training")
        raise wrong
    return training


def _partition(
    method: str | Sequence[int],
    plan: Schedule,
    model: Model,
    batch: Batch | None,
    loss_fn: LossFunction,
    done: int,
) -> str | Sequence[int]:
    """As it was asked for. Raises ValueError if there is no batch to train on, and never was."""
    if batch is not None:
        return partition_by_profile(method, plan, model, batch, loss_fn)
    if not done:
        raise ValueError("There is no batch; batches must have at least one pair (inputs, targets).")
    return "uniform" if method == "profiled" else method  # all is done


@dataclass
class _Log:
    """What there is to tell of the steps so far, those behind a checkpoint included."""

    carrier: str
    device: str
    saving: Saving
    reports: list[Report] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.losses, self.norms, self.times = self.history = self.saving.history()

    def ask(self, ranks: Session) -> Callable[..., list[Any]]:
        """For checkpoints, which may take their time: torch imports what writes them, and disks are slow."""
        return functools.partial(ranks.ask, patience=max(ranks.timeout, START_TIMEOUT))

    def steps(self, ranks: Session, batches: Iterable[Batch], bar: Any) -> Exception | None:
        """All of them, with checkpoints. The error that ended them early, if what was trained until then can be had."""
        try:
            for batch in batches:
                self.step(ranks, batch)
                bar.set_postfix_str(f"loss {self.losses[-1]:.3f}", refresh=False)
                bar.update()
                self.saving.after(self.history, self.ask(ranks))
            self.saving.after(self.history, self.ask(ranks), end=True)
        except Exception as error:
            if not (self.losses and ranks.pool.alive):  # nothing to save, or nobody who has it
                raise
            return error
        return None

    def step(self, ranks: Session, batch: Batch) -> None:
        """One step, with the optimizer's."""
        self.reports = ranks.step(batch)
        self.norms.append(ranks.ask("update")[0])
        self.losses.append(sum(report.loss for report in self.reports))
        self.times.append(ranks.timeline(self.reports).makespan)

    def training(self, ranks: Session) -> Training:
        """As if the last step had been the last."""
        states = ranks.ask("state")
        return Training(
            losses=tuple(self.losses),
            norms=tuple(self.norms),
            step_times=tuple(self.times),
            begun=self.saving.begun.step,
            state_dict={name: value for state in states for name, value in state.items()},
            timeline=ranks.timeline(self.reports),
            device=self.device,
            link=self.carrier,
            **measured(ranks.plan, self.reports),
        )


def _cut(
    batch: Any,
    layers: Sequence[nn.Module],
    m: int,
    whole: bool,
    reduction: str,
    weight: Callable[[Any], float] | None,
) -> Batch:
    """A step's microbatches: `m`, or fewer if there are fewer rows and it need not be the `whole` plan. Raises
    ValueError for what is no batch."""
    if not (isinstance(batch, tuple | list) and len(batch) in (2, 3)):
        raise ValueError(f"A batch is a {type(batch).__name__}, but batches must be pairs (inputs, targets).")
    inputs, targets, *extras = batch
    given = check_extras(extras[0] if extras else None, layers)
    return batch_of(inputs, targets, given, m if whole else min(m, rows_of(inputs, "inputs") or 1), reduction, weight)
