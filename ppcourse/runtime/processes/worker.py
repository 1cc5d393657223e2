"""The orders that a rank process carries out: open a job, steps, what became of the weights, close."""

from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from ppcourse.runtime.checkpoints.checkpoint import Part, restore, save
from ppcourse.runtime.clock import Clock, Pace, StreamClock
from ppcourse.runtime.interpreter import Interpreter
from ppcourse.runtime.links.by_name import open_link
from ppcourse.runtime.links.lanes import StreamLanes
from ppcourse.runtime.links.link import Link
from ppcourse.runtime.links.nccl import Communicator
from ppcourse.runtime.links.shared import Peer
from ppcourse.runtime.machine import gpus
from ppcourse.runtime.machine.device import enter, generators, here, move, there
from ppcourse.runtime.machine.moments import CudaMoments
from ppcourse.runtime.machine.streams import streams_of
from ppcourse.runtime.meter import Meter, meter_of
from ppcourse.runtime.processes.board import Board, State
from ppcourse.runtime.processes.call import call
from ppcourse.runtime.processes.job import Job, Report
from ppcourse.runtime.processes.look import look
from ppcourse.runtime.stages.autocast import within
from ppcourse.runtime.stages.stage import End, Stage
from ppcourse.runtime.tracing import traced
from ppcourse.runtime.values.sparse import parted
from ppcourse.schedules.channels import Channel
from ppcourse.schedules.schedule import Schedule


class Worker:
    """The orders that a rank carries out."""

    def __init__(self, rank: int, board: Board, peers: Mapping[int, Peer]) -> None:
        self.rank, self.board, self.peers = rank, board, peers
        self.interpreter: Interpreter | None = None
        self.link: Link | None = None
        self.communicators: dict[Channel, Communicator] = {}  # as long as the pool, over all jobs
        self.step_number = 0

    def open(self, job: Job) -> None:
        """Set up stages, link and clock."""
        self.job, self.step_number, self.link = job, 0, None
        if job.device != "cpu" and job.link.partition(":")[0] == "nccl":
            gpus.load_all_kernels()
        enter(job.device)
        move(job.loss_fn, job.device)
        last = job.plan.num_stages - 1
        self.stages = {
            s: Stage(layers, job.loss_fn if s == last else None, job.seed, job.recompute, job.twins)
            for s, layers in job.layers.items()
        }
        self.model = nn.ModuleDict({str(n): layer for layers in job.layers.values() for n, layer in layers.items()})
        move(self.model, job.device)
        for stage in self.stages.values():
            stage.generators = generators(job.device)
            if job.autocast:
                stage.autocast = partial(within, job.autocast, job.device)
        if not job.training:
            self.model.eval()
        if job.trainer:
            job.trainer.open(self.model)
        self.meter = meter_of(self.model, job.device) if job.memory else Meter()
        self.follow(job.plan)

    def follow(self, plan: Schedule) -> None:
        """From now on go by this plan, which has the stages of the job's."""
        pace = self.job.pace
        device = torch.device(self.job.device)
        moments = None if device.type == "cpu" else CudaMoments(device)
        plain = StreamClock(moments) if moments else Clock()
        clock = Pace(pace, plan.num_stages, moments) if pace else plain
        latency = pace.comm if pace else 0.0
        if self.link:
            self.link.close()
        self.link = open_link(self.job.link, plan, self.rank, self.peers, latency, self.job.device, self.communicators)
        self.interpreter = Interpreter(plan, self.rank, self.stages, self.link, clock, self.board, self.meter)
        self.interpreter.keep_sent = self.job.keep_sent
        if moments and plan.pairs[self.rank]:
            self.interpreter.lanes = StreamLanes(streams_of(device))
        if self.job.files.profiler:
            self.interpreter.named = torch.profiler.record_function

    def step(self, inputs: dict[int, Any], ends: dict[int, End], extras: dict[int, dict[str, Any]]) -> Report:
        """One step: every action of the row."""
        assert self.interpreter is not None
        assert self.link is not None
        inputs, ends, extras = there((inputs, ends, extras), self.job.device)
        stages = self.stages.values()
        for stage in stages:
            stage.begin(self.step_number, extras)
        self.meter.leave_out((inputs, ends, extras))
        self.meter.reset()
        with torch.set_grad_enabled(self.job.training), traced(self.job.files):
            self.link.begin()
            self.board.write(self.rank, State.WAITING, 0, self.interpreter.finished)
            barrier()
            step = self.interpreter.run(inputs, ends)
            self.link.finish()
        self.step_number += 1
        memory = self.meter.memory(self.job.trainer.made if self.job.trainer else None)
        return Report(
            loss=float(sum(loss.double() for stage in stages for loss in stage.losses)),
            outputs=here(step.outputs),
            spans=step.spans,
            peak_held=step.peak_held,
            messages=self.link.sent_messages,
            message_bytes=self.link.sent_bytes,
            memory=memory and memory.with_link(self.link.buffers),
        )

    def update(self) -> float:
        """One optimizer step over all ranks; the global norm of the gradients before it."""
        assert self.job.trainer
        return self.job.trainer.update()

    def gradients(self) -> dict[str, Any]:
        """Sparse ones in their parts."""
        named = self.model.named_parameters(remove_duplicate=False)
        return here({name: parted(weight.grad) for name, weight in named})  # type: ignore[no-any-return]

    def state(self) -> dict[str, Any]:
        """Weights and buffers, and what else layers give as their state."""
        return {name: here(_detached(value)) for name, value in self.model.state_dict().items()}

    def save(self, folder: str, first: Mapping[str, str]) -> Part:
        """Write this rank's part of a checkpoint; all ranks do so together."""
        assert self.job.trainer
        return save(Path(folder), self.rank, self.model, self.job.trainer, first)

    def restore(self, folder: str, first: Mapping[str, str], step: int, optimizer: str | None) -> str | None:
        """Go on after `step` steps, from a checkpoint that an optimizer of this class wrote; another class's name, if
        this rank's is of another, and then nothing has been restored."""
        assert self.job.trainer
        own = self.job.trainer.made
        if own is not None and optimizer not in (None, type(own).__name__):
            return type(own).__name__
        restore(Path(folder), self.model, self.job.trainer, first)
        self.step_number = step  # which random numbers follow
        return None

    def look(self, *arguments: Any) -> str | None:
        """Pass a microbatch through a model: what is wrong with it, or None."""
        return look(*arguments)

    def call(self, function: Callable[[int], Any], limit: float) -> Any:
        """What a function of the rank returns, or where it stands after `limit` seconds."""
        return call(function, self.rank, limit)

    def close(self) -> None:
        """Forget the job."""
        if self.link:
            self.link.close()
        self.interpreter = self.link = None
        self.__dict__.pop("model", None)
        self.__dict__.pop("stages", None)
        self.__dict__.pop("job", None)
        self.__dict__.pop("meter", None)


def _detached(value: Any) -> Any:
    return value.detach() if isinstance(value, Tensor) else value


def barrier() -> None:
    """Wait for all ranks."""
    if dist.is_initialized() and dist.get_world_size() > 1:
        dist.barrier()
