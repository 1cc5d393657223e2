"""What a rank is told before its steps, and what it tells after each."""

from dataclasses import dataclass, field
from typing import Any

from torch import nn

from ppcourse.analysis.timeline import Span
from ppcourse.runtime.meter import Memory
from ppcourse.runtime.stages.autocast import Autocast, here
from ppcourse.runtime.stages.stage import NO_TWINS, LossFunction
from ppcourse.runtime.stages.twins import Twins
from ppcourse.runtime.tracing import NO_FILES, Files
from ppcourse.runtime.training import Trainer
from ppcourse.schedules.costs import Costs
from ppcourse.schedules.schedule import Schedule


@dataclass(frozen=True)
class Job:
    """What a rank needs to know before its first step.

    layers    {stage: {number in the whole model: layer}}, this rank's only
    loss_fn   used where the last stage lives
    keep_sent keep what a stage has sent until its backward, to see what that costs
    trainer   makes and holds this rank's optimizer
    twins     what other ranks hold too
    training  False: forward only, layers in eval mode, no gradients
    link      what carries messages: a sentence that begins with the link's name, as carriers.py makes it
    device    where this rank computes: "cpu", or "cuda:1"
    files     that this rank writes
    autocast  that of where the job was made
    """

    plan: Schedule
    layers: dict[int, dict[int, nn.Module]]
    loss_fn: LossFunction | None = None
    pace: Costs | None = None
    memory: bool = False
    recompute: bool = False
    seed: int = 0
    trainer: Trainer | None = None
    keep_sent: bool = False
    training: bool = True
    link: str = "gloo"
    device: str = "cpu"
    files: Files = NO_FILES
    twins: Twins = NO_TWINS
    autocast: tuple[Autocast, ...] = field(default_factory=here)


@dataclass(frozen=True)
class Report:
    """One rank's account of one step. `memory` is None unless it was measured."""

    loss: float
    outputs: dict[int, Any]
    spans: list[Span]
    peak_held: int
    messages: int
    message_bytes: int
    memory: Memory | None
