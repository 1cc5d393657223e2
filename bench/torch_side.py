"""torch.distributed.pipelining in ranks of its own, which bench/against_torch.py asks for one step at a time.

gpipe and 1f1b are torch's own classes. Every other plan is ours, loaded from its CSV, so that both sides run the same
order. An action is timed, and paced, around the methods of torch's stage that do it.

A paced action starts by the rule of clock.py: at its predecessor's deadline, or when what it waited for came. torch
does not say when a message came, so that is when torch's wait for it ended, and only if it lasted longer than HERE; all
else that torch does between two actions is taken from the nominal time of the next one. That errs in torch's favour.
"""

import multiprocessing
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, NamedTuple
from unittest import mock

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleGPipe, schedules

import ppcourse as pp
from ppcourse.analysis.timeline import Span, Timeline
from ppcourse.runtime.clock import Clock, Pace
from ppcourse.runtime.machine import system
from ppcourse.runtime.meter import LiveBytes
from ppcourse.schedules.action import Op

HERE = 0.0001  # seconds that a wait for what has long come may take
CPU = torch.device("cpu")
torchs_wait = schedules._wait_batch_p2p
runtime: Any = schedules._PipelineScheduleRuntime  # has no types


class Work(NamedTuple):
    """What both sides are given. The functions are called on the ranks."""

    name: str
    p: int
    m: int
    v: int
    model: Callable[[], list[nn.Module]]  # one module a stage
    batch: Callable[[], tuple[Tensor, Tensor]]
    loss_fn: Callable[[Tensor, Tensor], Tensor]
    pace: pp.Costs | None = None

    @property
    def plan(self) -> pp.Schedule:
        return pp.build(self.name, self.p, self.m, self.v)


class Answer(NamedTuple):
    """One rank's account of one step; the loss is the mean over microbatches, 0 where there is none."""

    spans: list[Span]
    loss: float
    peak_bytes: int


class TorchRanks:
    """p processes, forked before this one has done anything with torch."""

    def __init__(self, p: int) -> None:
        context = multiprocessing.get_context("fork")
        self._folder = tempfile.TemporaryDirectory()
        self._pipes, self.processes = [], []
        for rank in range(p):
            here, there = context.Pipe()
            self.processes.append(
                context.Process(target=live, args=(rank, p, Path(self._folder.name), there), daemon=True)
            )
            self.processes[-1].start()
            self._pipes.append(here)

    def load(self, work: Work) -> None:
        """Build model and schedule, and take a first step, in which torch learns the shapes."""
        self._ask(work)

    def step(self) -> tuple[Timeline, float]:
        """All spans on one clock, and the loss."""
        answers: list[Answer] = self._ask("step")
        spans = [span for answer in answers for span in answer.spans]
        return Timeline.of("torch", len(answers), tuple(spans), "measured"), sum(answer.loss for answer in answers)

    def peak_bytes(self) -> tuple[int, ...]:
        """Of each rank, the most bytes alive in a step of a schedule that is built anew under the meter."""
        return tuple(answer.peak_bytes for answer in self._ask("memory"))

    def close(self) -> None:
        for pipe in self._pipes:
            pipe.send(None)
        for process in self.processes:
            process.join()
        self._folder.cleanup()

    def _ask(self, question: Any) -> list[Any]:
        for pipe in self._pipes:
            pipe.send(question)
        return [pipe.recv() for pipe in self._pipes]


def live(rank: int, p: int, folder: Path, pipe: Connection) -> None:
    """The life of a rank."""
    system.sleep_precisely()
    torch.set_num_threads(1)
    os.environ.update(system.gloo_environment())
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=p)
    dist.barrier()
    side: TorchSide | None = None
    while (question := pipe.recv()) is not None:
        if isinstance(question, Work):
            side = TorchSide(question, rank, folder)
            pipe.send(side.step())
        else:
            assert side is not None
            pipe.send(side.step() if question == "step" else side.memory())
    os._exit(0)


class TorchSide:
    """One rank of torch's."""

    def __init__(self, work: Work, rank: int, folder: Path) -> None:
        self.work, self.rank, self.plan, self.folder = work, rank, work.plan, folder
        self.inputs, self.targets = work.batch()
        whole = work.model()
        self.modules = {s: whole[s] for s in self.plan.placement.stages_of(rank)}
        self.clock = Pace(work.pace, self.plan.num_stages) if work.pace else Clock()
        self.build()

    def build(self) -> None:
        stages = [TimedStage(self, module, s) for s, module in self.modules.items()]
        m, loss_fn = self.work.m, self.work.loss_fn
        if self.plan.name in ("gpipe", "1f1b"):
            kind = ScheduleGPipe if self.plan.name == "gpipe" else Schedule1F1B
            self.schedule: Any = kind(stages[0], m, loss_fn=loss_fn)
        else:
            self.schedule = runtime(stages, m, loss_fn=loss_fn)
            path = self.folder / f"plan-{self.rank}.csv"
            self.plan.to_csv(path)
            self.schedule._load_csv(str(path))

    def step(self) -> Answer:
        self.spans: list[Span] = []
        losses: list[Tensor] = []
        first, last = 0 in self.modules, self.plan.num_stages - 1 in self.modules
        targets = {"target": self.targets, "losses": losses} if last else {}
        self.clock.begin()
        self.came = 0.0
        dist.barrier()
        with mock.patch.object(schedules, "_wait_batch_p2p", self.wait):
            self.schedule.step(*([self.inputs] if first else []), return_outputs=False, **targets)
        return Answer(self.spans, float(sum(loss.detach() for loss in losses)) / len(losses) if losses else 0.0, 0)

    def memory(self) -> Answer:
        meter = LiveBytes(nn.ModuleList(self.modules.values()))
        with meter:
            self.build()
            self.step()
            meter.reset()
            return self.step()._replace(peak_bytes=meter.peak)

    def wait(self, work: list[dist.Work]) -> None:
        """As torch waits; `came` is when the last wait ended that was one."""
        began = time.perf_counter()
        torchs_wait(work)
        now = time.perf_counter()
        if now - began > HERE:
            self.came = now

    def timed(self, action: pp.Action, do: Callable[[], Any]) -> Any:
        start = self.clock.start(self.came)
        result = do()
        self.clock.worked()
        self.spans.append(Span(self.rank, action, start, self.clock.end(action)))
        self.came = 0.0
        return result


class TimedStage(PipelineStage):
    """torch's stage, whose actions are timed; the microbatch is the first argument of each."""

    def __init__(self, side: TorchSide, module: nn.Module, number: int) -> None:
        super().__init__(module, number, side.plan.num_stages, CPU)
        self.side = side

    def forward_one_chunk(self, *args: Any, **options: Any) -> Any:
        return self._timed(Op.F, super().forward_one_chunk, args, options)

    def backward_one_chunk(self, *args: Any, **options: Any) -> Any:
        op = Op.B if options.get("full_backward", True) else Op.I  # torch gives it by name
        return self._timed(op, super().backward_one_chunk, args, options)

    def backward_weight_one_chunk(self, *args: Any, **options: Any) -> Any:
        return self._timed(Op.W, super().backward_weight_one_chunk, args, options)

    def _timed(self, op: Op, do: Callable[..., Any], args: Any, options: Any) -> Any:
        action = pp.Action(self.stage_index, op, args[0])
        return self.side.timed(action, lambda: do(*args, **options))


FIRST_STEP = """
import os, sys, time
import torch, torch.distributed as dist, torch.multiprocessing as mp
from torch import nn
from torch.distributed.pipelining import PipelineStage, Schedule1F1B

def rank_main(rank, folder):
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=4)
    stage = PipelineStage(nn.Sequential(nn.Linear(64, 64), nn.Tanh()), rank, 4, torch.device("cpu"))
    schedule = Schedule1F1B(stage, 8, loss_fn=nn.functional.mse_loss)
    x = torch.randn(16, 64)
    schedule.step(*([x] if rank == 0 else []), **({"target": x} if rank == 3 else {}))
    os.write(1, f"{time.perf_counter()}\\n".encode())  # four ranks share the pipe: a line must go in one piece

if __name__ == "__main__":
    print(time.perf_counter(), flush=True)
    mp.spawn(rank_main, (sys.argv[1],), nprocs=4)
"""


def first_step() -> float:
    """Seconds from none to the end of a first step on four ranks, spawned as torch.multiprocessing does it."""
    with tempfile.TemporaryDirectory() as folder:
        script = Path(folder) / "start.py"
        script.write_text(FIRST_STEP)
        done = subprocess.run([sys.executable, str(script), folder], capture_output=True, text=True, check=True)
    began, *ended = map(float, done.stdout.split())
    return max(ended) - began
