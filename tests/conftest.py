"""What every test shares: the long campaigns wait for --all, and no test writes a learner's progress."""

import os
from pathlib import Path

import pytest


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
