"""This runtime next to torch.distributed.pipelining:  python bench/against_torch.py [--quick]

Same models, same plans, as many ranks, one thread each, gloo for torch. Both sides keep their ranks between steps and
take turns, so that what else the machine does falls on both. Prints a Markdown table; read the load before the numbers.
On a machine that others use too, `chrt -r 1 python bench/against_torch.py` puts both sides before them (Linux, root).
"""

import os
import statistics
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import TypeAlias

import psutil
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch_side import TorchRanks, Work, first_step

import ppcourse as pp
from ppcourse.runtime.data import batches, text_loss
from ppcourse.runtime.models import gpt, mlp
from ppcourse.runtime.prepare import check_options, cut
from ppcourse.runtime.processes import ranks
from ppcourse.runtime.processes.job import Job, Report
from ppcourse.runtime.processes.session import Session, session
from ppcourse.runtime.stages.batch import batch_of, split_batch

QUICK = "--quick" in sys.argv
SCHEDULES = (("gpipe", 1), ("1f1b", 1), ("interleaved", 2), ("zb-h1", 1), ("zb-v", 2))
SIZES = ((4, 8),) if QUICK else ((4, 8), (8, 32))
PACED_TURNS, REAL_TURNS, STARTS = (2, 2, 1) if QUICK else (5, 9, 3)
FORWARD = 0.010  # seconds of a rank's F, I and W of one microbatch; B lasts 20 ms
WIDTH = 64
LAYERS, GPT_WIDTH, CONTEXT, ROWS = 8, 512, 64, 2  # 25 million parameters; rows in a microbatch
REAL_M = 4 if QUICK else 8
PAIRS = ((0, 1), (0, 2), (1, 2))  # ours and torch's, ours and the best, torch's and the best
MB = 1e6

Step: TypeAlias = Callable[[], tuple[list[Report], Session]]


def main() -> None:
    print(
        f"{os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}, {psutil.cpu_percent(0.5):.0f}% busy before the start"
    )
    print(f"torch {torch.__version__}{', quick: few turns' if QUICK else ''}\n", flush=True)
    torchs = {p: TorchRanks(p) for p in (2, *(p for p, _ in SIZES))}  # before this process has threads
    torch.set_num_threads(1)
    row("", "ours", "torch", "ours ÷ torch", "wanted")
    row(*["---"] * 5)
    for p, m in SIZES:
        for name, v in SCHEDULES:
            paced(torchs[p], name, p, m, v)
    real(torchs[2])
    for side in torchs.values():
        side.close()
    starts()


def row(*cells: str) -> None:
    print("|", " | ".join(cells), "|", flush=True)


def compared(what: str, ours: float, torchs: float, unit: str, wanted: float, digits: int = 1) -> None:
    row(what, f"{ours:.{digits}f} {unit}", f"{torchs:.{digits}f} {unit}", f"{ours / torchs:.2f}", f"≤ {wanted:g}")


@contextmanager
def ours(work: Work, memory: bool = False) -> Iterator[Step]:
    """Our ranks with the model on them: a function that takes a step."""
    plan = work.plan
    stages = work.model()
    made = cut(plan, stages, (1,) * len(stages))
    link = check_options(plan, "cpu", "auto", work.pace, 0, 60.0)
    batch = batch_of(*work.batch(), {}, plan.num_microbatches, "mean", None)

    def job(rank: int) -> Job:
        return Job(plan, made.of_rank(rank), work.loss_fn, work.pace, memory, link=link)

    with session(made, job, 60.0) as ranks_at_work:
        yield lambda: (ranks_at_work.step(batch), ranks_at_work)


def equal_stages(num_stages: int) -> list[nn.Module]:
    """As little work as a stage can have: a paced step is to show what the runtime adds, also where cores are few."""
    return [nn.Linear(WIDTH, WIDTH) for _ in range(num_stages)]


def noise(count: int) -> tuple[Tensor, Tensor]:
    x = torch.randn(count, WIDTH, generator=torch.Generator().manual_seed(0))
    return x, x


def gpt_stages() -> list[nn.Module]:
    """Two stages of a GPT: the embedding with one half of the blocks, the other half with the head."""
    layers = list(gpt(LAYERS, GPT_WIDTH, heads=8, context=CONTEXT))
    half = len(layers) // 2
    return [nn.Sequential(*layers[:half]), nn.Sequential(*layers[half:])]


def text(m: int) -> tuple[Tensor, Tensor]:
    return next(batches(ROWS * m, CONTEXT, 1))


def paced(torchs: TorchRanks, name: str, p: int, m: int, v: int) -> None:
    """Milliseconds beyond the simulated makespan, medians."""
    pace = pp.Costs(FORWARD / v, FORWARD / v, FORWARD / v)
    work = Work(name, p, m, v, partial(equal_stages, p * v), partial(noise, 2 * m), F.mse_loss, pace)
    ideal = pp.simulate(work.plan, pace).makespan
    mine, theirs = [], []
    torchs.load(work)
    with ours(work) as step:
        step()
        for turn in range(PACED_TURNS):
            for ask in (0, 1) if turn % 2 else (1, 0):
                if ask:
                    reports, ranks_at_work = step()
                    mine.append(ranks_at_work.timeline(reports).makespan - ideal)
                else:
                    theirs.append(torchs.step()[0].makespan - ideal)
    what = f"paced, {name} p={p} m={m}: over the simulated {ideal * 1e3:.0f} ms"
    compared(what, 1e3 * statistics.median(mine), 1e3 * statistics.median(theirs), "ms", 0.5)


def real(torchs: TorchRanks, p: int = 2) -> None:
    """A GPT on two ranks: time, memory, and how close to what one process needs for the parts."""
    work = Work("1f1b", p, REAL_M, 1, gpt_stages, partial(text, REAL_M), text_loss)
    millions = sum(weight.numel() for stage in work.model() for weight in stage.parameters()) / 1e6
    what = f"GPT of {millions:.0f} M parameters, 1f1b p={p} m={REAL_M}: "
    both = Memory(ranks.pool_of(p).processes), Memory(torchs.processes)
    torchs.load(work)
    with ours(work) as step:
        turns = real_turns(work, torchs, step, both)
        grown = [memory.growth() for memory in both]
    mine, theirs, best = (statistics.median(seconds) for seconds in turns)
    told = [f"{1e3 * seconds:.0f} ms" for seconds in (mine, theirs)]
    ratio, *over = (statistics.median(a / b for a, b in zip(turns[i], turns[j], strict=True)) for i, j in PAIRS)
    row(what + "a step; the ratio is the median within a turn", *told, f"{ratio:.3f}", "≤ 1.02")
    parts = f"a step ÷ the best possible, {1e3 * best:.0f} ms, simulated from the parts in one process"
    row(what + parts, *(f"{quotient:.3f}" for quotient in over), "", "")
    with ours(work, memory=True) as step:
        step()
        metered = [report.memory.peak if report.memory else 0 for report in step()[0]]
    for rank, (one, other) in enumerate(zip(metered, torchs.peak_bytes(), strict=True)):
        compared(what + f"peak of live tensors, rank {rank}", one / MB, other / MB, "MB", 1.0)
    for rank, (one, other) in enumerate(zip(*grown, strict=True)):
        compared(what + f"growth of the process to its peak, rank {rank}", one / MB, other / MB, "MB", 1.0)


def real_turns(work: Work, torchs: TorchRanks, step: Step, both: Iterable["Memory"]) -> tuple[list[float], ...]:
    """Seconds of steps: ours, torch's, and the best possible in the same turn."""
    parts = Parts(work)
    mine, theirs, best = [], [], []
    step()
    for memory in both:
        memory.forget_peak()
    for turn in range(REAL_TURNS):
        best.append(parts.best_makespan())
        for ask in (0, 1) if turn % 2 else (1, 0):
            if ask:
                reports, ranks_at_work = step()
                mine.append(ranks_at_work.timeline(reports).makespan)
            else:
                timeline, loss = torchs.step()
                theirs.append(timeline.makespan)
    assert abs(sum(report.loss for report in reports) - loss) < 1e-4, "both must compute the same"
    return mine, theirs, best


class Parts:
    """The stages of a plan one after the other in this process: what each F and B takes if nobody waits."""

    def __init__(self, work: Work) -> None:
        self.work, self.stages = work, work.model()
        self.best_makespan()  # the first time is no measure

    def best_makespan(self) -> float:
        """Simulated with the median times of the microbatches of one batch."""
        forward: list[list[float]] = [[] for _ in self.stages]
        backward: list[list[float]] = [[] for _ in self.stages]
        xs, ys = split_batch(*self.work.batch(), self.work.m)
        for x, y in zip(xs, ys, strict=True):
            ins, outs = [], []
            for number, stage in enumerate(self.stages):
                ins.append(x.detach().requires_grad_(x.is_floating_point()))
                began = time.perf_counter()
                x = stage(ins[-1])
                x = self.work.loss_fn(x, y) if number + 1 == len(self.stages) else x
                forward[number].append(time.perf_counter() - began)
                outs.append(x)
            grad = None
            for number in reversed(range(len(self.stages))):
                began = time.perf_counter()
                torch.autograd.backward(outs[number], grad)
                backward[number].append(time.perf_counter() - began)
                grad = ins[number].grad
        costs = [[statistics.median(seconds) for seconds in stages] for stages in (forward, backward)]
        return pp.simulate(self.work.plan, pp.Costs(costs[0], costs[1], 0.0)).makespan


class Memory:
    """What the system says of processes: bytes in memory, from now to the most since the peak was forgotten."""

    def __init__(self, processes: Sequence[BaseProcess]) -> None:
        self.folders = [Path(f"/proc/{process.pid}") for process in processes]
        self.before = self._read("VmRSS")

    def forget_peak(self) -> None:
        for folder in self.folders:
            (folder / "clear_refs").write_text("5")

    def growth(self) -> list[int]:
        return [peak - before for peak, before in zip(self._read("VmHWM"), self.before, strict=True)]

    def _read(self, name: str) -> list[int]:
        lines = [line.split() for folder in self.folders for line in (folder / "status").read_text().splitlines()]
        return [1024 * int(line[1]) for line in lines if line[0] == f"{name}:"]


def starts() -> None:
    """From no ranks to the end of a first step on four; torch, spawned as its launchers do it."""
    mine, theirs = [], []
    x = torch.randn(16, WIDTH)
    for _ in range(STARTS):
        theirs.append(first_step())
        ranks.close_all()
        began = time.perf_counter()
        pp.run("1f1b", mlp(4), x, x, p=4, m=8, loss_fn=F.mse_loss)
        mine.append(time.perf_counter() - began)
    compared("4 ranks started, and a first step", statistics.median(mine), statistics.median(theirs), "s", 0.1, 2)


if __name__ == "__main__":
    main()
