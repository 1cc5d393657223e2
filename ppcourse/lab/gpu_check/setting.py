"""What the GPU check runs on, and how its sections ask for a run there."""

import inspect
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ppcourse.runtime.launch import run
from ppcourse.runtime.result import Result, Training
from ppcourse.runtime.train import train
from ppcourse.schedules.schedule import Schedule

PATIENCE = 30.0  # seconds in which no rank gets on; a first action on a GPU loads its kernels


@dataclass(frozen=True)
class Setting:
    """What is asked of every run.

    device      "cuda", or "cpu" in a dry run
    gpus        how many there are
    schedules   the names of those to be checked, where a section is about all
    folder      for files that are read and thrown away
    """

    device: str
    gpus: int
    schedules: tuple[str, ...]
    folder: Path

    @property
    def dry(self) -> bool:
        return self.device == "cpu"

    def place(self, name: str) -> Path:
        """The path of a file, to which each rank adds its number, alone in a folder of the same name."""
        path = self.folder / Path(name).stem / name
        path.parent.mkdir()
        return path

    @staticmethod
    def knows(option: str) -> bool:
        """Whether run() has this option."""
        return option in inspect.signature(run).parameters

    def run(self, plan: Schedule, task: Sequence[Any], link: str = "auto", **options: Any) -> Result:
        """One step of `plan` there; `task` is what run() takes first: model, inputs, targets, loss function.

        link   on GPUs; in a dry run it is the CPU's best
        """
        model, inputs, targets, loss_fn = task
        carrier = "auto" if self.dry else link
        options = {"timeout": PATIENCE, **options}
        return run(plan, model, inputs, targets, loss_fn=loss_fn, device=self.device, link=carrier, **options)

    def train(self, plan: Schedule, task: Sequence[Any], batches: Iterable[Any], **options: Any) -> Training:
        """Training steps there; of the task, model and loss function."""
        options = {"timeout": PATIENCE, "progress": False, **options}
        return train(plan, task[0], batches, loss_fn=task[-1], device=self.device, **options)
