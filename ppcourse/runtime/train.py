"""train: many steps, each with an optimizer step."""

import itertools
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch import nn
from tqdm.auto import tqdm

from ppcourse.runtime.batch import ends_of, reduction_of, split_batch
from ppcourse.runtime.errors import briefly
from ppcourse.runtime.job import Job
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
    resolve_plan,
)
from ppcourse.runtime.profile import partition_by_profile
from ppcourse.runtime.result import Training
from ppcourse.runtime.session import session
from ppcourse.runtime.stage import End, LossFunction
from ppcourse.runtime.training import Trainer
from ppcourse.schedules.costs import Costs


@briefly
def train(
    plan: Plan,
    model: Model,
    batches: Iterable[tuple[Any, Any]],
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

    batches    (inputs, targets) a step; training ends early if there are fewer than `steps`
    optimizer  makes a torch optimizer from parameters, as torch.optim.SGD does, or functools.partial(AdamW, lr=1e-3);
               each rank has its own, over its own weights
    clip_norm  the most that the norm of all gradients of all ranks together may be
    progress   show a progress bar

    The caller's model stays as it is; the trained weights are in the result's state_dict. The other arguments
    and the errors are those of `run`.
    """
    resolved = check_trains(resolve_plan(plan, p, m, v))
    carrier = check_options(resolved, device, link, pace, timeout)
    check_function(optimizer, "optimizer", "torch.optim.SGD or functools.partial(torch.optim.AdamW, lr=1e-3)")
    kind = reduction_of(check_function(loss_fn, "loss_fn", CROSS_ENTROPY), reduction)
    check_count(steps, "steps")
    if clip_norm is not None and not clip_norm > 0:
        raise ValueError(f"clip_norm is {clip_norm!r}; it is a number above 0, or None for no limit.")

    coming = (_microbatches(batch, resolved.num_microbatches, kind, weight) for batch in batches)
    first = next(coming, None)  # looked at before a rank starts
    if first is None:
        raise ValueError("There is no batch; batches must have at least one pair (inputs, targets).")
    x, y = first[0][0], first[1][0].target
    made = cut(resolved, model, partition_by_profile(partition, resolved, model, x, y, loss_fn))
    check_weights(made, loss_fn)

    def job(rank: int) -> Job:
        owns = Trainer(optimizer, clip_norm, made.ties(rank))
        return Job(resolved, made.of_rank(rank), loss_fn, pace, memory, recompute, seed, owns, keep_sent, link=carrier)

    losses, norms, times = [], [], []
    with session(made, job, timeout) as ranks, tqdm(total=steps, disable=not progress, unit="step") as bar:
        for _, (xs, ends) in zip(range(steps), itertools.chain([first], coming), strict=False):
            reports = ranks.step(xs, ends)
            norms.append(ranks.ask("update")[0])
            losses.append(sum(report.loss for report in reports))
            times.append(ranks.timeline(reports).makespan)
            bar.set_postfix_str(f"loss {losses[-1]:.3f}", refresh=False)
            bar.update()
        states = ranks.ask("state")
    return Training(
        losses=tuple(losses),
        norms=tuple(norms),
        step_times=tuple(times),
        state_dict={name: value for state in states for name, value in state.items()},
        timeline=ranks.timeline(reports),
        device="cpu",
        link=carrier,
        **measured(resolved, reports),
    )


def _microbatches(
    batch: Any, m: int, reduction: str, weight: Callable[[Any], float] | None
) -> tuple[list[Any], list[End]]:
    """The inputs and the ends of each microbatch. Raises ValueError for what is no batch."""
    if not (isinstance(batch, tuple | list) and len(batch) == 2):
        raise ValueError(f"A batch is a {type(batch).__name__}, but batches must be pairs (inputs, targets).")
    inputs, targets = batch
    xs, ys = split_batch(inputs, targets, m)
    return xs, ends_of(ys, reduction, weight)
