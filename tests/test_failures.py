"""A rank that fails: who, where and why within two seconds, no process left, and the next run works."""

import ctypes
import functools
import itertools
import os
import re
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from toys import by_value, classifier, is_gone, no_rank_starts, pids_of, rows_of, soon

import ppcourse as pp
from ppcourse.runtime.processes import ranks
from ppcourse.schedules.action import Op

by_value(__name__)
pytestmark = pytest.mark.thorough

IN_TIME = 10.0  # seconds from the event, or from the end of the timeout, on a very busy machine (a hang: 60)


def raises() -> None:
    raise ValueError("boom")  # the learner's own line


def deep() -> None:
    raises()


def hangs_in_python() -> None:
    while True:
        pass


def hangs_in_sleep() -> None:
    time.sleep(1000)


def hangs_in_native_code() -> None:
    sum(itertools.repeat(1))


def crashes() -> None:
    ctypes.string_at(0)


def signals(number: int) -> Callable[[], None]:
    return lambda: os.kill(os.getpid(), number)


class Fails(nn.Module):
    """Does something bad at its n-th forward, and notes when."""

    def __init__(self, event: Callable[[], Any], at: int, note: Path) -> None:
        super().__init__()
        self.event, self.at, self.note, self.count = event, at, note, 0

    def forward(self, x: Tensor) -> Tensor:
        self.count += 1
        if self.count == self.at:
            self.note.write_text(str(time.time()))
            self.event()
        return x


class FailsBackward(Fails):
    def forward(self, x: Tensor) -> Tensor:
        x = x.clone()
        if x.requires_grad:
            x.register_hook(self.hook)
        return x

    def hook(self, grad: Tensor) -> None:
        self.count += 1
        if self.count == self.at:
            self.note.write_text(str(time.time()))
            self.event()


def broken(event: Callable[[], Any], note: Path, kind: type[Fails] = Fails, at: int = 4) -> list[nn.Module]:
    """Three layers, for three ranks; the one on rank 1 fails at its fourth forward or backward."""
    return [nn.Linear(4, 4).double(), kind(event, at, note), nn.Linear(4, 3).double()]


def fail(model: list[nn.Module], note: Path, timeout: float = 60.0, plan: str = "1f1b", m: int = 6) -> pp.RankError:
    """The error of a run that fails, after a look at everything that must hold whatever the failure."""
    inputs, targets = rows_of(2 * m)
    pids = pids_of(3)
    with pytest.raises(pp.RankError) as caught:
        pp.run(plan, model, inputs, targets, p=3, m=m, loss_fn=F.cross_entropy, timeout=timeout)
    waited = time.time() - float(note.read_text())
    assert waited - (timeout if timeout < 60 else 0) < IN_TIME
    assert all(is_gone(pid) for pid in pids)
    assert_next_run_works()
    error: pp.RankError = caught.value
    return error


def assert_next_run_works() -> None:
    inputs, targets = rows_of(4)
    expected = pp.reference_step(classifier(), inputs, targets, loss_fn=F.cross_entropy)
    result = pp.run("1f1b", classifier(), inputs, targets, p=3, m=2, loss_fn=F.cross_entropy)
    assert result.loss == pytest.approx(expected.loss)


def assert_at(error: pp.RankError, action: str) -> None:
    """Rank, stage, microbatch and action, as attributes and in words."""
    expected = pp.Action.parse(action)
    assert (error.rank, error.action) == (1, expected)
    assert (error.stage, error.microbatch) == (expected.stage, expected.microbatch)
    doing = "forward" if expected.op is Op.F else "backward"
    where = f"Rank 1 failed in {action} (stage 1, {doing} of microbatch {expected.microbatch}): "
    assert str(error).startswith(where + error.cause)


ENDINGS: dict[str, tuple[Callable[[], Any], str, str]] = {
    # what the layer does: (event, cause, the learner's line in the traceback, "" if there can be none)
    "raises": (deep, r"ValueError: boom", 'raise ValueError("boom")  # the learner\'s own line'),
    "exits with 3": (functools.partial(os._exit, 3), r"its process ended with exit code 3", ""),
    "exits with 0": (functools.partial(os._exit, 0), r"its process ended with exit code 0", ""),
    "sys.exit": (functools.partial(sys.exit, 3), r"SystemExit: 3", "self.event()"),
    "killed": (signals(signal.SIGKILL), r"its process was killed by SIGKILL \(.*memory runs out\)", ""),
    "terminated": (signals(signal.SIGTERM), r"its process was killed by SIGTERM", ""),
    "crashes": (crashes, r"its process was killed by SIGSEGV", "ctypes.string_at(0)"),
    "aborts": (os.abort, r"its process was killed by SIGABRT", "self.event()"),
}


@pytest.mark.parametrize("ending", ENDINGS)
def test_case_R76(ending: str, tmp_path: Path) -> None:  # noqa: N802
    """Rank 1 of 3 ends at its fourth forward: its name, place and traceback, not those of its victims."""
    event, cause, line = ENDINGS[ending]
    error = fail(broken(event, tmp_path / "note"), tmp_path / "note")
    assert_at(error, "1F3")
    assert re.fullmatch(cause, error.cause)
    assert line in error.traceback
    assert (error.traceback != "") == (line != "")
    if line:
        assert "test_failures.py" in error.traceback
        assert error.traceback.rstrip() in str(error)
        assert "ppcourse/runtime" not in error.traceback  # only what the learner can change


def test_a_failure_in_backward_says_so(tmp_path: Path) -> None:
    error = fail(broken(deep, tmp_path / "note", FailsBackward, at=2), tmp_path / "note")
    assert_at(error, "1B1")
    assert error.cause == "ValueError: boom"
    assert "the learner's own line" in error.traceback


def bad_loss(logits: Tensor, targets: Tensor) -> Tensor:
    if (targets == 2).all():
        raise ArithmeticError("no twos, please")
    return F.cross_entropy(logits, targets)


def test_a_failure_of_the_loss_belongs_to_the_last_stages_forward() -> None:
    inputs, _ = rows_of(6)
    with pytest.raises(pp.RankError, match="no twos, please") as caught:
        pp.run("gpipe", classifier(), inputs, torch.tensor([0, 1, 0, 1, 2, 2]), p=2, m=3, loss_fn=bad_loss)
    assert str(caught.value.action) == "1F2"
    assert "raise ArithmeticError" in caught.value.traceback


class Tantrum(torch.optim.SGD):
    def step(self, closure: Any = None) -> None:
        raise RuntimeError("I will not learn")


def test_a_failure_of_the_optimizer_is_between_two_actions() -> None:
    with pytest.raises(pp.RankError, match="I will not learn") as caught:
        pp.train(
            "gpipe",
            classifier(),
            [rows_of(4)],
            p=2,
            m=2,
            steps=1,
            loss_fn=F.cross_entropy,
            optimizer=Tantrum,
            progress=False,
        )
    assert caught.value.action is caught.value.stage is caught.value.microbatch is None
    assert "failed between two actions" in str(caught.value)
    assert "raise RuntimeError" in caught.value.traceback


class Stubborn:
    """Ends the rank that unpacks it, while the others wait for that rank to begin the step."""

    def __reduce__(self) -> Any:
        return _end_later, (0.3,)


def _end_later(seconds: float) -> None:
    time.sleep(seconds)
    os._exit(7)


def first_of(logits: Tensor, targets: tuple[Tensor, Any]) -> Tensor:
    return F.cross_entropy(logits, targets[0])


def test_a_rank_that_ends_before_the_step_begins_is_the_one_blamed() -> None:
    inputs, targets = rows_of(4)
    for _ in range(3):  # what the others say of it may come first
        with pytest.raises(pp.RankError) as caught:
            pp.run("gpipe", classifier(), inputs, (targets, Stubborn()), p=4, m=2, loss_fn=first_of)
        assert (caught.value.rank, caught.value.cause) == (3, "its process ended with exit code 7")


# nothing moves

HANGS: dict[str, tuple[Callable[[], Any], str, str]] = {
    "sleep": (hangs_in_sleep, "at work", "time.sleep(1000)"),
    "python": (hangs_in_python, "at work", "while True:|pass"),
    "native code": (hangs_in_native_code, "at work", "sum(itertools.repeat(1))"),
    "stopped": (signals(signal.SIGSTOP), "stopped", ""),
}


@pytest.mark.parametrize("hang", HANGS)
def test_case_R77(hang: str, tmp_path: Path) -> None:  # noqa: N802
    """Rank 1 of 3 hangs in its second forward: after the timeout, who, where, and where all the others stood."""
    event, why, line = HANGS[hang]
    error = fail(broken(event, tmp_path / "note", at=2), tmp_path / "note", timeout=0.5)
    assert_at(error, "1F1")
    assert error.cause.startswith("nothing moved for 0.5 s")
    assert why in error.cause
    assert re.search(r"rank 0 waited for the gradient of rank 1 to start 0B\d, its action \d of 12", str(error))
    assert re.search(r"rank 1 was running 1F1, its action \d of 12", str(error))
    assert re.search(r"rank 2 waited for the activation of rank 1 to start 2F[01], its action [13] of 12", str(error))
    assert any(part in error.traceback for part in line.split("|"))
    assert (error.traceback != "") == (line != "")


def test_case_R78_waiting_has_a_deadline_of_its_own() -> None:  # noqa: N802
    """Nobody works, all wait for messages that are under way for ever: the link's own timeout is not asked."""
    inputs, targets = rows_of(4)
    pids, start = pids_of(3), time.time()
    with pytest.raises(pp.RankError, match=r"nothing moved for 0\.5 s") as caught:
        pp.run(
            "1f1b",
            classifier(),
            inputs,
            targets,
            p=3,
            m=2,
            loss_fn=F.cross_entropy,
            pace=pp.Costs(0.0, 0.0, 0.0, comm=1000.0),
            timeout=0.5,
        )
    assert time.time() - start < 0.5 + IN_TIME + 1
    assert re.search(r"rank 1 waited for the activation of rank 0 to start 1F0, its action 1 of 4", str(caught.value))
    assert re.search(r"rank 0 waited for the gradient of rank 1 to start 0B0", str(caught.value))
    assert all(is_gone(pid) for pid in pids)
    assert_next_run_works()


class Late:
    """Hangs in the rank that unpacks it; on its way to a look ahead of the run it is still harmless."""

    def __reduce__(self) -> Any:
        return _sleep_unless_it_is_the_only_rank, ()


def _sleep_unless_it_is_the_only_rank() -> None:
    if dist.is_initialized():
        time.sleep(1000)


class Asleep(torch.optim.SGD):
    """Hangs in its step on the rank that holds the layer of 4 × 5 weights."""

    def step(self, closure: Any = None) -> None:
        if any(tuple(weight.shape) == (5, 4) for group in self.param_groups for weight in group["params"]):
            time.sleep(1000)
        super().step()


def test_a_rank_that_hangs_while_it_unpacks_its_layers_is_the_one_blamed() -> None:
    model = [nn.Linear(4, 4).double(), nn.Tanh(), nn.Linear(4, 3).double()]
    model[1].late = Late()
    with pytest.raises(pp.RankError, match=r"Rank 1 failed between two actions: nothing moved for 0\.5 s") as caught:
        pp.run("1f1b", model, *rows_of(4), p=3, m=2, loss_fn=F.cross_entropy, timeout=0.5)
    assert "time.sleep(1000)" in caught.value.traceback


def test_a_rank_that_hangs_while_it_unpacks_its_batch_is_the_one_blamed() -> None:
    inputs, targets = rows_of(4)
    with pytest.raises(pp.RankError, match=r"Rank 2 failed between two actions: nothing moved for 0\.5 s") as caught:
        pp.run("1f1b", classifier(), inputs, (targets, Late()), p=3, m=2, loss_fn=first_of, timeout=0.5)
    assert "time.sleep(1000)" in caught.value.traceback


def test_a_rank_that_hangs_in_its_optimizer_is_the_one_blamed() -> None:
    options: dict[str, Any] = {"p": 3, "m": 2, "steps": 1, "loss_fn": F.cross_entropy, "progress": False}
    model = classifier()  # its 5 × 4 weights are in the first layer
    pp.train("1f1b", model, [rows_of(4)], optimizer=torch.optim.SGD, **options)
    with pytest.raises(pp.RankError, match=r"Rank 0 failed between two actions: nothing moved for 1 s") as caught:
        pp.train("1f1b", model, [rows_of(4)], optimizer=Asleep, timeout=1, **options)
    assert "time.sleep(1000)" in caught.value.traceback


@pytest.mark.parametrize("width", [10, 100_000])
def test_a_rank_that_was_stopped_between_two_runs_is_found(width: int) -> None:
    """Also when the weights it is sent (2 MB) are more than a pipe holds."""
    model = nn.Sequential(nn.Identity(), nn.Linear(4, width), nn.Linear(width, 3))
    inputs, targets = rows_of(4)
    ranks.close_all()  # in ranks that have worked before it would be found too, but replaced without a word
    pids = pids_of(2)
    os.kill(pids[1], signal.SIGSTOP)
    done = threading.Event()

    def rescue() -> None:  # so that this test ends when it fails
        if not done.wait(8):
            os.kill(pids[1], signal.SIGKILL)

    threading.Thread(target=rescue, daemon=True).start()
    start = time.time()
    with pytest.raises(pp.RankError, match="nothing moved for 1 s, and its process is stopped") as caught:
        pp.run("gpipe", model, inputs.float(), targets, p=2, m=2, partition=(1, 2), loss_fn=F.cross_entropy, timeout=1)
    done.set()
    assert caught.value.rank == 1
    assert time.time() - start < 1 + IN_TIME
    assert all(is_gone(pid) for pid in pids)


def test_a_step_that_moves_may_take_longer_than_the_timeout() -> None:
    inputs, targets = rows_of(4)
    pace = pp.Costs(forward=0.2, input_grad=0.1, weight_grad=0.1)
    result = pp.run("naive", classifier(), inputs, targets, p=2, m=2, loss_fn=F.cross_entropy, pace=pace, timeout=0.5)
    assert result.timeline.makespan > 1.5


# what ranks print


class Talks(nn.Module):
    def __init__(self, text: str, event: Callable[[], Any] | None = None) -> None:
        super().__init__()
        self.text, self.event = text, event

    def forward(self, x: Tensor) -> Tensor:
        print(self.text)
        os.write(1, b"native\n")
        if self.event:
            self.event()
        return x


def test_what_ranks_print_is_shown_once_by_rank(capfd: pytest.CaptureFixture[str]) -> None:
    inputs, targets = rows_of(4)
    model = [nn.Sequential(Talks("one"), nn.Linear(4, 3).double()), Talks("two\nlines")]
    pp.run("gpipe", model, inputs, targets, p=2, m=2, loss_fn=F.cross_entropy)
    rank0 = ["[rank 0] one", "[rank 0] native"] * 2
    rank1 = ["[rank 1] two", "[rank 1] lines", "[rank 1] native"] * 2
    assert capfd.readouterr() == ("\n".join(rank0 + rank1) + "\n", "")
    assert_next_run_works()
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize("event", [raises, hangs_in_sleep, crashes, signals(signal.SIGKILL)])
def test_what_a_rank_printed_before_it_failed_is_shown(
    event: Callable[[], Any], capfd: pytest.CaptureFixture[str]
) -> None:
    inputs, targets = rows_of(4)
    model = [nn.Linear(4, 3).double(), Talks("x = 3", event)]
    with pytest.raises(pp.RankError):
        pp.run("gpipe", model, inputs, targets, p=2, m=2, loss_fn=F.cross_entropy, timeout=0.5)
    assert capfd.readouterr().out.splitlines() == ["[rank 1] x = 3", "[rank 1] native"]


# what cannot travel


class Locked(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Sequential(nn.Tanh(), nn.Module())
        self.inner[1].guard = threading.Lock()

    def forward(self, x: Tensor) -> Tensor:
        return self.inner[0](x)


class Logs(nn.Module):
    def __init__(self, path: Path, mode: str) -> None:
        super().__init__()
        self.log = path.open(mode)

    def forward(self, x: Tensor) -> Tensor:
        return x


def locked_loss() -> Callable[[Tensor, Tensor], Tensor]:
    guard = threading.Lock()

    def loss(logits: Tensor, targets: Tensor) -> Tensor:
        with guard:
            return F.cross_entropy(logits, targets)

    return loss


def assert_cannot_travel(model: Any, parts: list[str], monkeypatch: pytest.MonkeyPatch, **options: Any) -> None:
    given: dict[str, Any] = {"loss_fn": F.cross_entropy, "p": 2, "m": 2} | options
    with no_rank_starts(monkeypatch), pytest.raises(ValueError, match="cannot travel to a rank") as caught:
        pp.run("gpipe", model, *rows_of(4), **given)
    assert "\n" not in str(caught.value)
    for part in parts:
        assert part in str(caught.value)


def test_case_R82_a_lock_is_named(monkeypatch: pytest.MonkeyPatch) -> None:  # noqa: N802
    model = [*classifier(), Locked()]
    assert_cannot_travel(model, ["Layer 6 (Locked)", "attribute 'guard', a lock,"], monkeypatch)


@pytest.mark.parametrize("mode", ["w", "wb"])
def test_case_R82_an_open_file_is_named(mode: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:  # noqa: N802
    layer = Logs(tmp_path / "log.txt", mode)
    assert_cannot_travel([layer, *classifier()], ["Layer 0 (Logs)", "attribute 'log', a "], monkeypatch)
    layer.log.close()


def test_case_R82_what_a_loss_function_closes_over_is_named(monkeypatch: pytest.MonkeyPatch) -> None:  # noqa: N802
    assert_cannot_travel(classifier(), ["loss_fn", "variable 'guard', a lock,"], monkeypatch, loss_fn=locked_loss())


def test_case_R82_a_batch_that_cannot_travel_is_named(monkeypatch: pytest.MonkeyPatch) -> None:  # noqa: N802
    inputs, targets = rows_of(4)
    with no_rank_starts(monkeypatch), pytest.raises(ValueError, match=r"^targets? cannot travel to a rank"):
        pp.run("gpipe", classifier(), inputs, (targets, threading.Lock()), p=2, m=2, loss_fn=first_of)


def locked_optimizer(parameters: Iterable[nn.Parameter], guard: Any = threading.Lock()) -> Any:  # noqa: B008
    return torch.optim.SGD(parameters, lr=0.1)


def test_case_R82_an_optimizer_that_cannot_travel_is_named(monkeypatch: pytest.MonkeyPatch) -> None:  # noqa: N802
    with no_rank_starts(monkeypatch), pytest.raises(ValueError, match=r"^optimizer cannot travel to a rank"):
        pp.train(
            "gpipe",
            classifier(),
            [rows_of(4)],
            p=2,
            m=2,
            steps=1,
            loss_fn=F.cross_entropy,
            optimizer=locked_optimizer,
        )


def test_nothing_of_a_failed_run_stays_in_memory_or_on_disk(tmp_path: Path) -> None:
    before = len(psutil.Process().open_files()), psutil.Process().num_fds()
    for _ in range(3):
        with pytest.raises(pp.RankError):
            pp.run("gpipe", broken(raises, tmp_path / "note", at=2), *rows_of(4), p=3, m=2, loss_fn=F.cross_entropy)
    assert soon(lambda: psutil.Process().num_fds() <= before[1] + 8)
