"""The machine: what doctor() says, and what a rank sees when it has started CUDA."""

import subprocess
from typing import Any

from ppcourse.lab.doctor import doctor
from ppcourse.lab.gpu_check.allowance import Allowance
from ppcourse.lab.gpu_check.finding import Finding, judged
from ppcourse.lab.gpu_check.setting import Setting
from ppcourse.lab.on_ranks import on_ranks

HEAD = ("GPU", "name", "compute capability", "memory, GiB")
START = 60.0  # seconds to load CUDA, the first time


def machine(setting: Setting, allowance: Allowance) -> Finding:
    """doctor()'s page, versions, and the GPUs as torch sees them on a rank."""
    page = f"{doctor()}"
    if setting.dry:
        return judged([], "What doctor() says; no GPU was asked for.", page=page)
    [(versions, devices)] = on_ranks(seen_by_torch, 1, START)
    page = "\n".join([page, "", f"driver   {driver()}", *(f"{name:8} {version}" for name, version in versions)])
    wrong = []
    if len(devices) != setting.gpus:
        wrong.append(f"doctor() counts {setting.gpus} GPUs, but torch sees {len(devices)} on a rank.")
    table = [HEAD, *((str(number), *told) for number, told in enumerate(devices))]
    return judged(wrong, f"doctor() and torch on a rank both see {setting.gpus}.", table=table, page=page)


def seen_by_torch(rank: int) -> tuple[list[tuple[str, str]], list[tuple[str, str, str]]]:
    """Versions and GPUs. Starts CUDA, so it is for a rank."""
    import torch

    versions = [("CUDA", str(torch.version.cuda)), ("NCCL", dotted(torch.cuda.nccl.version()))]  # type: ignore[no-untyped-call]
    devices = []
    for number in range(torch.cuda.device_count()):
        it = torch.cuda.get_device_properties(number)
        devices.append((it.name, f"{it.major}.{it.minor}", f"{it.total_memory / 2**30:.1f}"))
    return versions, devices


def dotted(version: Any) -> str:
    """(2, 28, 9) as 2.28.9."""
    return ".".join(map(str, version)) if isinstance(version, tuple) else str(version)


def driver() -> str:
    """The version that nvidia-smi tells, or that it tells none."""
    command = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
    try:
        answer = subprocess.run(command, capture_output=True, text=True, timeout=20)
    except (OSError, subprocess.TimeoutExpired):
        return "unknown: nvidia-smi does not answer"
    return ", ".join(sorted(set(answer.stdout.split()))) or "unknown: nvidia-smi tells none"
