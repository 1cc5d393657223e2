"""The sections of the GPU check, in their order: the last looks at what the others have done to this process."""

from collections.abc import Callable
from typing import NamedTuple

from ppcourse.lab.gpu_check.allowance import Allowance
from ppcourse.lab.gpu_check.finding import Finding
from ppcourse.lab.gpu_check.gradients import gradients
from ppcourse.lab.gpu_check.machine import machine
from ppcourse.lab.gpu_check.memory import memory
from ppcourse.lab.gpu_check.nccl import nccl
from ppcourse.lab.gpu_check.notebook import notebook
from ppcourse.lab.gpu_check.setting import Setting
from ppcourse.lab.gpu_check.streams import streams
from ppcourse.lab.gpu_check.times import paced, unpaced
from ppcourse.lab.gpu_check.traces import snapshot, trace
from ppcourse.lab.gpu_check.training import training


class Section(NamedTuple):
    """One question.

    seconds     the most it may take; all together are less than 5 minutes
    needs_gpu   it asks something that has no meaning on the CPU
    option      of run() that it cannot do without
    """

    title: str
    function: Callable[[Setting, Allowance], Finding]
    seconds: float
    needs_gpu: bool = False
    option: str = ""


SECTIONS = (
    Section("The machine", machine, 30),
    Section("NCCL", nccl, 50, needs_gpu=True),
    Section("Every schedule, several ranks a GPU (staged link)", gradients, 50),
    Section("Peak memory and the ledger", memory, 35),
    Section("Paced timelines and the simulator", paced, 35),
    Section("A GPT as fast as it can", unpaced, 25),
    Section("Two streams for DualPipe's pairs", streams, 15, needs_gpu=True, option="profiler"),
    Section("Profiler trace", trace, 15, option="profiler"),
    Section("Memory snapshot", snapshot, 10, needs_gpu=True, option="snapshot"),
    Section("Training", training, 20),
    Section("The notebook's process", notebook, 5, needs_gpu=True),
)
