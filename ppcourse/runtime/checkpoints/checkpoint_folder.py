"""The folder in which a training leaves its checkpoints: which there are, and which of them are whole.

    step-00000020/             after 20 steps
        __0_0.distcp …         the ranks' parts and .metadata, as checkpoint.py writes them
        training.json          what was trained so far, with size and CRC-32 of every other file
    .step-00000030-unfinished  what a training was writing when it was killed
    .lock                      whose folder it is now, while a training goes on (checkpoint_lock.py)

A checkpoint gets its name last, when all of it is on the disk: it is there as a whole or not at all. The two newest are
kept. What is damaged later is passed over, with a warning that names it.
"""

import json
import os
import re
import shutil
import warnings
import zlib
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from ppcourse.runtime.checkpoints.checkpoint import sizes
from ppcourse.runtime.checkpoints.checkpoint_lock import Lock

STORY = "training.json"
KEPT = 2
NAME = re.compile(r"step-(\d{8,})")
HIDDEN = re.compile(r"\.step-\d{8,}-(unfinished|old)")


@dataclass(frozen=True)
class Story:
    """What a checkpoint says of its training.

    step       how many steps were done
    seed       that random numbers follow
    optimizer  its class; None if no rank has a weight to train
    weights    {name: dtype and shape} of weights and buffers
    losses, norms, step_times: as a Training has them, one a step
    files      {name: (bytes, CRC-32)}
    """

    step: int = 0
    seed: int = 0
    optimizer: str | None = None
    weights: Mapping[str, str] = field(default_factory=dict)
    losses: list[float] = field(default_factory=list)
    norms: list[float] = field(default_factory=list)
    step_times: list[float] = field(default_factory=list)
    files: Mapping[str, tuple[int, int]] = field(default_factory=dict)

    def to_text(self) -> str:
        told = asdict(self)
        return json.dumps({"checksum": _checksum(told), **told}, indent=1)

    @classmethod
    def from_text(cls, text: str) -> "Story":
        """Raises ValueError if the text is not as it was written."""
        told = json.loads(text)
        if not isinstance(told, dict) or told.pop("checksum", None) != _checksum(told):
            raise ValueError("the text was changed")
        return cls(**told)


def _checksum(told: dict[str, Any]) -> int:
    return zlib.crc32(json.dumps(told).encode())


@dataclass
class Folder:
    """`whole` are the checkpoints that this training has found whole or had written, oldest first."""

    path: Path
    whole: list[Path] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._lock = Lock(self.path)

    def make(self) -> None:
        """Make it, if it is not there, and have it until `release`.

        Raises ValueError if it cannot be made or written in, or if another training has it.
        """
        given, does = f"checkpoint_dir is {str(self.path)!r}, but", "it cannot be made"
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            does = "nothing can be written there"
            owner = self._lock.take()
        except OSError as error:
            raise ValueError(f"{given} {does}: {error.strerror}.") from None
        if owner:
            raise ValueError(f"{given} another training writes there, {owner}; let it end, or take another folder.")

    def release(self) -> None:
        """Let another training have it."""
        self._lock.release()

    def newest(self) -> Story | None:
        """Of the newest whole checkpoint, or None if there is none. Warns of those passed over."""
        for path in sorted(self.path.glob(".step-*-unfinished")):
            _passed_over(path, "its training ended while it was written")
        named = [path for path in self.path.glob("step-*") if NAME.fullmatch(path.name)]
        for path in sorted(named, key=_step, reverse=True):
            story = read(path)
            if isinstance(story, Story):
                self.whole = [path]
                return story
            _passed_over(path, story)
        return None

    def place(self, step: int) -> Path:
        """Where to write a checkpoint before it has its name."""
        return self.path / f".{name_of(step)}-unfinished"

    def discard(self, step: int) -> None:
        """What was not finished, if anything is there."""
        shutil.rmtree(self.place(step), ignore_errors=True)

    def finish(self, story: Story) -> Path:
        """All ranks have written into `place`: the whole checkpoint, on the disk and by its name."""
        written, path = self.place(story.step), self.path / name_of(story.step)
        try:
            with (written / STORY).open("w", encoding="utf-8") as file:
                file.write(story.to_text())
                file.flush()
                os.fsync(file.fileno())
            _sync(written)
        except OSError as error:  # such as a full disk, which of itself does not say where
            raise OSError(error.errno, error.strerror, str(written)) from None
        self._remove(path)  # a damaged one that was passed over
        written.rename(path)
        _sync(self.path)
        self.whole = [*self.whole, path][-KEPT:]
        for other in [*self.path.iterdir()]:
            if HIDDEN.fullmatch(other.name) or (NAME.fullmatch(other.name) and other not in self.whole):
                self._remove(other)
        return path

    def _remove(self, path: Path) -> None:
        """By another name first: of what is being removed, nothing may look whole."""
        if path.exists():
            old = path if path.name.startswith(".") else path.with_name(f".{path.name}-old")
            shutil.rmtree(old, ignore_errors=True) if old != path else None
            shutil.rmtree(path.rename(old), ignore_errors=True)


def read(path: Path) -> Story | str:
    """What a checkpoint says of its training, or why it is not whole. Reads all of its files."""
    try:
        story = Story.from_text((path / STORY).read_text(encoding="utf-8"))
    except FileNotFoundError:
        return f"it has no {STORY}"
    except (OSError, ValueError, TypeError) as error:
        return f"its {STORY} cannot be read ({error})"
    for name, told in story.files.items():
        try:
            found = sizes(path / name)
        except OSError as error:
            return f"its file {name} cannot be read ({error.strerror})"
        if found != tuple(told):
            same = found[0] == told[0]
            return f"its file {name} " + ("was changed" if same else f"has {found[0]} bytes instead of {told[0]}")
    return story


def _passed_over(path: Path, why: str) -> None:
    warnings.warn(f"The checkpoint {path} is passed over: {why}.", stacklevel=2)


def name_of(step: int) -> str:
    return f"step-{step:08}"


def _step(path: Path) -> int:
    return int(path.name.partition("-")[2])


def _sync(folder: Path) -> None:
    """What is in a folder is on the disk, its names too. Windows has no such call, and needs none."""
    if os.name == "posix":
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
