"""What this machine can do: where ranks run, what carries their messages, and what is wrong, in sentences."""

import contextlib
import os
import platform
import re
import shutil
import tempfile
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import psutil

if TYPE_CHECKING:
    from ppcourse.runtime.links.carriers import Choice

OLDEST_TORCH = (2, 10)
GIB = 2**30
WHY_START = {
    "forkserver": "each rank is forked from a small process that has loaded torch already",
    "spawn": "each rank loads torch anew, which takes seconds, because forking is not safe on this system",
}


@dataclass(frozen=True, repr=False)
class Report:
    """What doctor() found; printed, it is a page of text.

    torch           its version, or why there is none
    cores           that this process may use: in a container they may be fewer than the machine has
    temp_dir        where ranks keep their files while they start; "" if there is no place to write
    gpus            the names of those that ranks would see
    nccl            its version, and whether ranks may share a GPU over it
    links, times    for each number of ranks, what carries their messages, and what a measured time means

    Sizes are in bytes; shm_free is None where there is no /dev/shm.
    """

    python: str
    system: str
    torch: str
    cores: int
    memory_free: int
    memory_total: int
    temp_dir: str
    temp_free: int
    shm_free: int | None
    gpus: tuple[str, ...]
    nccl: str
    start_method: str
    links: dict[int, str]
    times: dict[int, str]

    @property
    def warnings(self) -> tuple[str, ...]:
        """What should be put right."""
        return tuple(_warnings(self))

    def __str__(self) -> str:
        shm = "" if self.shm_free is None else f", {_gib(self.shm_free)} in /dev/shm"
        wide = max((len(link) for link in self.links.values()), default=0)
        lines = [
            f"Python   {self.python} on {self.system}",
            f"torch    {self.torch}",
            f"cores    {self.cores}",
            f"memory   {_gib(self.memory_free)} free of {_gib(self.memory_total)}",
            f"disk     {_gib(self.temp_free)} free in {self.temp_dir or 'no place'}{shm}",
            f"GPUs     {', '.join(self.gpus) or 'none'}",
            f"NCCL     {self.nccl}",
            f"ranks    started by {self.start_method}: {WHY_START[self.start_method]}",
            "",
            f"ranks    {'link':{wide}}  measured times are",
            *(f"p = {p:<4} {self.links[p]:{wide}}  {self.times[p]}" for p in self.links),
            *(f"! {warning}" for warning in self.warnings),
        ]
        return "\n".join(lines)

    __repr__ = __str__


def doctor(ranks: tuple[int, ...] = (1, 2, 4, 8)) -> Report:
    """What this machine can do, and what runs of these numbers of ranks would use here. CUDA is not started.

    Raises ValueError for what are no numbers of ranks.
    """
    if not isinstance(ranks, Iterable) or not all(isinstance(p, int) and p >= 1 for p in ranks):
        raise ValueError(f"ranks is {ranks!r}, but it must be whole numbers of at least 1, as in doctor((2, 4)).")
    from ppcourse.runtime.links.carriers import choose
    from ppcourse.runtime.machine import gpus
    from ppcourse.runtime.processes.server import start_method

    chosen = {p: choose("auto", "auto", p) for p in ranks}
    cores, memory, limit = _cores(), psutil.virtual_memory(), _memory_limit()
    temp_dir = _temp_dir()
    return Report(
        python=platform.python_version(),
        system=f"{platform.system()} {platform.machine()}",
        torch=_torch(),
        cores=cores,
        memory_free=min(memory.available, limit or memory.available),
        memory_total=min(memory.total, limit or memory.total),
        temp_dir=temp_dir,
        temp_free=shutil.disk_usage(temp_dir).free if temp_dir else 0,
        shm_free=shutil.disk_usage("/dev/shm").free if Path("/dev/shm").is_dir() else None,
        gpus=gpus.visible(),
        nccl=_nccl(),
        start_method=start_method(),
        links={p: choice.link for p, choice in chosen.items()},
        times={p: _times(choice, cores) for p, choice in chosen.items()},
    )


def _cores() -> int:
    """The fewest of: those there are, those this process may run on, the share that a container has."""
    allowed = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    quota = re.fullmatch(r"(\d+) (\d+)", _cgroup("cpu.max"))
    return max(1, min(allowed, int(quota[1]) // int(quota[2]))) if quota else allowed


def _memory_limit() -> int | None:
    """A container's, in bytes."""
    limit = _cgroup("memory.max")
    return int(limit) if limit.isdigit() else None


def _cgroup(name: str) -> str:
    with contextlib.suppress(OSError):
        return Path("/sys/fs/cgroup", name).read_text().strip()
    return ""


def _torch() -> str:
    try:
        import torch
    except Exception as error:  # a broken installation raises anything, OSError for a missing library
        return f"cannot be imported: {str(error).partition(chr(10))[0] or type(error).__name__}"
    return str(torch.__version__)


def _temp_dir() -> str:
    try:
        with tempfile.TemporaryFile() as file:
            file.write(b"x")
        return tempfile.gettempdir()
    except OSError:
        return ""


def _nccl() -> str:
    from ppcourse.runtime.machine import gpus

    version = gpus.nccl_version()
    if not version:
        return "none in this torch"
    told = ".".join(map(str, version))
    if not gpus.may_share():
        return f"{told}: one rank a GPU"
    return f"{told}: one rank a GPU; several, if {gpus.SHARING}=1 is set and a run has link='nccl'"


def _times(choice: "Choice", cores: int) -> str:
    p, places = len(choice.devices), len(set(choice.devices))
    if choice.device == "cuda" and places < p:
        many = "a GPU" if places == 1 else f"{places} GPUs"
        return f"distorted: {p} ranks share {many}; use pace= to see a pipeline's true shape"
    if p == 1:
        return "real"
    if choice.device == "cuda":
        return "real: each rank has a GPU"
    if p <= cores:
        return "real: each rank has a core"
    return f"distorted: {p} ranks share {cores} core{'s' * (cores > 1)}; use pace= to see a pipeline's true shape"


def _warnings(report: Report) -> Iterator[str]:
    version = re.match(r"(\d+)\.(\d+)", report.torch)
    if version is None:
        yield f"torch {report.torch}; install it again."
    elif tuple(map(int, version.groups())) < OLDEST_TORCH:
        yield f"torch {report.torch} is too old: the course needs {OLDEST_TORCH[0]}.{OLDEST_TORCH[1]} or newer."
    if report.memory_free < GIB:
        yield f"Only {_gib(report.memory_free)} of memory is free, and four ranks need 1 GB: close other programs."
    if not report.temp_dir:
        yield "No temporary directory can be written to, and ranks need one: set TMPDIR to a folder that can."
    elif report.temp_free < GIB // 10:
        yield f"Only {_gib(report.temp_free)} of disk is free in {report.temp_dir}: make room."


def _gib(size: int) -> str:
    return f"{size / GIB:.1f} GB"
