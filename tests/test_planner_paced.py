"""What `choose` predicts is what real ranks take, each action paced to what the plan of the candidate says."""

from functools import cache

import pytest
import torch
import torch.nn.functional as F

import ppcourse as pp
from ppcourse.analysis.candidate import Candidate
from ppcourse.runtime.models import mlp

pytestmark = pytest.mark.thorough

WITHIN = 0.05
SHORTEST = (0.008, 0.025, 0.08)  # seconds of the shortest action: ranks that share cores with others need more
SHAPE = pp.Shape(layers=10, hidden=64, heads=4, vocab=512, sequence=32)
GPU = pp.GPU("plain", memory=1e12, flops=1e12)
LINK = pp.Link("cable", bandwidth=1e9, latency=2e-6)


@cache
def choice() -> dict[str, Candidate]:
    """The fastest of each schedule on four ranks, eight microbatches."""
    found = pp.choose(SHAPE, gpus=4, gpu=GPU, link=LINK, batch=8, schedules=["gpipe", "zb-h1", "v-half"], top=1000)
    candidates = [c for c in (*found.candidates, *found.slower) if (c.p, c.m) == (4, 8)]
    return {candidate.schedule: candidate for candidate in reversed(candidates)}


def paced(candidate: Candidate, factor: float) -> float:
    """Seconds that a paced step takes on real ranks, best of three."""
    plan, costs = candidate.paced(factor)
    model, rows = mlp(plan.num_stages, 8), torch.ones(plan.num_microbatches, 8)
    runs = (pp.run(plan, model, rows, rows, loss_fn=F.mse_loss, pace=costs) for _ in range(3))
    return min(run.timeline.makespan for run in runs)


@pytest.mark.parametrize("schedule", ["gpipe", "zb-h1", "v-half"])
def test_a_prediction_holds_on_real_ranks(schedule: str) -> None:
    candidate = choice()[schedule]
    times = [time for lasts in candidate.paced()[1].durations(candidate.num_stages).values() for time in lasts]
    off = []
    for shortest in SHORTEST:
        factor = shortest / min(times)
        off.append(paced(candidate, factor) / (factor * candidate.pipeline[0]) - 1)
        if abs(off[-1]) <= WITHIN:
            break
    assert abs(off[-1]) <= WITHIN, off


def test_the_predictions_differ_by_more_than_what_they_may_be_off() -> None:
    times = sorted(candidate.pipeline[0] for candidate in choice().values())
    assert times[0] * (1 + WITHIN) < times[1] * (1 - WITHIN)
    assert times[1] * (1 + WITHIN) < times[2] * (1 - WITHIN)
