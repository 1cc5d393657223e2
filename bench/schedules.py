"""How fast plans are built, checked and simulated, next to torch's own passes:  python bench/schedules.py

Everything is measured in one run on this machine, in turns, and in seconds of this process, so that what else the
machine does counts as little as it can; read the ratios, and the load, before the seconds.
"""

import gc
import os
import statistics
import time
from collections.abc import Callable
from typing import Any
from unittest import mock

import psutil
from torch.distributed.pipelining import schedules
from torch.distributed.pipelining.stage import PipelineStage

import ppcourse as pp
from ppcourse.schedules.channels import channels

Laps = dict[str, float]  # seconds by part
theirs: Any = schedules  # its private passes disagree on the types of what they hand on

LARGE = (64, 2048, 4)  # p, m, v: 1,048,576 actions
HALF = (64, 1024, 4)
SMALL = (16, 128, 4)  # 16,384 actions: more would take torch minutes
TURNS = 15  # short ones, of which the best are the ones that nothing else disturbed
WANTED = 30.0


def main() -> None:
    busy = psutil.cpu_percent(0.5)
    print(f"{os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}, {busy:.0f}% busy before the start")

    large, half = in_turns(5, lambda: ours(*LARGE), lambda: ours(*HALF))
    print("\ninterleaved, p=64 v=4                      m=2048                      m=1024      m=2048 ÷ m=1024")
    for name in ("build", "check", "simulate", "spans"):
        line(name, part(large, name), part(half, name))
    line("all", total(large), total(half))

    torchs, own = in_turns(TURNS, lambda: of_torch(*SMALL), lambda: ours(*SMALL))
    print("\ninterleaved, p=16 m=128 v=4                 torch                        ours         torch ÷ ours")
    for name in ("build", "check", "weights", "channels", "simulate", "spans"):
        line(name, part(torchs, name), part(own, name))
    line("all", total(torchs), total(own))
    line("a timeline", total(torchs), total(own, "channels", "spans"))
    line("but for weights", total(torchs, "weights"), total(own, "channels", "spans"))
    print(f"wanted, of torch's all ÷ our build, check and simulate (a timeline): at least {WANTED:.0f}")


def ours(p: int, m: int, v: int) -> Laps:
    clock = Clock()
    plan = pp.build("interleaved", p, m, v)
    clock.lap("build")
    pp.check(plan)
    clock.lap("check")
    timeline = pp.simulate(plan)
    assert timeline.makespan > 0  # an answer, from columns; whoever draws or explains wants every Span too (below)
    clock.lap("simulate")
    if (p, m, v) == SMALL:  # where torch's passes find them too
        assert channels(plan)
        clock.lap("channels")
    spans = timeline.spans
    clock.lap("spans")
    assert len(spans) == 2 * m * p * v
    return clock.laps


def of_torch(p: int, m: int, v: int) -> Laps:
    """torch's order, then the passes through which its runtime sends every order that it loads, then its simulation."""
    stage = mock.create_autospec(PipelineStage, instance=True)
    stage.group_rank, stage.group_size, stage.num_stages, stage.submod = 0, p, p * v, None
    with mock.patch.object(theirs.ScheduleInterleaved1F1B, "_prepare_schedule_with_comms"):  # the passes come below
        clock = Clock()
        order = theirs.ScheduleInterleaved1F1B([stage] * v, m).pipeline_order
        clock.lap("build")
    rank_of = theirs._validate_schedule(order, p, p * v, m).__getitem__
    clock.lap("check")
    rows = {rank: theirs._add_reduce_grad(theirs._add_unshard_reshard(row), m) for rank, row in order.items()}
    clock.lap("weights")
    lowered = theirs._add_send_recv(rows, rank_of, p * v)
    clock.lap("channels")
    # its simulation knows computing, sending and receiving, so it is spared what the weights add
    weights = {theirs.UNSHARD, theirs.RESHARD, theirs.REDUCE_GRAD}
    lowered = {rank: [action for action in row if action[1] not in weights] for rank, row in lowered.items()}
    clock.skip()
    simulated = theirs._simulate_comms_compute(lowered, rank_of, p * v)
    clock.lap("simulate")
    assert (
        sum(action is not None and action.is_compute_op for row in simulated.values() for action in row)
        == 2 * m * p * v
    )
    return clock.laps


class Clock:
    """Seconds since the last lap, by the name of what they went into."""

    def __init__(self) -> None:
        gc.collect()  # nobody pays for what others left
        self.laps: Laps = {}
        self.skip()

    def skip(self) -> None:
        self.last = time.process_time()

    def lap(self, part: str) -> None:
        self.laps[part] = time.process_time() - self.last
        self.skip()


def in_turns(repeats: int, *measured: Callable[[], Laps]) -> list[list[Laps]]:
    """The laps of each, measured one after the other so that what else the machine does falls on all alike."""
    results: list[list[Laps]] = [[] for _ in measured]
    for _ in range(repeats):
        for result, measure in zip(results, measured, strict=True):
            result.append(measure())
    return results


def part(runs: list[Laps], name: str) -> list[float]:
    return [laps.get(name, 0.0) for laps in runs]


def total(runs: list[Laps], *without: str) -> list[float]:
    return [sum(seconds for name, seconds in laps.items() if name not in without) for laps in runs]


def line(name: str, left: list[float], right: list[float]) -> None:
    """Best and median of both, and their ratio: of the bests, and the median of the ratios within a turn."""
    each = [f"best {min(seconds):8.3f} s, median {statistics.median(seconds):8.3f} s" for seconds in (left, right)]
    ratio = ""
    if min(right):
        turns = statistics.median(a / b for a, b in zip(left, right, strict=True))
        ratio = f"{min(left) / min(right):6.1f}, median {turns:6.1f}"
    print(f"  {name:16}{each[0]}  {each[1]}  {ratio}")


if __name__ == "__main__":
    main()
