"""One process and no pipeline: the oracle that runs are held against."""

import copy
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from ppcourse.analysis.timeline import Span, Timeline
from ppcourse.runtime.layers import Model, layers_of
from ppcourse.runtime.meter import Between, Meter, meter_of
from ppcourse.runtime.prepare import check_count, check_function, check_seed
from ppcourse.runtime.result import Result, bytes_of
from ppcourse.runtime.stages.autocast import outside
from ppcourse.runtime.stages.batch import ends_of, reduction_of, split_batch, split_extras
from ppcourse.runtime.stages.stage import End, LossFunction, seed_for
from ppcourse.runtime.values.extras import call, check_extras, judge, taken_by
from ppcourse.runtime.values.sparse import joined, parted
from ppcourse.runtime.values.together import copied
from ppcourse.schedules.action import Action, Op


def reference_step(
    model: Model,
    inputs: Any,
    targets: Any,
    *,
    loss_fn: LossFunction,
    m: int = 1,
    extras: Mapping[str, Any] | None = None,
    reduction: str | None = None,
    weight: Callable[[Any], float] | None = None,
    memory: bool = False,
    seed: int = 0,
) -> Result:
    """One training step of the whole model on a copy of it, in this process, `m` microbatches one after another.

    The same arguments, errors and result as `run`, without ranks, links or a schedule. With m=1 the batch is
    not split at all. With `memory`, bytes are measured too: what one process holds without a pipeline. The caller's
    model and random state stay as they are.
    """
    check_count(m, "m, the number of microbatches,")
    check_seed(seed)
    kind = reduction_of(check_function(loss_fn, "loss_fn", "torch.nn.functional.cross_entropy"), reduction)
    xs, ys = split_batch(inputs, targets, m)
    whole = nn.Sequential(*copy.deepcopy(layers_of(model)))
    more = split_extras(check_extras(extras, list(whole)), m, inputs)
    takes = [taken_by([layer]) for layer in whole]
    whole.zero_grad(set_to_none=True)
    meter = meter_of(whole) if memory else Meter()
    meter.leave_out((xs, ys, more))
    meter.reset()
    spans, total, zero = [], 0.0, time.perf_counter()
    with torch.random.fork_rng(devices=[]), torch.enable_grad():
        for i, (x, end) in enumerate(zip(xs, ends_of(ys, kind, weight), strict=True)):
            x, end = copied((x, end))  # what is not split, every microbatch and the caller have too
            meter.turn_to((0, i))
            began = time.perf_counter() - zero
            with meter:
                loss = _loss(whole, x, end, loss_fn, (seed, i), takes, more[i])
            between = time.perf_counter() - zero
            meter.boundary(Between(stashed=[(0, i)]))
            with meter:
                if loss.requires_grad:
                    with outside():
                        torch.autograd.backward(loss)
            total += float(loss.detach().double())
            del loss
            meter.boundary()
            spans += [Span(0, Action(0, Op.F, i), began, between)]
            spans += [Span(0, Action(0, Op.B, i), between, time.perf_counter() - zero)]
    grads = {name: joined(parted(weight.grad)) for name, weight in whole.named_parameters()}
    timeline = Timeline.of("reference", 1, spans, "measured")
    measured = meter.memory()
    found = bytes_of("reference", [measured and measured.with_link((0, 0))])  # nobody to send to
    return Result(total, grads, timeline, peak_in_flight=(1.0,), **found)


def _loss(
    whole: nn.Sequential,
    x: Any,
    end: End,
    loss_fn: LossFunction,
    source: tuple[int, int],
    takes: Sequence[set[str]],
    extras: dict[str, Any],
) -> Tensor:
    """What a microbatch's loss counts in that of the batch; random numbers come from seed and microbatch."""
    seed, i = source
    for number, layer in enumerate(whole):
        seed_for(seed, 0, number, i)
        x = call(number, layer, x, takes[number], extras)
    loss = judge(loss_fn, x, end.target)
    return loss * end.scale if end.scale else torch.zeros_like(loss.detach())  # as a stage does
