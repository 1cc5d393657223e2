"""Which GPUs the ranks may use. Never starts CUDA: that is for the ranks to do, each in its own process.

Loads torch only to ask whether, and with which NCCL, it was built; doctor() asks where torch may be broken.
"""

import functools
import os
import subprocess

QUERY = ["nvidia-smi", "--query-gpu=uuid,name", "--format=csv,noheader"]
VISIBLE = "CUDA_VISIBLE_DEVICES"
SHARING = "NCCL_MULTI_RANK_GPU_ENABLE"  # NCCL's switch: several ranks may use one GPU
SHARING_SINCE = (2, 30)
PREFIXES = ("CUDA_", "NCCL_", "PYTORCH_", "TORCH_NCCL_")


def visible() -> tuple[str, ...]:
    """The names of the GPUs that a rank would see: those of the machine, as CUDA_VISIBLE_DEVICES leaves them.

    As CUDA does, it stops at the first entry that names no GPU: "-1" or "" leaves none.
    """
    there = installed()
    if VISIBLE not in os.environ:
        return tuple(name for _, name in there)
    seen: list[str] = []
    for entry in os.environ[VISIBLE].split(","):
        entry = entry.strip()
        if entry.isdigit() and int(entry) < len(there):
            seen.append(there[int(entry)][1])
        elif there and entry.startswith("MIG-"):  # a part of a GPU, which the driver does not list as one
            seen.append(f"part of a GPU ({entry})")
        elif entry and (named := [name for uuid, name in there if uuid.startswith(entry)]):
            seen.append(named[0])
        else:
            break
    return tuple(seen)


@functools.cache
def installed() -> tuple[tuple[str, str], ...]:
    """(identifier, name) of every GPU that the driver has; none where nvidia-smi is not there or does not answer."""
    try:
        answer = subprocess.run(QUERY, capture_output=True, text=True, timeout=20)
    except (OSError, subprocess.TimeoutExpired):
        return ()
    rows = [line.partition(", ") for line in answer.stdout.strip().splitlines()]
    return tuple((uuid.strip(), name.strip()) for uuid, _, name in rows) if answer.returncode == 0 else ()


def usable() -> int:
    """How many GPUs ranks can use: those visible, where this torch was built for CUDA."""
    return len(visible()) if visible() and built_for_cuda() else 0


def built_for_cuda() -> bool:
    try:
        import torch
    except Exception:  # a broken installation raises anything
        return False
    return torch.version.cuda is not None


def nccl_version() -> tuple[int, ...]:
    """Of the NCCL that torch brings, (2, 28, 9) for instance; empty where it brings none."""
    try:
        import torch.cuda.nccl

        return tuple(torch.cuda.nccl.version())  # type: ignore[no-untyped-call]
    except Exception:  # a torch without CUDA has no such function
        return ()


def may_share() -> bool:
    """Whether this NCCL lets several ranks use one GPU, if its switch is set."""
    return nccl_version()[:2] >= SHARING_SINCE


def environment() -> dict[str, str]:
    """What ranks must be told: the server that they are forked from knows the environment of when it started.

    Without more connections than CUDA's usual 8, a stream may have to wait for another one's transfer.
    """
    own = {name: value for name, value in os.environ.items() if name.startswith(PREFIXES)}
    return {"CUDA_DEVICE_MAX_CONNECTIONS": "32", **own}


def adopt(told: dict[str, str]) -> None:
    """In a rank, before CUDA starts: take what `environment` was in the notebook's process."""
    for name in [name for name in os.environ if name.startswith(PREFIXES)]:
        del os.environ[name]
    os.environ.update(told)


def load_all_kernels() -> None:
    """In a rank, before CUDA starts: whatever else is asked for, load all kernels with their modules.

    CUDA would load each when it is first needed, and may then wait for what runs on the GPU. An NCCL transfer runs
    there while it waits for the other rank, which may be waiting in just that way itself: then both wait for ever.
    """
    os.environ.setdefault("CUDA_MODULE_LOADING", "EAGER")
