"""train: many steps, each with an optimizer step."""

import itertools
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn
from tqdm.auto import tqdm

from ppcourse.runtime.batch import Batch, batch_of, reduction_of, rows_of
from ppcourse.runtime.carriers import choose
from ppcourse.runtime.errors import briefly
from ppcourse.runtime.extras import check_extras
from ppcourse.runtime.job import Job, Report
from ppcourse.runtime.launch import CROSS_ENTROPY, measured
from ppcourse.runtime.prepare import (
    Model,
    Plan,
    check_count,
    check_function,
    check_options,
    check_trains,
    check_weights,
    cut,
    layers_of,
    resolve_plan,
)
from ppcourse.runtime.profile import partition_by_profile
from ppcourse.runtime.result import Training
from ppcourse.runtime.session import Session, session
from ppcourse.runtime.stage import LossFunction
from ppcourse.runtime.statistics import check_statistics
from ppcourse.runtime.training import Trainer
from ppcourse.schedules.costs import Costs


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

    The caller's model stays as it is; the trained weights are in the result's state_dict. If a later batch cannot be
    used, or `batches` raises an error, that error has what was trained until then, as its attribute `training`. The
    other arguments and the errors are those of `run`.
    """
    resolved = check_trains(resolve_plan(plan, p, m, v))
    carrier = check_options(resolved, device, link, pace, timeout)
    places = choose(device, link, resolved.num_ranks).devices
    check_function(optimizer, "optimizer", "torch.optim.SGD or functools.partial(torch.optim.AdamW, lr=1e-3)")
    kind = reduction_of(check_function(loss_fn, "loss_fn", CROSS_ENTROPY), reduction)
    check_count(steps, "steps")
    if clip_norm is not None and not clip_norm > 0:
        raise ValueError(f"clip_norm is {clip_norm!r}; it is a number above 0, or None for no limit.")

    layers, m = layers_of(model), resolved.num_microbatches
    coming = (_cut(batch, layers, m, number == 0, kind, weight) for number, batch in enumerate(batches))
    first = next(coming, None)  # looked at before a rank starts
    if first is None:
        raise ValueError("There is no batch; batches must have at least one pair (inputs, targets).")
    made = cut(resolved, model, partition_by_profile(partition, resolved, model, first, loss_fn))
    check_weights(made, loss_fn)
    copied = check_statistics(made)

    def job(rank: int) -> Job:
        owns = Trainer(optimizer, clip_norm, made.ties(rank))
        options = pace, memory, recompute, seed, owns, keep_sent
        return Job(resolved, made.of_rank(rank), loss_fn, *options, copied=copied, link=carrier, device=places[rank])

    log, wrong = _Log(carrier, places[0].partition(":")[0]), None
    with session(made, job, timeout) as ranks, tqdm(total=steps, disable=not progress, unit="step") as bar:
        try:
            for batch in itertools.islice(itertools.chain([first], coming), steps):
                log.step(ranks, batch)
                bar.set_postfix_str(f"loss {log.losses[-1]:.3f}", refresh=False)
                bar.update()
        except Exception as error:
            if not (log.losses and ranks.pool.alive):  # nothing to save, or nobody who has it
                raise
            wrong = error
        training = log.training(ranks)
    if wrong:
        vars(wrong)["training"] = training
        wrong.add_note(f"What was trained in {len(log.losses)} steps before is not lost: it is this error's .training")
        raise wrong
    return training


@dataclass
class _Log:
    """What there is to tell of the steps so far."""

    carrier: str
    device: str
    losses: list[float] = field(default_factory=list)
    norms: list[float] = field(default_factory=list)
    times: list[float] = field(default_factory=list)
    reports: list[Report] = field(default_factory=list)

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
