"""`ppcourse demo`: one small GPT, four real ranks, two schedules, one table, and their charts."""

import functools
from pathlib import Path
from typing import NamedTuple

import torch

from ppcourse.analysis.in_flight import in_flight
from ppcourse.analysis.simulate import simulate
from ppcourse.analysis.timeline import Timeline
from ppcourse.lab.gantt import gantt
from ppcourse.runtime.data import batches, text_loss
from ppcourse.runtime.launch import run, train
from ppcourse.runtime.models import gpt
from ppcourse.schedules import build
from ppcourse.schedules.costs import Costs

NAMES = ("gpipe", "1f1b")
P, M = 4, 8
BATCH, CONTEXT = 16, 64
# Longer than the work itself even where four ranks share one core, so that the shape is the pipeline's.
PACE = Costs(forward=0.020, input_grad=0.020, weight_grad=0.020)


class Outcome(NamedTuple):
    """What one schedule did."""

    name: str
    first_loss: float
    last_loss: float
    step_time: float
    predicted: Timeline
    measured: Timeline
    peak_bytes: tuple[int, ...]
    held: tuple[float, ...]
