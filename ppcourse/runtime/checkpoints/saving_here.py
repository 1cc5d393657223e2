"""Checkpoints of ranks that torchrun has started: rank 0 looks after the folder, which all hosts must share."""

import contextlib
import socket
import uuid
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import torch.distributed as dist

from ppcourse.runtime.checkpoints.saving import Ask, Saving


def gathered(value: Any) -> list[Any]:
    """What every rank gave, by rank; all ranks call this together."""
    everyone: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(everyone, value)
    return everyone


def asking(together: Callable[[str], AbstractContextManager[None]], worker: object) -> Ask:
    """Every rank gives itself the same order at the same time, so to ask is to do it and to gather the answers.

    together   told the name of an order for as long as the ranks are at it
    """

    def ask(name: str, *arguments: Any) -> list[Any]:
        with together(name):
            return gathered(getattr(worker, name)(*arguments))

    return ask


def begin_here(saving: Saving, rank: int) -> None:
    """Let every rank begin where rank 0 finds that the training has come to.

    Raises ValueError, the same on every rank, for what `Saving.begin` raises it, and if not all see the same folder.
    """
    if saving.folder is None:
        return
    saving.owns = rank == 0
    sign = saving.folder.path / f".seen-{uuid.uuid4().hex}"
    told = [_looked(saving, sign) if saving.owns else None]
    dist.broadcast_object_list(told)
    wrong, name, story = told[0] or ("", "", saving.begun)
    blind = [] if wrong else [who for who in gathered(_who(rank, saving.folder.path / name)) if who]
    if saving.owns:
        with contextlib.suppress(OSError):
            sign.unlink()
    if blind:
        wrong = (
            f"checkpoint_dir is {saving.folder.path}, but {blind[0]} does not find there what rank 0 writes; take a"
            " folder that all hosts share."
        )
    if wrong:
        raise ValueError(wrong)
    saving.go_on_from(story)


def _looked(saving: Saving, sign: Path) -> tuple[str, str, Any]:
    """What is wrong, the name of a file that rank 0 has just written, and what the training goes on from."""
    try:
        saving.begin()
        sign.touch()
    except (ValueError, OSError) as error:
        return str(error), "", saving.begun
    return "", sign.name, saving.begun


def _who(rank: int, sign: Path) -> str:
    """This rank in words if it does not see what rank 0 wrote, or else ""."""
    return "" if sign.exists() else f"rank {rank} on {socket.gethostname()}"
