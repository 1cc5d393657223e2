"""This runtime next to torch.distributed.pipelining:  python bench/against_torch.py [--quick]

Same models, same plans, as many ranks, one thread each, gloo for torch. Both sides keep their ranks between steps and
take turns, so that what else the machine does falls on both. Prints a Markdown table; read the load before the numbers.
"""

import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import psutil
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch_side import TorchRanks, Work

import ppcourse as pp
from ppcourse.runtime import ranks
from ppcourse.runtime.batch import ends_of, split_batch
from ppcourse.runtime.data import batches, text_loss
from ppcourse.runtime.job import Job, Report
from ppcourse.runtime.models import gpt, mlp
from ppcourse.runtime.prepare import check_options, cut
from ppcourse.runtime.session import Session, session

QUICK = "--quick" in sys.argv
SCHEDULES = (("gpipe", 1), ("1f1b", 1), ("interleaved", 2), ("zb-h1", 1), ("zb-v", 2))
SIZES = ((4, 8),) if QUICK else ((4, 8), (8, 32))
PACED_TURNS, REAL_TURNS, STARTS = (2, 2, 1) if QUICK else (5, 9, 3)
FORWARD = 0.010  # seconds of a rank's F, I and W of one microbatch; B lasts 20 ms
WIDTH = 64
LAYERS, GPT_WIDTH, CONTEXT, ROWS = 8, 512, 64, 2  # 25 million parameters; rows in a microbatch
MB = 1e6

TORCHS_START = """
import sys, time
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
    print(time.perf_counter(), flush=True)

if __name__ == "__main__":
    print(time.perf_counter(), flush=True)
    mp.spawn(rank_main, (sys.argv[1],), nprocs=4)
"""


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
def ours(work: Work, memory: bool = False) -> Iterator[Callable[[], tuple[list[Report], Session]]]:
    """Our ranks with the model on them: a function that takes a step."""
    plan = work.plan
    stages = work.model()
    made = cut(plan, stages, (1,) * len(stages))
    link = check_options(plan, "cpu", "auto", work.pace, 60.0)
    xs, ys = split_batch(*work.batch(), plan.num_microbatches)
    ends = ends_of(ys, "mean", None)

    def job(rank: int) -> Job:
        return Job(plan, made.of_rank(rank), work.loss_fn, work.pace, memory, link=link)

    with session(made, job, 60.0) as ranks_at_work:
        yield lambda: (ranks_at_work.step(xs, ends), ranks_at_work)


def equal_stages(num_stages: int) -> list[nn.Module]:
    return list(mlp(layers=num_stages, width=WIDTH))


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


def real(torchs: TorchRanks, p: int = 2, m: int = 8) -> None:
    """A GPT on two ranks: time, memory, and how close to what one process needs for the parts."""
    work = Work("1f1b", p, m, 1, gpt_stages, partial(text, m), text_loss)
    own = ranks.pool_of(p).processes
    before_ours, before_torch = resident(own), resident(torchs.processes)
    torchs.load(work)
    parts = Parts(work)
    mine, theirs, best = [], [], []
    with ours(work) as step:
        step()
        forget_peaks([*own, *torchs.processes])
        for turn in range(REAL_TURNS):
            best.append(parts.best_makespan())
            for ask in (0, 1) if turn % 2 else (1, 0):
                if ask:
                    reports, ranks_at_work = step()
                    mine.append(ranks_at_work.timeline(reports).makespan)
                else:
                    timeline, loss = torchs.step()
                    theirs.append(timeline.makespan)
        assert abs(sum(report.loss for report in reports) - loss) < 1e-4, "both must do the same"
        grown_ours = growth(own, before_ours)
        grown_torch = growth(torchs.processes, before_torch)
    millions = sum(weight.numel() for stage in work.model() for weight in stage.parameters()) / 1e6
    what = f"GPT of {millions:.0f} M parameters, 1f1b p={p} m={m}: "
    ours_s, torch_s, best_s = (statistics.median(seconds) for seconds in (mine, theirs, best))
    compared(what + "a step", 1e3 * ours_s, 1e3 * torch_s, "ms", 1.02, 0)
    row(
        what + f"a step over the best possible, {1e3 * best_s:.0f} ms, from the parts in one process",
        f"{ours_s / best_s:.3f}",
        f"{torch_s / best_s:.3f}",
        "",
        "",
    )
    with ours(work, memory=True) as step:
        step()
        metered = tuple(report.peak_bytes or 0 for report in step()[0])
    for rank, (one, other) in enumerate(zip(metered, torchs.peak_bytes(), strict=True)):
        compared(what + f"peak of live tensors, rank {rank}", one / MB, other / MB, "MB", 1.0)
    for rank, (one, other) in enumerate(zip(grown_ours, grown_torch, strict=True)):
        compared(what + f"growth of the process to its peak, rank {rank}", one / MB, other / MB, "MB", 1.0)


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


def resident(processes: list) -> list[int]:
    return [psutil.Process(process.pid).memory_info().rss for process in processes]


def forget_peaks(processes: list) -> None:
    for process in processes:
        Path(f"/proc/{process.pid}/clear_refs").write_text("5")


def growth(processes: list, before: list[int]) -> list[int]:
    """Bytes from `before` to the most since peaks were forgotten."""
    grown = []
    for process, bytes_before in zip(processes, before, strict=True):
        lines = Path(f"/proc/{process.pid}/status").read_text().splitlines()
        peak = next(int(line.split()[1]) for line in lines if line.startswith("VmHWM"))
        grown.append(1024 * peak - bytes_before)
    return grown


def starts() -> None:
    """From no ranks to the end of a first step on four; torch, spawned as its launchers do it."""
    mine, theirs = [], []
    x = torch.randn(16, WIDTH)
    for _ in range(STARTS):
        theirs.append(torchs_start())
        ranks.close_all()
        began = time.perf_counter()
        pp.run("1f1b", mlp(4), x, x, p=4, m=8, loss_fn=F.mse_loss)
        mine.append(time.perf_counter() - began)
    compared("4 ranks started, and a first step", statistics.median(mine), statistics.median(theirs), "s", 0.1, 2)


def torchs_start() -> float:
    with tempfile.TemporaryDirectory() as folder:
        script = Path(folder) / "start.py"
        script.write_text(TORCHS_START)
        done = subprocess.run([sys.executable, str(script), folder], capture_output=True, text=True, check=True)
    began, *ended = map(float, done.stdout.split())
    return max(ended) - began


if __name__ == "__main__":
    main()
