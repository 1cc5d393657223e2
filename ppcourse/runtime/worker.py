"""What runs in a rank process: wait for an order, carry it out, answer.

Orders come through a pipe as pickled (function name, arguments) of Worker; answers go back packed (wire.py).
The first failure is answered too; after it the driver stops every rank.
"""

import gc
import linecache
import os
import pickle
import signal
import sys
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from ppcourse.analysis.timeline import Span
from ppcourse.runtime import system, wire
from ppcourse.runtime.board import Board
from ppcourse.runtime.clock import Clock, Pace
from ppcourse.runtime.errors import Failure
from ppcourse.runtime.interpreter import Interpreter
from ppcourse.runtime.link import GlooLink, Link
from ppcourse.runtime.meter import LiveBytes, Meter
from ppcourse.runtime.shipping import Order
from ppcourse.runtime.stage import End, LossFunction, Stage
from ppcourse.runtime.training import Trainer
from ppcourse.schedules.costs import Costs
from ppcourse.schedules.schedule import Schedule

UP = b"up"  # what a rank says first


@dataclass(frozen=True)
class Job:
    """What a rank needs to know before its first step.

    layers    {stage: {number in the whole model: layer}}, this rank's only
    loss_fn   used where the last stage lives
    trainer   makes and holds this rank's optimizer
    training  False: forward only, layers in eval mode, no gradients
    """

    plan: Schedule
    layers: dict[int, dict[int, nn.Module]]
    loss_fn: LossFunction | None = None
    pace: Costs | None = None
    memory: bool = False
    recompute: bool = False
    seed: int = 0
    trainer: Trainer | None = None
    training: bool = True


@dataclass(frozen=True)
class Report:
    """One rank's account of one step. Bytes are None unless memory was measured."""

    loss: float
    outputs: dict[int, Any]
    spans: list[Span]
    peak_held: int
    messages: int
    message_bytes: int
    peak_bytes: int | None
    held_bytes: int | None


class Worker:
    """The orders that a rank carries out."""

    def __init__(self, rank: int, board: Board) -> None:
        self.rank, self.board = rank, board
        self.interpreter: Interpreter | None = None
        self.link: Link | None = None
        self.step_number = 0

    def open(self, job: Job) -> None:
        """Set up stages, link and clock."""
        self.job, self.step_number = job, 0
        last = job.plan.num_stages - 1
        stages = {
            s: Stage(layers, job.loss_fn if s == last else None, job.seed, job.recompute)
            for s, layers in job.layers.items()
        }
        self.model = nn.ModuleDict(
            {str(n): layer for layers in job.layers.values() for n, layer in layers.items()}
        )
        if not job.training:
            self.model.eval()
        if job.trainer:
            job.trainer.open(self.model)
        clock = Pace(job.pace, job.plan.num_stages) if job.pace else Clock()
        self.link = GlooLink(job.plan, self.rank, job.pace.comm if job.pace else 0.0)
        self.meter = LiveBytes(self.model) if job.memory else Meter()
        self.interpreter = Interpreter(job.plan, self.rank, stages, self.link, clock, self.board, self.meter)

    def step(self, inputs: dict[int, Any], ends: dict[int, End]) -> Report:
        """One step: every action of the row."""
        assert self.interpreter and self.link
        stages = self.interpreter.stages.values()
        for stage in stages:
            stage.step, stage.losses = self.step_number, []
        self.meter.reset()
        with torch.set_grad_enabled(self.job.training):
            self.link.begin()
            barrier()
            step = self.interpreter.run(inputs, ends)
            self.link.finish()
        self.step_number += 1
        measured = self.job.memory
        return Report(
            loss=float(sum(loss.double() for stage in stages for loss in stage.losses)),
            outputs=step.outputs,
            spans=step.spans,
            peak_held=step.peak_held,
            messages=self.link.sent_messages,
            message_bytes=self.link.sent_bytes,
            peak_bytes=self.meter.peak if measured else None,
            held_bytes=self.meter.held if measured else None,
        )

    def update(self) -> float:
        """One optimizer step over all ranks; the global norm of the gradients before it."""
        assert self.job.trainer
        return self.job.trainer.update()

    def gradients(self) -> dict[str, Tensor | None]:
        return {name: p.grad for name, p in self.model.named_parameters(remove_duplicate=False)}

    def state(self) -> dict[str, Tensor]:
        """Weights and buffers."""
        return {name: value.detach() for name, value in self.model.state_dict().items()}

    def close(self) -> None:
        """Forget the job."""
        if self.link:
            self.link.close()
        self.interpreter = self.link = None
        self.__dict__.pop("model", None)
        self.__dict__.pop("job", None)
        self.__dict__.pop("meter", None)


def barrier() -> None:
    if dist.is_initialized() and dist.get_world_size() > 1:
        dist.barrier()


def rank_main(rank: int, num_ranks: int, pipe: Connection, folder: str) -> None:
    """The life of a rank process."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # an interrupt of the notebook is the driver's to handle
    system.die_with_parent()
    system.sleep_precisely()
    system.speak_into(Path(folder) / f"rank-{rank}.log")
    torch.set_num_threads(1)
    gc.freeze()  # modules are here to stay: collections need not look through them
    worker = Worker(rank, Board(Path(folder) / "board", num_ranks))
    if num_ranks > 1:
        os.environ.update(system.gloo_environment())
        store = dist.FileStore(  # type: ignore[attr-defined]
            str(Path(folder) / "store"), num_ranks
        )
        dist.init_process_group("gloo", store=store, rank=rank, world_size=num_ranks, timeout=system.FOREVER)
        barrier()
    pipe.send_bytes(UP)
    known = set(sys.modules)
    while (order := _next(pipe)) is not None:
        _serve(worker, pipe, order)
        if order.name == "close":
            system.forget_modules(known)
    os._exit(0)  # not sys.exit: threads of a broken link may never end


def _next(pipe: Connection) -> Order | None:
    try:
        return Order(*pickle.loads(pipe.recv_bytes()))
    except EOFError:
        return None


def _serve(worker: Worker, pipe: Connection, order: Order) -> None:
    """Carry out one order and answer with its result, or with a Failure."""
    try:
        sys.path[:] = order.path
        os.chdir(order.folder)
        linecache.cache.update(order.sources)
        answer = getattr(worker, order.name)(*pickle.loads(order.arguments))
        reply = wire.pack(answer)
    except BaseException as error:  # a learner's sys.exit() is a failure like any other
        action = worker.interpreter.now if worker.interpreter else None
        reply = wire.pack(Failure.of(worker.rank, action, error))
    sys.stdout.flush()
    sys.stderr.flush()
    pipe.send_bytes(reply.numpy().tobytes())
