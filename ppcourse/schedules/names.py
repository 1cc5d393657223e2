"""What to ask other projects for to get the same schedule."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import NamedTuple

PROJECTS = {
    "torch": "torch.distributed.pipelining",
    "megatron": "NVIDIA/Megatron-LM",
    "zero_bubble": "sail-sg/zero-bubble-pipeline-parallelism, a fork of Megatron-LM",
    "deepspeed": "deepspeedai/DeepSpeed",
    "dualpipe": "deepseek-ai/DualPipe",
}


class Elsewhere(NamedTuple):
    """A class, or the flags; None where a project does not have the schedule.

    P, V, LAYERS, LIMIT stand for ranks, stages a rank, layers a stage, and the most microbatches a rank may hold.
    """

    torch: str | None = None
    megatron: str | None = None
    zero_bubble: str | None = None
    deepspeed: str | None = None
    dualpipe: str | None = None


RANKS = "--pipeline-model-parallel-size P"
PLANNED = f"{RANKS} --enable-zero-bubble --zero-bubble-max-pending-backward"
V_SHAPE = f"{RANKS} --zero-bubble-v-schedule"

ELSEWHERE: Mapping[str, Elsewhere] = MappingProxyType(
    {
        "naive": Elsewhere(),
        "gpipe": Elsewhere(torch="ScheduleGPipe"),
        "1f1b": Elsewhere(
            torch="Schedule1F1B", megatron=RANKS, zero_bubble=RANKS, deepspeed="PipelineModule(num_stages=P)"
        ),
        "interleaved": Elsewhere(
            torch="ScheduleInterleaved1F1B",
            # older versions count layers instead: --num-layers-per-virtual-pipeline-stage LAYERS
            megatron=f"{RANKS} --num-virtual-stages-per-pipeline-rank V",
            zero_bubble=f"{RANKS} --num-layers-per-virtual-pipeline-stage LAYERS",
        ),
        "breadth-first": Elsewhere(torch="ScheduleLoopedBFS"),  # with the backwards of a chunk in reverse
        # the fork plans for measured times: with these limits, schedules like ZB-H1 and ZB-H2
        "zb-h1": Elsewhere(torch="ScheduleInterleavedZeroBubble", zero_bubble=f"{PLANNED} P"),  # with one stage a rank
        "zb-h2": Elsewhere(zero_bubble=f"{PLANNED} 2P"),
        "zb-auto": Elsewhere(zero_bubble=f"{PLANNED} LIMIT"),
        # torch does one W of each rank but the first sooner
        "zb-v": Elsewhere(torch="ScheduleZBVZeroBubble", zero_bubble=V_SHAPE),
        "v-half": Elsewhere(zero_bubble=f"{V_SHAPE} --zero-bubble-v-schedule-mem-setup half"),
        "v-min": Elsewhere(zero_bubble=f"{V_SHAPE} --zero-bubble-v-schedule-mem-setup min"),
        "dualpipe": Elsewhere(dualpipe="DualPipe"),
        "dualpipe-v": Elsewhere(torch="ScheduleDualPipeV", deepspeed="DualPipeVModule", dualpipe="DualPipeV"),
    }
)


def elsewhere(name: str) -> dict[str, str]:
    """Project → class or flags, for those projects that have the schedule `name`.

    Raises ValueError for a name that is not in the table.
    """
    if name not in ELSEWHERE:
        raise ValueError(f"There is no schedule {name!r}; the table has {', '.join(ELSEWHERE)}.")
    asked = ELSEWHERE[name]._asdict()
    return {PROJECTS[project]: asked[project] for project in PROJECTS if asked[project] is not None}
