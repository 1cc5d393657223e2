"""run and evaluate: check everything → ship → collect."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from ppcourse.runtime.errors import briefly
from ppcourse.runtime.layers import Model, layers_of
from ppcourse.runtime.links.carriers import choose
from ppcourse.runtime.prepare import Plan, check_function, check_options, check_trains, check_weights, cut, resolve_plan
from ppcourse.runtime.processes.job import Job, Report
from ppcourse.runtime.processes.probe import probe
from ppcourse.runtime.processes.session import session
from ppcourse.runtime.profile import partition_by_profile
from ppcourse.runtime.result import Evaluation, Result, bytes_of
from ppcourse.runtime.stages.batch import Batch, batch_of, join, reduction_of, split_batch, split_extras
from ppcourse.runtime.stages.stage import End, LossFunction
from ppcourse.runtime.stages.statistics import check_statistics, twins_in
from ppcourse.runtime.tracing import files_of
from ppcourse.runtime.values.extras import check_extras
from ppcourse.schedules.costs import Costs
from ppcourse.schedules.forward_only import forward_only
from ppcourse.schedules.schedule import Schedule

CROSS_ENTROPY = "torch.nn.functional.cross_entropy"


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
    extras: Mapping[str, Any] | None = None,
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
    profiler: str | Path | None = None,
    snapshot: str | Path | None = None,
) -> Result:
    """One training step of `model` on real ranks, as `plan` orders it; the caller's model stays as it is.

    plan             a Schedule, the name of one (then p and m are needed), or rows such as ["0F0 0B0", "1F0 1B0"]
    model            an nn.Sequential or a list of layers; each receives what the one before it returned
    inputs, targets  tensors, or tuples of them, split into m microbatches along dimension 0
    loss_fn          (output, target) of one microbatch → one number
    extras           {name: what every layer gets whose forward has a parameter of that name after the data}, such as a
                     mask. A tensor with as many rows as the batch is split with it; every microbatch gets all of
                     anything else, and of pp.Whole(tensor)
    reduction        "mean": Σ wᵢLᵢ ÷ Σ wᵢ; "sum": Σ Lᵢ; by default loss_fn.reduction, else mean
    weight           target of a microbatch → wᵢ; by default its number of rows
    partition        "uniform", "parameters", "profiled" (by times measured here first), or the layers of each stage
    device           "cpu", "cuda", or "auto": the GPUs, if there are any
    link             what carries messages: on the CPU "shared" or "gloo", on GPUs "nccl" or "staged", or "auto" for
                     the fastest that can be had here
    pace             costs in seconds: every action lasts its nominal time, so that any machine shows the
                     pipeline's true shape; the result is then called paced
    memory           also measure bytes (slower: do not read times from such a run)
    recompute        keep only the inputs of each stage, and run forward again before backward
    keep_sent        keep what a stage has sent until its backward, which does not need it: to see what that costs
    seed             of the layers' random numbers, which depend on layer and microbatch but not on the plan
    timeout          seconds without any rank finishing an action, after which the step is given up
    profiler         a file to which each rank adds its number and writes a Chrome trace: trace-rank-0.json
    snapshot         the same with the history of a GPU's memory

    Raises ValueError, before any rank starts, for what cannot work, and RankError if a rank fails.
    """
    resolved = check_trains(resolve_plan(plan, p, m, v))
    carrier = check_options(resolved, device, link, pace, seed, timeout)
    devices, _ = choice = choose(device, link, resolved.num_ranks)
    files = files_of(profiler, snapshot, devices)
    kind = reduction_of(check_function(loss_fn, "loss_fn", CROSS_ENTROPY), reduction)
    given = check_extras(extras, layers_of(model))
    batch = batch_of(inputs, targets, given, resolved.num_microbatches, kind, weight)
    made = cut(resolved, model, partition_by_profile(partition, resolved, model, batch, loss_fn))
    check_weights(made, loss_fn)
    twins = check_statistics(made)
    probe(made, batch, loss_fn)

    def job(rank: int) -> Job:
        options = pace, memory, recompute, seed, None, keep_sent
        told = Job(resolved, made.of_rank(rank), loss_fn, *options, twins=twins, link=carrier)
        return replace(told, device=devices[rank], files=files[rank])

    with session(made, job, timeout) as ranks:
        reports = ranks.step(batch)
        grads = ranks.gradients()
    return Result(
        loss=sum(report.loss for report in reports),
        grads=grads,
        timeline=ranks.timeline(reports),
        device=choice.device,
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
    extras: Mapping[str, Any] | None = None,
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
    carrier = check_options(resolved, device, link, pace, seed, timeout)
    devices, m = choose(device, link, resolved.num_ranks).devices, resolved.num_microbatches
    given = check_extras(extras, layers_of(model))
    if targets is None:
        xs, _ = split_batch(inputs, None, m)
        batch = Batch(xs, [End(None, 0.0)] * m, split_extras(given, m, inputs))
    else:
        kind = reduction_of(check_function(loss_fn, "loss_fn", CROSS_ENTROPY), reduction)
        batch = batch_of(inputs, targets, given, m, kind, weight)
    judge = None if targets is None else loss_fn
    made = cut(resolved, model, partition_by_profile(partition, resolved, model, batch, judge))
    options: dict[str, Any] = {"seed": seed, "training": False, "link": carrier, "twins": twins_in(made)}

    def job(rank: int) -> Job:
        return Job(resolved, made.of_rank(rank), judge, pace, device=devices[rank], **options)

    with session(made, job, timeout) as ranks:
        reports = ranks.step(batch)
    outputs = {i: output for report in reports for i, output in report.outputs.items()}
    return Evaluation(
        outputs=join([outputs[i] for i in range(resolved.num_microbatches)]),
        loss=None if targets is None else sum(report.loss for report in reports),
        timeline=ranks.timeline(reports),
    )


def measured(plan: Schedule, reports: Sequence[Report]) -> dict[str, Any]:
    """What the ranks' reports say of memory and messages, under the names of a Result."""
    share = plan.num_ranks / plan.num_stages
    return {
        "peak_in_flight": tuple(report.peak_held * share for report in reports),
        **bytes_of(plan.name, [report.memory for report in reports]),
        "messages": sum(report.messages for report in reports),
        "message_bytes": sum(report.message_bytes for report in reports),
    }
