"""Whether steps last as long as the planner predicts:  python bench/planner.py

A small GPT is planned for four GPUs. The fastest candidate of each schedule then runs on real ranks, on CPUs, with
every action and hop paced to what the candidate predicts, all of them so many times as long that slow ranks can keep
up. So it is the plan that is verified, who waits for whom and for how long, and not how fast a GPU computes.

A step can only be late, by what ranks that share cores lose to others: the best of a few is compared, and if it is off
by more than 5%, everything is tried again three times as slow. Exits with 1 if that does not help.
"""

import argparse
import os
import sys

import psutil
import torch
import torch.nn.functional as F

import ppcourse as pp
from ppcourse.analysis.candidate import Candidate
from ppcourse.runtime.models import mlp

WITHIN = 0.05
SHORTEST = (0.008, 0.025, 0.08)  # seconds of the shortest action, one after the other
SHAPE = pp.Shape(layers=10, hidden=64, heads=4, vocab=512, sequence=32)
GPU = pp.GPU("plain", memory=1e12, flops=1e12)
LINK = pp.Link("cable", bandwidth=1e9, latency=2e-6)
SCHEDULES = ("gpipe", "1f1b", "interleaved", "zb-h1", "zb-h2", "v-half")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--schedules", nargs="*", default=SCHEDULES)
    parser.add_argument("--turns", type=int, default=3)
    options = parser.parse_args()
    print(
        f"{os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}, {psutil.cpu_percent(0.5):.0f}% busy before the start"
    )
    late = [name for name in options.schedules if not holds(fastest(name), options.turns)]
    print(f"not within {WITHIN:.0%}: {', '.join(late)}" if late else f"all within {WITHIN:.0%}")
    return 1 if late else 0


def fastest(schedule: str) -> Candidate:
    """Of four ranks, eight microbatches of one sequence."""
    found = pp.choose(SHAPE, gpus=4, gpu=GPU, link=LINK, batch=8, schedules=[schedule], top=1000)
    candidates = [each for each in (*found.candidates, *found.slower) if (each.p, each.m) == (4, 8)]
    return min(candidates, key=lambda candidate: candidate.step_time)


def holds(candidate: Candidate, turns: int) -> bool:
    """Whether a paced step lasts as long as predicted; a line each time it is tried."""
    times = [time for lasts in candidate.paced()[1].durations(candidate.num_stages).values() for time in lasts]
    for shortest in SHORTEST:
        factor = shortest / min(times)
        predicted, measured = factor * candidate.pipeline[0], best(candidate, factor, turns)
        off = measured / predicted - 1
        shown = f"predicted {candidate.pipeline[0] * 1e6:.1f} µs, x{factor:.0f} is {predicted:.3f} s"
        print(f"{candidate!s:50} {shown}, measured {measured:.3f} s: {off:+.1%}", flush=True)
        if abs(off) <= WITHIN:
            return True
    return False


def best(candidate: Candidate, factor: float, turns: int) -> float:
    """Seconds of a paced step."""
    plan, costs = candidate.paced(factor)
    model, rows = mlp(plan.num_stages, 8), torch.ones(plan.num_microbatches, 8)
    runs = (pp.run(plan, model, rows, rows, loss_fn=F.mse_loss, pace=costs) for _ in range(turns))
    return min(run.timeline.makespan for run in runs)


if __name__ == "__main__":
    sys.exit(main())
