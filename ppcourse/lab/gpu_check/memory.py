"""Peak memory: what each rank's allocator counted, against what the ledger says of the plan."""

from collections.abc import Iterator
from dataclasses import replace
from typing import NamedTuple

from ppcourse.analysis.ledger import Ledger
from ppcourse.analysis.memory import Sizes, ledger
from ppcourse.analysis.partition import partition
from ppcourse.lab.gpu_check import tasks
from ppcourse.lab.gpu_check.allowance import Allowance
from ppcourse.lab.gpu_check.finding import Finding, judged
from ppcourse.lab.gpu_check.setting import Setting
from ppcourse.runtime.meter import ACTIVATIONS, KEPT_FOR_W, PARAMETERS
from ppcourse.runtime.profile import profile
from ppcourse.runtime.result import Result
from ppcourse.schedules import build
from ppcourse.schedules.schedule import Schedule

NAMES = ("gpipe", "1f1b", "interleaved", "zb-h1")
LAYERS = 16
SIZES = {"cpu": (32, 256), "cuda": (256, 16384)}  # width, rows of a microbatch; on a GPU 16 MiB a tensor
PROFILED = 64  # rows that the sizes are measured with; what a stage keeps is proportional to its rows
HANDS = 3  # within a backward: the gradients on both sides of a layer, and one that is not let go yet
HEAD = ("schedule", "rank", "ledger by", "held, MB", "all it counts, MB", "measured, MB", "at most, MB", "reserved, MB")
WHY = (
    "Measured is max_memory_allocated less what was allocated as the step began. It must not be below what the ledger"
    " says is held between actions. It may be above all that the ledger counts by what one action has in its hands,"
    " {hands} tensors of the size that crosses a cut, and by {unsplit:.0%} of what is not activations: the allocator"
    " rounds to 512 B, and from a block of {block:.0f} MiB that a message left it may not split off a rest below 1 MiB."
    " A first run, not counted, makes cuBLAS take its workspace. Reserved is what the allocator has taken from the"
    " driver; the CUDA context and NCCL's buffers come on top of it, and only nvidia-smi counts those."
)
WHY_DRY = (
    "Measured are live tensors, less those that were there as the step began. They must not be fewer than the ledger"
    " says are held between actions. They may be more than all that it counts by what one action has in its hands,"
    " {hands} tensors of the size that crosses a cut."
)


class Bounds(NamedTuple):
    """Of one rank, in bytes: what it holds between actions, all that the ledger counts, and the most that may be."""

    held: float
    counted: float
    most: float


def memory(setting: Setting, allowance: Allowance) -> Finding:
    """Layers so wide that weights are little beside activations, four schedules, each rank on its own."""
    width, rows = SIZES[setting.device]
    task, block = tasks.wide_mlp(LAYERS, width, rows), rows * width * 4 / 2**20
    unsplit = 0.0 if setting.dry else 1 / block
    setting.run(build("gpipe", tasks.P, tasks.M), task, memory=True)
    wrong: list[str] = []
    table: list[tuple[str, ...]] = [HEAD]
    for name in allowance.each([name for name in NAMES if name in setting.schedules]):
        plan = build(name, tasks.P, tasks.M)
        book, sizes = predicted(plan, task, rows)
        result = setting.run(plan, task, memory=True)
        for rank, bounds in enumerate(bounds_of(plan, book, sizes, unsplit)):
            found = grown(result, rank)
            if not bounds.held <= found <= bounds.most:
                wrong.append(f"{name}, rank {rank}: {_mb(found)} MB, not {_mb(bounds.held)} to {_mb(bounds.most)}.")
            numbers = bounds.held, bounds.counted, found, bounds.most
            table.append((name, str(rank), book.origin, *map(_mb, numbers), _reserved(result, rank)))
    why = (WHY_DRY if setting.dry else WHY).format(unsplit=unsplit, block=block, hands=HANDS)
    return judged(wrong, f"Every rank's peak is within its bounds. {why}", table=table, cut=allowance.cut)


def predicted(plan: Schedule, task: tasks.Task, rows: int) -> tuple[Ledger, Sizes]:
    """By the closed form where there is one for these stages, else by going through the plan."""
    layers = partition([1.0] * LAYERS, plan.num_stages, "uniform")
    few = task.inputs[:PROFILED], task.targets[:PROFILED]
    sizes = _scaled(profile(task.model, *few, task.loss_fn, budget=0.0).sizes(layers), rows / PROFILED, plan.num_stages)
    try:
        return ledger(plan, sizes, origin="formula"), sizes
    except ValueError:
        return ledger(plan, sizes), sizes


def _scaled(sizes: Sizes, times: float, num_stages: int) -> Sizes:
    """For so many times the rows."""
    names = ("stashed", "kept_for_w", "boundary")
    stashed, kept, boundary = (tuple(times * size for size in sizes.of(name, num_stages)) for name in names)
    return replace(sizes, stashed=stashed, kept_for_w=kept, boundary=boundary)


def bounds_of(plan: Schedule, book: Ledger, sizes: Sizes, unsplit: float) -> Iterator[Bounds]:
    """Rank by rank. The weights were there before the step."""
    hands = HANDS * max(sizes.of("boundary", plan.num_stages))
    for rank, row in enumerate(book.rows):
        held = row[ACTIVATIONS] + row[KEPT_FOR_W]
        counted = book.totals[rank] - row[PARAMETERS]
        yield Bounds(held, counted, held + (counted - held + hands) * (1 + unsplit))


def grown(result: Result, rank: int) -> int:
    """The rank's peak less what was there as the step began."""
    assert result.peak_bytes
    assert result.baseline_bytes
    return result.peak_bytes[rank] - result.baseline_bytes[rank]


def _reserved(result: Result, rank: int) -> str:
    return _mb(result.reserved_bytes[rank]) if result.reserved_bytes else "-"


def _mb(size: float) -> str:
    return f"{size / 1e6:.2f}"
