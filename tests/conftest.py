"""What every test shares: which tests a run holds, that no test writes a learner's progress, and that none leaves
the process in another state than it found it in."""

import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ppcourse.lab import progress as progress_of_learner
from ppcourse.lab.torch_state import restore, torch_state

USUAL = (signal.SIG_DFL, signal.SIG_IGN, signal.default_int_handler)
OFTEN_SET = ("PYTEST_CURRENT_TEST", "PPCOURSE_SERVER_FOLDER")  # by pytest, and when the first ranks are started
OURS = ("PPCOURSE_", "CUDA_", "NCCL_", "GLOO_")  # other new variables are a library's, which sets them as it loads


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--all", action="store_true", help="run the slow campaigns too")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if not config.getoption("--all"):
        for item in items:
            if "slow" in item.keywords:
                item.add_marker(pytest.mark.skip(reason="a long campaign: --all runs it"))


@pytest.fixture(scope="session", autouse=True)
def progress(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A progress file of this session's own, also for the kernels and ranks that tests start."""
    path = tmp_path_factory.mktemp("progress") / "progress.json"
    os.environ["PPCOURSE_PROGRESS"] = str(path)
    return path


@pytest.fixture
def own_progress(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An empty progress file, of this test alone."""
    monkeypatch.setenv("PPCOURSE_PROGRESS", str(tmp_path / "progress.json"))
    monkeypatch.setattr(progress_of_learner, "unsaved", {})


def process_state() -> dict[str, Any]:
    """What a test may change of its process and the tests after it would feel."""
    handlers = {number.name: signal.getsignal(number) for number in (signal.SIGALRM, signal.SIGINT, signal.SIGTERM)}
    # a Python's own handlers are what Jupyter and an ended time limit leave, and spoil nothing
    ours = {name: handler for name, handler in handlers.items() if handler not in USUAL}
    environ = {name: value for name, value in os.environ.items() if name not in OFTEN_SET}
    return {"torch": torch_state(), "tracer": sys.gettrace(), "cwd": Path.cwd(), **ours, **environ}


@pytest.fixture(autouse=True)
def nothing_stays(progress: Path) -> Iterator[None]:
    """Fails the test that leaves something, where otherwise a later one would fail, in some orders only."""
    before = process_state()
    yield
    after = process_state()
    restore(before["torch"])
    loaded = {name for name in os.environ if name not in before and not name.startswith(OURS)}
    left = {name: (before.get(name), now) for name, now in after.items() if now != before.get(name)}
    left = {name: change for name, change in left.items() if name not in loaded}
    gone = {name for name in before.keys() - after.keys() if not name.startswith("SIG")}
    assert not left, f"left, as (before, after): {left}"
    assert not gone, f"taken away: {gone}"
