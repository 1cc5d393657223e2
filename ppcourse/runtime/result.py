"""What comes back from a run."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from ppcourse.analysis.ledger import Ledger
from ppcourse.analysis.timeline import Timeline
from ppcourse.runtime.meter import Memory


@dataclass(frozen=True)
class Result:
    """One step.

    loss             of the whole batch, as if it had not been split
    grads            {name in nn.Sequential(*layers).named_parameters(): gradient, None where there is none}
    timeline         when each action ran (measured, or paced), seconds from the first start
    peak_in_flight   for each rank, the most it held, in microbatches of one rank's full activation
    ledger           for each rank, bytes by kind; None unless memory=True, as are all bytes that follow
    peak_bytes       for each rank, the most bytes alive (a GPU: allocated), weights and gradients included
    held_bytes       for each rank, the most bytes held between two actions, weights and gradients left out
    baseline_bytes   for each rank, bytes alive as the step began
    reserved_bytes   for each rank, the most that a GPU's allocator had reserved; None on the CPU, which has none. On
                     top come the CUDA context and NCCL's buffers, which only the driver's tools (nvidia-smi) count
    messages         how many crossed from rank to rank, and message_bytes how many bytes they had
    device, link     what ran it and what carried its messages, with the reason
    """

    loss: float
    grads: dict[str, Tensor | None] = field(repr=False)
    timeline: Timeline
    peak_in_flight: tuple[float, ...]
    ledger: Ledger | None = None
    peak_bytes: tuple[int, ...] | None = None
    held_bytes: tuple[int, ...] | None = None
    baseline_bytes: tuple[int, ...] | None = None
    reserved_bytes: tuple[int, ...] | None = None
    messages: int = 0
    message_bytes: int = 0
    device: str = "cpu"
    link: str = "none: one process"


@dataclass(frozen=True)
class Evaluation:
    """A forward pass. `outputs` as the model gives them for the whole batch; `loss` is None without targets."""

    outputs: Any = field(repr=False)
    loss: float | None
    timeline: Timeline


@dataclass(frozen=True)
class Training:
    """Some steps, those behind the checkpoint that they went on from included.

    losses, norms    one a step: the loss, and the norm of all gradients before clipping
    step_times       seconds from the first action of each step to the last
    begun            how many of these steps are behind that checkpoint; 0 without one
    state_dict       the trained weights and buffers, for nn.Sequential(*layers).load_state_dict
    timeline, peak_in_flight, ledger, bytes, messages: as in Result, of the last step; empty if a checkpoint
                     had them all
    """

    losses: Sequence[float]
    norms: Sequence[float] = field(repr=False)
    step_times: Sequence[float] = field(repr=False)
    begun: int
    state_dict: Mapping[str, Tensor] = field(repr=False)
    timeline: Timeline
    peak_in_flight: tuple[float, ...]
    ledger: Ledger | None
    peak_bytes: tuple[int, ...] | None
    held_bytes: tuple[int, ...] | None
    baseline_bytes: tuple[int, ...] | None
    reserved_bytes: tuple[int, ...] | None
    messages: int
    message_bytes: int
    device: str
    link: str


def bytes_of(name: str, measured: Sequence[Memory | None]) -> dict[str, Any]:
    """What the ranks measured, under the names of a Result."""
    memories = [memory for memory in measured if memory]
    if not memories:
        return dict.fromkeys(("ledger", "peak_bytes", "held_bytes", "baseline_bytes", "reserved_bytes"))
    reserved = tuple(memory.reserved for memory in memories)
    return {
        "ledger": Ledger(name, tuple(memory.kinds for memory in memories), "measured"),
        "peak_bytes": tuple(memory.peak for memory in memories),
        "held_bytes": tuple(memory.held for memory in memories),
        "baseline_bytes": tuple(memory.baseline for memory in memories),
        "reserved_bytes": None if None in reserved else reserved,
    }
