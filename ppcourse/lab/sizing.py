"""What the demo says of memory and plans: a run's ledger beside its prediction, and the planner's first choice."""

import time
from typing import Any

import psutil
import torch
from torch import nn

from ppcourse.analysis.buffers import link_of
from ppcourse.analysis.hardware import GPU, Link
from ppcourse.analysis.ledger import KINDS, side_by_side
from ppcourse.analysis.memory import ledger
from ppcourse.analysis.partition import partition
from ppcourse.analysis.planner import choose
from ppcourse.analysis.shape import Shape
from ppcourse.runtime.profile import profile
from ppcourse.runtime.result import Result
from ppcourse.runtime.stages.stage import LossFunction
from ppcourse.schedules.schedule import Schedule

BUDGET = 0.3  # seconds for a profile of which only the bytes are used
LOCAL = Link("messages between processes", bandwidth=1e9, latency=1e-4)
SIZE, TRIES = 512, 5  # of a matrix product that is timed


def memory_table(
    plan: Schedule, model: nn.Sequential, inputs: Any, targets: Any, loss_fn: LossFunction, ran: Result
) -> str:
    """Predicted and measured bytes of each rank, by the kinds that a measurement tells apart.

    inputs, targets   one microbatch, for the profile that the prediction stands on
    ran               what was measured, and over which link
    """
    measured = ran.ledger
    assert measured
    cut = partition([1.0] * len(model), plan.num_stages, "uniform")
    sizes = profile(model, inputs, targets, loss_fn, budget=BUDGET).sizes(cut)
    predicted = ledger(plan, sizes, link=link_of(ran.link))
    known = [kind for kind in KINDS if kind in measured.rows[0]]
    return f"{plan.name}, {side_by_side(predicted, measured, kinds=known)}"


def first_choice(shape: Shape, ranks: int, batch: int) -> str:
    """What the planner would take for so many ranks of this machine, and what that assumes."""
    core = GPU("core of this machine", psutil.virtual_memory().total / ranks, core_speed(), "measured just now")
    choice = choose(shape, gpus=ranks, gpu=core, link=LOCAL, per_node=ranks, batch=batch, efficiency=1.0, top=1)
    return (
        f"{choice}\nAssumed: {ranks} ranks with a core each, {core.flops / 1e9:.0f} GFLOP/s a core (a matrix product of"
        f" {SIZE} x {SIZE}, in CPU time),\n1/{ranks} of the memory each, and messages of {LOCAL.latency * 1e6:.0f} µs"
        f" + size / {LOCAL.bandwidth / 1e9:g} GB/s. Activations and weights count as 16 bits."
    )


def core_speed() -> float:
    """Floating-point operations a second of one thread, the best of a few matrix products."""
    threads, matrix = torch.get_num_threads(), torch.ones(SIZE, SIZE)
    torch.set_num_threads(1)
    try:
        return 2 * SIZE**3 / min(_seconds(matrix) for _ in range(TRIES))
    finally:
        torch.set_num_threads(threads)


def _seconds(matrix: torch.Tensor) -> float:
    began = time.thread_time()
    matrix @ matrix
    return time.thread_time() - began
