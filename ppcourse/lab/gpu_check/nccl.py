"""NCCL: with one GPU that it starts at all; from two GPUs on every channel of every schedule."""

from ppcourse.lab.gpu_check.allowance import Allowance
from ppcourse.lab.gpu_check.finding import Finding, judged
from ppcourse.lab.gpu_check.gradients import HEAD, compared
from ppcourse.lab.gpu_check.setting import Setting
from ppcourse.lab.on_ranks import on_ranks

MOST = 8  # ranks
START = 60.0  # seconds for a first communicator
ALONE = (
    "One GPU: NCCL started and added up among one rank. That proves no channel: two ranks on one GPU are refused by"
    " NCCL, so it takes two GPUs to send anything."
)


def nccl(setting: Setting, allowance: Allowance) -> Finding:
    """A world of one rank; with more GPUs also all schedules, a GPU a rank."""
    [total] = on_ranks(sum_alone, 1, START)
    wrong = [] if total == [0.0, 1.0, 2.0, 3.0] else [f"all_reduce of one rank made {total} of [0, 1, 2, 3]."]
    if setting.gpus < 2:
        return judged(wrong, ALONE)
    p = ranks_for(setting.gpus)
    lines = [compared(setting, name, p, 2 * p, "nccl") for name in allowance.each(setting.schedules)]
    wrong += [line.wrong for line in lines if line.wrong]
    right = (
        f"Every channel of {len(lines)} schedules on {p} GPUs: gradients are those of one process, all messages came."
    )
    return judged(wrong, right, table=[HEAD, *(line.cells for line in lines)], cut=allowance.cut)


def ranks_for(gpus: int) -> int:
    """How many of two or more GPUs every schedule can use: dualpipe needs an even number."""
    return min(gpus, MOST) // 2 * 2


def sum_alone(rank: int) -> list[float]:
    """An all_reduce in a world of one rank. Starts CUDA, so it is for a rank."""
    import torch
    import torch.distributed as dist

    device = torch.device("cuda", 0)
    torch.cuda.set_device(device)
    dist.init_process_group("nccl", store=dist.HashStore(), rank=0, world_size=1, device_id=device)  # type: ignore[attr-defined]
    try:
        value = torch.arange(4.0, device=device)
        dist.all_reduce(value)
        return [float(number) for number in value.cpu()]
    finally:
        dist.destroy_process_group()
