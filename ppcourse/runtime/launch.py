"""run, evaluate, train: check everything → ship → collect."""

import functools
import itertools
from collections.abc import Callable, Iterable, Sequence
from typing import Any, ParamSpec, TypeVar

import torch
from torch import nn
from tqdm.auto import tqdm

from ppcourse.runtime.batch import ends_of, join, reduction_of, split_batch
from ppcourse.runtime.errors import RankError
from ppcourse.runtime.job import Job, Report
from ppcourse.runtime.prepare import (
    Model,
    Plan,
    check_count,
    check_function,
    check_options,
    check_trains,
    cut,
    layers_of,
    resolve_plan,
)
from ppcourse.runtime.probe import probe
from ppcourse.runtime.result import Evaluation, Result, Training
from ppcourse.runtime.session import session
from ppcourse.runtime.stage import End, LossFunction
from ppcourse.runtime.training import Trainer
from ppcourse.schedules.costs import Costs
from ppcourse.schedules.schedule import Schedule, forward_only

P = ParamSpec("P")
R = TypeVar("R")
CROSS_ENTROPY = "torch.nn.functional.cross_entropy"


def briefly(function: Callable[P, R]) -> Callable[P, R]:
    """Let a RankError come without the driver's own traceback: the rank's is the one that says something."""

    @functools.wraps(function)
    def brief(*args: P.args, **kwargs: P.kwargs) -> R:
        try:
            return function(*args, **kwargs)
        except RankError as error:
            raise error.with_traceback(None) from None

    return brief


@briefly
def run(
    plan: Plan,
    model: Model,
    inputs: Any,
    targets: Any,
    *,
    loss_fn: LossFunction,
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
    seed: int = 0,
    timeout: float = 60.0,
) -> Result:
    """One training step of `model` on real ranks, as `plan` orders it; the caller's model stays as it is.

    plan             a Schedule, the name of one (then p and m are needed), or rows such as ["0F0 0B0", "1F0 1B0"]
    model            an nn.Sequential or a list of layers; each receives what the one before it returned
    inputs, targets  tensors, or tuples of them, split into m microbatches along dimension 0
    loss_fn          (output, target) of one microbatch → one number
    reduction        "mean": Σ wᵢLᵢ ÷ Σ wᵢ; "sum": Σ Lᵢ; by default loss_fn.reduction, else mean
    weight           target of a microbatch → wᵢ; by default its number of rows
    partition        "uniform", "parameters", or the number of layers of each stage
    pace             costs in seconds: every action lasts its nominal time, so that any machine shows the
                     pipeline's true shape; the result is then called paced
    memory           also measure bytes (slower: do not read times from such a run)
    recompute        keep only the inputs of each stage, and run forward again before backward
    seed             of the layers' random numbers, which depend on layer and microbatch but not on the plan
    timeout          seconds without any rank finishing an action, after which the step is given up

    Raises ValueError, before any rank starts, for what cannot work, and RankError if a rank fails.
    """
    resolved = check_trains(resolve_plan(plan, p, m, v))
    made = cut(resolved, model, partition)
    carrier = check_options(resolved, device, link, pace, timeout)
    kind = reduction_of(check_function(loss_fn, "loss_fn", CROSS_ENTROPY), reduction)
    xs, ys = split_batch(inputs, targets, resolved.num_microbatches)
    ends = ends_of(ys, kind, weight)
    probe(layers_of(model), xs[0], ys[0], loss_fn)

    def job(rank: int) -> Job:
        return Job(resolved, made.of_rank(rank), loss_fn, pace, memory, recompute, seed)

    with session(made, job, timeout) as ranks:
        reports = ranks.step(xs, ends)
        grads = ranks.gradients()
    return Result(
        loss=sum(report.loss for report in reports),
        grads=grads,
        timeline=ranks.timeline(reports),
        device="cpu",
        link=carrier,
        **measured(resolved, reports),
    )


@briefly
def evaluate(
    plan: Plan,
    model: Model,
    inputs: Any,
    targets: Any = None,
    *,
    loss_fn: LossFunction | None = None,
    p: int | None = None,
    m: int | None = None,
    v: int | None = None,
    reduction: str | None = None,
    weight: Callable[[Any], float] | None = None,
    partition: str | Sequence[int] = "uniform",
    device: str = "auto",
    link: str = "auto",
    pace: Costs | None = None,
    seed: int = 0,
    timeout: float = 60.0,
) -> Evaluation:
    """A forward pass on real ranks, layers in eval mode: the plan's order without its backward.

    Leaves the caller's model, its gradients and its statistics as they are. Arguments and errors are those of
    `run`; the loss is computed if there are targets.
    """
    resolved = forward_only(resolve_plan(plan, p, m, v))
    made = cut(resolved, model, partition)
    check_options(resolved, device, link, pace, timeout)
    xs, ys = split_batch(inputs, targets, resolved.num_microbatches)
    ends = [End(None, 0.0)] * len(xs)
    if targets is not None:
        kind = reduction_of(check_function(loss_fn, "loss_fn", CROSS_ENTROPY), reduction)
        ends = ends_of(ys, kind, weight)

    def job(rank: int) -> Job:
        return Job(
            resolved,
            made.of_rank(rank),
            None if targets is None else loss_fn,
            pace,
            seed=seed,
            training=False,
        )

    with session(made, job, timeout) as ranks:
        reports = ranks.step(xs, ends)
    outputs = {i: output for report in reports for i, output in report.outputs.items()}
    return Evaluation(
        outputs=join([outputs[i] for i in range(resolved.num_microbatches)]),
        loss=None if targets is None else sum(report.loss for report in reports),
        timeline=ranks.timeline(reports),
    )


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
    made = cut(resolved, model, partition)
    carrier = check_options(resolved, device, link, pace, timeout)
    check_function(optimizer, "optimizer", "torch.optim.SGD or functools.partial(torch.optim.AdamW, lr=1e-3)")
    kind = reduction_of(check_function(loss_fn, "loss_fn", CROSS_ENTROPY), reduction)
    check_count(steps, "steps")
    if clip_norm is not None and not clip_norm > 0:
        raise ValueError(f"clip_norm is {clip_norm!r}; it is a number above 0, or None for no limit.")

    def microbatches(batch: Any) -> tuple[list[Any], list[End]]:
        if not (isinstance(batch, tuple | list) and len(batch) == 2):
            raise ValueError(f"A batch is a {type(batch).__name__}, but batches must be pairs (inputs, targets).")
        inputs, targets = batch
        xs, ys = split_batch(inputs, targets, resolved.num_microbatches)
        return xs, ends_of(ys, kind, weight)

    coming = map(microbatches, batches)
    first = next(coming, None)  # looked at before a rank starts
    if first is None:
        raise ValueError("There is no batch; batches must have at least one pair (inputs, targets).")

    def job(rank: int) -> Job:
        trainer = Trainer(optimizer, clip_norm, made.ties(rank))
        return Job(resolved, made.of_rank(rank), loss_fn, pace, memory, recompute, seed, trainer)

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


def measured(plan: Schedule, reports: Sequence[Report]) -> dict[str, Any]:
    """What the ranks' reports say of memory and messages, under the names of a Result."""
    share = plan.num_ranks / plan.num_stages
    return {
        "peak_in_flight": tuple(report.peak_held * share for report in reports),
        "peak_bytes": _per_rank(report.peak_bytes for report in reports),
        "held_bytes": _per_rank(report.held_bytes for report in reports),
        "messages": sum(report.messages for report in reports),
        "message_bytes": sum(report.message_bytes for report in reports),
    }


def _per_rank(numbers: Iterable[int | None]) -> tuple[int, ...] | None:
    known = tuple(number for number in numbers if number is not None)
    return known or None
