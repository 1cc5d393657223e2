"""How a step fails: one culprit, one sentence, and that rank's own traceback."""

import functools
import linecache
import re
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import ParamSpec, TypeVar

from ppcourse.schedules.action import Action, Op

OWN_CODE = str(Path(__file__).parent)
PACKAGE = str(Path(__file__).parents[1])
P = ParamSpec("P")
R = TypeVar("R")
DOING = {Op.F: "forward", Op.B: "backward", Op.I: "input gradient", Op.W: "weight gradient"}


class LinkError(RuntimeError):
    """A message that cannot be sent or received: as a rule the consequence of another rank's failure."""


@dataclass(frozen=True)
class Failure:
    """What a rank says of its failure before it ends."""

    rank: int
    action: Action | None
    cause: str
    traceback: str
    consequence: bool = False

    @classmethod
    def of(cls, rank: int, action: Action | None, error: BaseException) -> "Failure":
        name = type(error).__name__
        try:
            cause, told = f"{name}: {error}" if str(error) else name, _format(error)
        except Exception:  # an exception that cannot say what it is
            cause, told = name, ""
        return cls(rank, action, cause, told, isinstance(error, LinkError))


class RankError(RuntimeError):
    """A rank failed, and with it the step; every rank has been stopped.

    rank         the rank that failed first
    action       what it was doing, or None if it was between actions; then stage and microbatch are None too
    stage, microbatch
    cause        why, in a few words: `ValueError: boom`, `killed by SIGKILL`, `no progress for 60 s`
    traceback    that rank's own traceback, with the learner's lines; empty if it left none
    """

    def __init__(self, rank: int, action: Action | None, cause: str, traceback: str = "", note: str = "") -> None:
        self.rank, self.action, self.cause, self.traceback, self.note = rank, action, cause, traceback, note
        self.stage = None if action is None else action.stage
        self.microbatch = None if action is None else action.microbatch
        super().__init__(rank, action, cause, traceback, note)

    def __str__(self) -> str:
        where = "between two actions"
        if self.action is not None:
            doing = DOING[self.action.op]
            where = f"in {self.action} (stage {self.stage}, {doing} of microbatch {self.microbatch})"
        parts = [f"Rank {self.rank} failed {where}: {self.cause}"]
        parts += [self.note] if self.note else []
        parts += [f"\nOn rank {self.rank}:\n{self.traceback.rstrip()}"] if self.traceback else []
        return "\n".join(parts)


def briefly(function: Callable[P, R]) -> Callable[P, R]:
    """Let what `function` raises come without the lines of this package, which say nothing to who called it.

    A RankError brings the rank's own traceback; bad input is one sentence; an interrupt is the caller's own.
    What the caller's code raises (an iterator of batches, a weight) keeps its traceback.
    """

    @functools.wraps(function)
    def brief(*args: P.args, **kwargs: P.kwargs) -> R:
        try:
            return function(*args, **kwargs)
        except (RankError, ValueError, KeyboardInterrupt) as error:
            if isinstance(error, ValueError) and not _raised_here(error):
                raise
            raise error.with_traceback(None) from None

    return brief


def _raised_here(error: BaseException) -> bool:
    frames = traceback.extract_tb(error.__traceback__)
    return bool(frames) and frames[-1].filename.startswith(PACKAGE)


def _format(error: BaseException) -> str:
    """The traceback without the lines that are the same in every one: this package's, and nn.Module's calls."""
    told = traceback.TracebackException.from_exception(error)
    told.stack[:] = [frame for frame in told.stack if not _is_plumbing(frame.filename)]
    lines = list(told.format())
    return "".join(lines if told.stack else lines[-1:])


def from_dump(dump: str) -> str:
    """A traceback of the main thread from what faulthandler wrote, with source lines and without plumbing."""
    threads = re.split(r"\n(?=(?:Current thread|Thread) )", "\n" + dump)
    main = next((thread for thread in reversed(threads) if "in rank_main" in thread), "")
    frames = [(file, int(line), name) for file, line, name in re.findall(r'File "(.+)", line (\d+) in (.+)', main)]
    ends = next((n for n, (file, _, _) in enumerate(frames) if file.startswith(OWN_CODE)), len(frames))
    lines = []
    for file, line, name in reversed(frames[:ends]):
        if not _is_plumbing(file) and not file.startswith("<frozen"):
            lines += [
                f'  File "{file}", line {line}, in {name}',
                f"    {linecache.getline(file, line).strip()}",
            ]
    return "\n".join(["Traceback (most recent call last):", *lines]) if lines else ""


def _is_plumbing(file: str) -> bool:
    return file.startswith(OWN_CODE) or file.endswith("torch/nn/modules/module.py")
