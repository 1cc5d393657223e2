"""What a run can be asked to write into files, one a rank: a profiler's trace, a snapshot of a GPU's memory.

profiler   a Chrome trace by torch.profiler, for chrome://tracing or ui.perfetto.dev; each action is a range `2F0`
snapshot   what the GPU's allocator did, with the lines that asked, for pytorch.org/memory_viz
"""

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any, NamedTuple

import torch


class Files(NamedTuple):
    """Of one rank; "" is not asked for."""

    profiler: str = ""
    snapshot: str = ""


NO_FILES = Files()


def files_of(profiler: Any, snapshot: Any, devices: Sequence[str]) -> list[Files]:
    """Each rank's files for the two paths: trace.json becomes trace-rank-0.json and so on.

    Raises ValueError for what is no path, for a folder that is not there, and for a snapshot of a CPU.
    """
    if snapshot is not None and "cpu" in devices:
        raise ValueError(
            "snapshot shows a GPU's allocator, but these ranks run on the CPU, which has none; leave it out, and take"
            " memory=True for bytes by kind."
        )
    paths = _path(profiler, "profiler"), _path(snapshot, "snapshot")
    return [Files(*("" if path is None else _of_rank(path, rank) for path in paths)) for rank in range(len(devices))]


def _path(given: Any, option: str) -> Path | None:
    if given is None:
        return None
    if not isinstance(given, str | Path) or not Path(given).name:
        raise ValueError(f"{option} is {given!r}, but it must be the path of a file; each rank adds its number.")
    path = Path(given).absolute()
    if not path.parent.is_dir():
        raise ValueError(f"{option} is {str(given)!r}, but there is no folder {path.parent}.")
    return path


def _of_rank(path: Path, rank: int) -> str:
    return str(path.with_name(f"{path.stem}-rank-{rank}{path.suffix}"))


@contextmanager
def traced(files: Files) -> Iterator[None]:
    """Write what is asked for of the work within."""
    with _remembered(files.snapshot) if files.snapshot else nullcontext():
        if not files.profiler:
            yield
            return
        os.environ.setdefault("KINETO_LOG_LEVEL", "99")  # or it tells the learner when it starts and stops
        with torch.profiler.profile(acc_events=True) as trace:  # of the CPU, and of CUDA where there is one
            yield
        trace.export_chrome_trace(files.profiler)


@contextmanager
def _remembered(snapshot: str) -> Iterator[None]:
    """Also of work that fails: a step that ran out of memory is the one to look at."""
    torch.cuda.memory._record_memory_history()
    try:
        yield
    finally:
        torch.cuda.memory._dump_snapshot(snapshot)  # type: ignore[no-untyped-call]
        torch.cuda.memory._record_memory_history(enabled=None)
