"""This process, which stands for a notebook's: it has run everything else, and must not have started CUDA."""

import torch

from ppcourse.lab.gpu_check.allowance import Allowance
from ppcourse.lab.gpu_check.finding import Finding, judged
from ppcourse.lab.gpu_check.setting import Setting


def notebook(setting: Setting, allowance: Allowance) -> Finding:
    """A CUDA context here would take memory from the ranks, and break every process forked from this one."""
    started = torch.cuda.is_initialized()  # type: ignore[no-untyped-call]
    wrong = ["CUDA was started in the process that asked for the runs."] if started else []
    return judged(wrong, "The process that asked for all these runs has not started CUDA.")
