"""Whatever is killed, and whenever: there is a whole checkpoint, and training goes on as if nothing had been."""

import errno
import functools
import itertools
import os
import shutil
import signal
import warnings
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from test_checkpoint import ADAM, names_in, written
from toys import by_value, classifier, rows_of

import ppcourse as pp
from ppcourse.runtime.checkpoints.checkpoint import Part, sizes
from ppcourse.runtime.checkpoints.checkpoint_folder import Folder, Story, read
from ppcourse.runtime.checkpoints.saving import History, Saving

by_value(__name__)
pytestmark = pytest.mark.thorough

STEPS, M = 6, 2


class DiesAsItIsWritten:
    def __reduce__(self) -> Any:
        os.kill(os.getpid(), signal.SIGKILL)
        return int, ()


class Mortal(torch.nn.Module):
    """Counts its forwards, in its state; kills its rank at one of them, or as a checkpoint is written after one.

    at, or after: the number of that forward, from 1
    """

    def __init__(self, at: int = 0, after: int = 0) -> None:
        super().__init__()
        self.at, self.after, self.count = at, after, 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.count += 1
        if self.count == self.at:
            os.kill(os.getpid(), signal.SIGKILL)
        return x

    def get_extra_state(self) -> Any:
        return DiesAsItIsWritten() if self.count and self.count == self.after else self.count

    def set_extra_state(self, state: Any) -> None:
        self.count = state


def train(mortal: Mortal, plan: str = "gpipe", p: int = 1, **options: Any) -> Any:
    given = {"loss_fn": F.cross_entropy, "optimizer": ADAM, "steps": STEPS, "checkpoint_every": 2, "progress": False}
    model = torch.nn.Sequential(*classifier(), torch.nn.Dropout(0.3), mortal)
    return pp.train(plan, model, [rows_of(5, seed=step) for step in range(STEPS)], p=p, m=M, **(given | options))


def test_case_R73_ranks_killed_in_a_save_and_in_a_step(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:  # noqa: N802
    """First, of two, rank 1 while it writes after step 4; then the one that goes on, in step 5. Each time two steps
    are lost at most."""
    left: list[set[str]] = []
    discard = Folder.discard

    def noted(folder: Folder, step: int) -> None:
        if folder.place(step).exists():
            left.append({path.name for path in folder.place(step).iterdir()})
        discard(folder, step)

    monkeypatch.setattr(Folder, "discard", noted)
    with pytest.raises(pp.RankError) as caught:
        train(Mortal(after=4 * M), "zb-h1", 2, checkpoint_dir=tmp_path)
    assert (caught.value.rank, caught.value.action) == (1, None)
    assert caught.value.cause.startswith("its process was killed by SIGKILL")
    assert f"The last checkpoint is {tmp_path}/step-00000002: training goes on from there" in str(caught.value)
    [files] = left
    assert "__1_0.distcp" in files  # it had begun
    assert ".metadata" not in files
    assert names_in(tmp_path) == ["step-00000002"]

    with pytest.raises(pp.RankError) as caught:
        train(Mortal(at=4 * M + 2), checkpoint_dir=tmp_path)
    assert str(caught.value.action) == "0F1"
    assert f"The last checkpoint is {tmp_path}/step-00000004: training goes on from there" in str(caught.value)

    training, expected = train(Mortal(), checkpoint_dir=tmp_path), train(Mortal())
    assert training.losses == pytest.approx(expected.losses, rel=1e-12)
    for name, value in expected.state_dict.items():
        torch.testing.assert_close(training.state_dict[name], value, rtol=1e-9, atol=1e-12)
    assert training.state_dict["7._extra_state"] == STEPS * M


# the process that gives a checkpoint its name


def dies_at(event: int) -> Callable[..., Any]:
    """From now on this process is killed before its so manieth call to the disk."""
    events = itertools.count()

    def counting(call: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(call)
        def counted(*arguments: Any, **options: Any) -> Any:
            if next(events) == event:
                os.kill(os.getpid(), signal.SIGKILL)
            return call(*arguments, **options)

        return counted

    for owner, name in ((os, "fsync"), (Path, "rename"), (shutil, "rmtree"), (os, "unlink")):
        setattr(owner, name, counting(getattr(owner, name)))


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system cannot fork")
def test_a_process_killed_at_any_call_leaves_a_whole_checkpoint(tmp_path: Path) -> None:
    """Three checkpoints, the last over a damaged one; killed before the first call to the disk, the second, …"""
    for event in itertools.count():
        folder, done = tmp_path / str(event), 0
        child = os.fork()
        if child == 0:
            dies_at(event)
            three_checkpoints(folder)
            os._exit(0)
        status = os.waitpid(child, 0)[1]
        assert status in (0, signal.SIGKILL)
        if (folder / "done").exists():
            done = int((folder / "done").read_text())
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # what is passed over
            found = Folder(folder).newest()
        assert (found.step if found else 0) in (done, done + 2)
        for path in folder.glob("step-*"):  # what has its name is whole
            assert isinstance(read(path), Story) or (path / "damaged").exists(), event
        if status == 0:
            assert event > 15
            return


def three_checkpoints(path: Path) -> None:
    folder = Folder(path)
    for step in (2, 4, 6):
        if step == 6:
            (path / "step-00000006").mkdir()
            (path / "step-00000006" / "damaged").touch()
        written(folder, step)
        (path / "done").write_text(str(step))


# what does not kill it: an interrupt, or a disk that is full


def fails_at(event: int, error: BaseException, patched: pytest.MonkeyPatch) -> None:
    """The so manieth call to the disk raises `error`."""
    events = itertools.count()

    def counting(call: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(call)
        def counted(*arguments: Any, **options: Any) -> Any:
            if next(events) == event:
                raise error
            return call(*arguments, **options)

        return counted

    for owner, name in ((os, "fsync"), (Path, "mkdir"), (Path, "rename"), (os, "unlink"), (os, "rmdir")):
        patched.setattr(owner, name, counting(getattr(owner, name)))


@pytest.mark.parametrize("error", [KeyboardInterrupt(), OSError(errno.ENOSPC, "No space left on device")])
def test_an_interrupt_or_a_full_disk_at_any_call_loses_nothing_that_was_whole(
    error: BaseException, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for event in itertools.count():
        path, done, ended = tmp_path / str(event), 0, False
        path.mkdir()
        saving = Saving(6, Folder(path), 2)
        with monkeypatch.context() as patched:
            fails_at(event, error, patched)
            with suppress(KeyboardInterrupt, OSError):
                for done in (0, 2, 4):
                    saving.after(History(*[[0.1] * (done + 2)] * 3), parts_of_one_rank)
                ended = True
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # an interrupt of the tidying up leaves something to be passed over
            found = Folder(path).newest()
        assert (found.step if found else 0) in (done, done + 2), event
        for whole in path.glob("step-*"):
            assert isinstance(read(whole), Story), event
        if ended:
            assert event > 10
            return
        saving.after(History(*[[0.1] * 6] * 3), parts_of_one_rank)  # once there is room again
        assert "step-00000006" in names_in(path)


def parts_of_one_rank(order: str, place: str, first: Any) -> list[Part]:
    Path(place).mkdir()
    (Path(place) / "__0_0.distcp").write_bytes(b"weights")
    return [Part("AdamW", {"__0_0.distcp": sizes(Path(place) / "__0_0.distcp")})]


def test_a_full_disk_is_told_with_its_place_and_the_last_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    saving = Saving(6, Folder(tmp_path), 2)
    saving.after(History(*[[0.1] * 2] * 3), parts_of_one_rank)
    fails_at(1, OSError(errno.ENOSPC, "No space left on device"), monkeypatch)
    with pytest.raises(OSError, match=r"No space left on device: '.*/\.step-00000004-unfinished'") as told:
        saving.after(History(*[[0.1] * 4] * 3), parts_of_one_rank)
    assert told.value.__notes__ == [saving.last()]
    assert names_in(tmp_path) == ["step-00000002"]
    assert saving.last().startswith(f"The last checkpoint is {tmp_path}/step-00000002: training goes on from there")
