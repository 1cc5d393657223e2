"""Two streams for DualPipe's pairs: do the forward and the backward of a pair run at the same time?"""

import functools
import statistics
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ppcourse.analysis.timeline import Timeline
from ppcourse.lab.gpu_check import tasks
from ppcourse.lab.gpu_check.allowance import Allowance
from ppcourse.lab.gpu_check.finding import Finding, failed, judged
from ppcourse.lab.gpu_check.setting import Setting
from ppcourse.lab.gpu_check.traces import Events, events_in
from ppcourse.schedules import build
from ppcourse.schedules.action import Action, Op
from ppcourse.schedules.schedule import Schedule

RANKS, MICROBATCHES = 2, 8
LENGTH = 2**20  # of a row that is added up


class Running(nn.Module):
    """Running sums of few long rows: on a GPU a kernel that lasts long and leaves most multiprocessors to others.

    Matrix products large enough to last would fill the GPU, and nothing could run beside them.
    """

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.tensor(1e-3))

    def forward(self, x: Tensor) -> Tensor:
        return (x * self.scale).cumsum(1)


class Kernels(NamedTuple):
    """Of one rank, in µs: streams with kernels, how long these ran in all, how long beside another stream's."""

    streams: int
    busy: float
    beside: float


def streams(setting: Setting, allowance: Allowance) -> Finding:
    """What the profiler saw of kernels on two streams, and what the spans say."""
    plan = build("dualpipe", RANKS, MICROBATCHES)
    inputs, targets = tasks.noise(2, MICROBATCHES, LENGTH)
    task = tasks.Task(nn.Sequential(*(Running() for _ in range(2 * RANKS))), inputs, targets, F.mse_loss)
    options = {"steps": 3, "optimizer": functools.partial(torch.optim.SGD, lr=0.0)}
    timeline = setting.train(plan, task, [(inputs, targets)] * 3, **options).timeline
    path = setting.place("streams.json")
    setting.run(plan, task, profiler=path)
    seen = [kernels(events) for events in events_in(path.parent)]
    if not any(each.busy for each in seen):
        return failed("The profiler saw no kernel: it may not be allowed to look at this GPU (CUPTI).")
    table: list[tuple[str, ...]] = [("rank", "streams with kernels", "kernels, ms", "beside another stream's, ms")]
    table += [(str(rank), str(it.streams), *(f"{us / 1e3:.2f}" for us in it[1:])) for rank, it in enumerate(seen)]
    wrong = [f"Rank {rank} ran all its kernels on one stream." for rank, it in enumerate(seen) if it.streams < 2]
    return judged(wrong, f"{_overlap(seen)} {_lasts(plan, timeline)}", table=table)


def kernels(events: Events) -> Kernels:
    """From a trace's events: those of category `kernel`, NCCL's own left out."""
    by_stream: dict[Any, list[tuple[float, float]]] = {}
    for event in events:
        if event.get("cat") == "kernel" and not str(event.get("name")).startswith("nccl"):
            begin = float(event["ts"])
            by_stream.setdefault(_stream(event), []).append((begin, begin + float(event["dur"])))
    busy = sum(end - begin for spans in by_stream.values() for begin, end in spans)
    return Kernels(len(by_stream), busy, _beside(by_stream.values()))


def _stream(event: Mapping[str, Any]) -> Any:
    return event.get("args", {}).get("stream", event.get("tid"))


def _beside(streams: Iterable[list[tuple[float, float]]]) -> float:
    """How long kernels of two streams or more ran at once."""
    edges = sorted(
        (moment, step) for spans in streams for begin, end in spans for moment, step in ((begin, 1), (end, -1))
    )
    running, total, since = 0, 0.0, 0.0
    for moment, step in edges:
        total += moment - since if running > 1 else 0.0
        running, since = running + step, moment
    return total


def _overlap(seen: Iterable[Kernels]) -> str:
    both, busy = sum(each.beside for each in seen), sum(each.busy for each in seen)
    if not both:
        return "Overlap was not seen: no kernel ran beside one of another stream."
    return f"Overlap was seen: two streams' kernels ran at once for {both / 1e3:.2f} of {busy / 1e3:.2f} ms."


def _lasts(plan: Schedule, timeline: Timeline) -> str:
    """What a pair lasts beside an F and a B that are alone, by the spans."""
    pairs: list[float] = []
    alone: dict[Op, list[float]] = {op: [] for op in Op}
    for rank, row in enumerate(timeline.by_rank):
        lasts = {span.action: span.end - span.start for span in row}
        joined = set(_joined(plan, rank))
        pairs += [lasts[action] for action in joined if action.op is Op.F]
        for action, seconds in lasts.items():
            if action not in joined:
                alone[action.op].append(seconds)
    one, two = statistics.median(pairs), statistics.median(alone[Op.F]) + statistics.median(alone[Op.B])
    return f"A pair lasts {one * 1e3:.2f} ms, an F and a B that are alone {two * 1e3:.2f} ms (medians of spans)."


def _joined(plan: Schedule, rank: int) -> Iterator[Action]:
    for position in plan.pairs[rank]:
        yield from plan.rows[rank][position : position + 2]
