"""What it gains to cut a model with a heavy head by measured times:  python bench/balance.py

Uniform and profiled cuts run in turns, so that what else the machine does falls on both; read the ratios, and the load,
before the seconds. Two ranks run as fast as they can, which shows a gain where two cores are free for them. Four are
paced to the profile's times, stretched so that four ranks can keep up: that shows the pipeline's shape on any machine.
"""

import argparse
import os
import statistics
from collections.abc import Sequence

import psutil
import torch
from torch import Tensor

import ppcourse as pp
from ppcourse.runtime.data import text_loss
from ppcourse.runtime.models import gpt
from ppcourse.runtime.profile import Profile

LAYERS, WIDTH, VOCAB, CONTEXT = 6, 128, 8192, 64
M, ROWS = 8, 2
STEP = 1.0  # seconds that a paced step by the profiled cut takes


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--paced-step", type=float, default=STEP, help="seconds; more on a busy machine")
    options = parser.parse_args()
    busy = psutil.cpu_percent(0.5)
    print(f"{os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}, {busy:.0f}% busy before the start")

    model = gpt(LAYERS, WIDTH, vocab=VOCAB, context=CONTEXT)
    tokens = torch.randint(VOCAB, (M * ROWS, CONTEXT + 1), generator=torch.Generator().manual_seed(0))
    inputs, targets = tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous()
    found = pp.profile(model, inputs[:ROWS], targets[:ROWS], text_loss)
    print(f"\n{found}\n")
    head = found.times[-1] / statistics.median(found.times[1:-1])
    print(f"the head takes as long as {head:.1f} blocks; uniform cut, optimal cut, and what the second saves:")
    for p, paced in ((2, None), (4, options.paced_step)):
        compare(found, model, inputs, targets, p, paced, options.turns)


def compare(
    found: Profile,
    model: torch.nn.Sequential,
    inputs: Tensor,
    targets: Tensor,
    p: int,
    paced: float | None,
    turns: int,
) -> None:
    """One line: both cuts, what is predicted of them, and what was measured."""
    plan = pp.build("1f1b", p, M)
    cuts = [pp.partition(found.times, p, method) for method in ("uniform", "optimal")]
    predicted = [pp.simulate(plan, found.costs(cut)).makespan for cut in cuts]
    factor = paced / predicted[1] if paced else 1.0
    times: list[list[float]] = [[], []]
    for _ in range(turns):
        for cut, seconds in zip(cuts, times, strict=True):
            pace = stretched(found.costs(cut), factor) if paced else None
            done = pp.run(plan, model, inputs, targets, loss_fn=text_loss, partition=cut, pace=pace)
            seconds.append(done.timeline.makespan)
    named = f"p={p}, paced x{factor:.0f}" if paced else f"p={p}, unpaced"
    print(f"{named:16} {cuts[0]} {cuts[1]}: predicted {saved(*predicted):.1%}")
    ratio = statistics.median(1 - b / a for a, b in zip(*times, strict=True))
    for method, seconds in zip(("uniform", "optimal"), times, strict=True):
        print(f"  {method}   best {min(seconds):.3f} s, median {statistics.median(seconds):.3f} s of {turns}")
    print(f"  measured {saved(min(times[0]), min(times[1])):.1%} of the bests, median of the turns {ratio:.1%}")


def stretched(costs: pp.Costs, factor: float) -> pp.Costs:
    def longer(times: float | Sequence[float]) -> tuple[float, ...]:
        assert isinstance(times, Sequence)
        return tuple(factor * time for time in times)

    return pp.Costs(longer(costs.forward), longer(costs.input_grad), longer(costs.weight_grad))


def saved(before: float, after: float) -> float:
    return 1 - after / before


if __name__ == "__main__":
    main()
