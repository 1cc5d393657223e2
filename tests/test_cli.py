"""The command line: light, careful with the learner's work, and honest about what failed."""

import json
import os
import subprocess
import sys
from pathlib import Path

import nbformat
import pytest
from test_course import course

from ppcourse import cli
from ppcourse.cli import check, workspace


def python(code: str, **environ: str) -> str:
    command = [sys.executable, "-c", code]
    return subprocess.run(command, env={**os.environ, **environ}, capture_output=True, text=True, check=True).stdout


def test_help_needs_neither_torch_nor_matplotlib() -> None:
    heavy = {"torch", "matplotlib", "ipywidgets", "jupyterlab"}
    assert python(f"import sys, ppcourse.cli as c; c.parser(); print({heavy} & set(sys.modules))") == "set()\n"


def test_course_py_knows_the_same_commands() -> None:
    assert list(course.COMMANDS) == list(cli.COMMANDS)


def test_an_interrupt_ends_quietly_with_130(monkeypatch, capsys) -> None:
    def interrupted(options, extra) -> int:
        raise KeyboardInterrupt

    monkeypatch.setitem(cli.COMMANDS, "doctor", interrupted)
    assert cli.main(["doctor"]) == 130
    assert capsys.readouterr() == ("", "")


def test_an_unknown_error_is_not_swallowed(monkeypatch) -> None:
    monkeypatch.setitem(cli.COMMANDS, "doctor", lambda options, extra: 1 // 0)
    with pytest.raises(ZeroDivisionError):
        cli.main(["doctor"])


# lab: work/ is the learner's


@pytest.fixture
def lessons(tmp_path) -> tuple[Path, Path]:
    (tmp_path / "notebooks").mkdir()
    for name in ("03_a.ipynb", "04_b.ipynb"):
        (tmp_path / "notebooks" / name).write_text(f"{name} as the course has it")
    return tmp_path / "notebooks", tmp_path / "work"


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.glob("*.ipynb"))


def test_the_first_start_copies_every_lesson(lessons) -> None:
    notebooks, work = lessons
    assert list(workspace.update_work(*lessons)) == []
    assert names(work) == names(notebooks)
    assert (work / "03_a.ipynb").read_text() == "03_a.ipynb as the course has it"


def test_the_learners_copy_is_never_overwritten_and_new_lessons_are_added(lessons) -> None:
    notebooks, work = lessons
    list(workspace.update_work(*lessons))
    (work / "03_a.ipynb").write_text("mine")
    (notebooks / "05_c.ipynb").write_text("new")
    assert list(workspace.update_work(*lessons)) == []
    assert (work / "03_a.ipynb").read_text() == "mine"
    assert names(work) == ["03_a.ipynb", "04_b.ipynb", "05_c.ipynb"]


def test_a_new_version_is_put_beside_and_spoken_of_once(lessons) -> None:
    notebooks, work = lessons
    list(workspace.update_work(*lessons))
    (work / "03_a.ipynb").write_text("mine")
    (notebooks / "03_a.ipynb").write_text("second version")
    (sentence,) = workspace.update_work(*lessons)
    assert "03_a.ipynb has changed" in sentence
    assert "03_a.new.ipynb" in sentence
    assert (work / "03_a.ipynb").read_text() == "mine"
    assert (work / "03_a.new.ipynb").read_text() == "second version"
    assert list(workspace.update_work(*lessons)) == []


def test_work_done_in_a_new_version_is_kept_too(lessons) -> None:
    notebooks, work = lessons
    list(workspace.update_work(*lessons))
    for version in ("second version", "third version"):
        (notebooks / "03_a.ipynb").write_text(version)
        list(workspace.update_work(*lessons))
        (work / "03_a.new.ipynb").write_text("mine too")
    assert (work / "03_a.new.ipynb").read_text() == "mine too"
    assert (work / "03_a.new2.ipynb").read_text() == "third version"


@pytest.mark.parametrize("record", [None, '{"03_a.ip'])
def test_a_lost_record_loses_no_work(lessons, record) -> None:
    _, work = lessons
    list(workspace.update_work(*lessons))
    (work / "03_a.ipynb").write_text("mine")
    (work / workspace.SOURCES).unlink() if record is None else (work / workspace.SOURCES).write_text(record)
    assert list(workspace.update_work(*lessons)) == []
    assert (work / "03_a.ipynb").read_text() == "mine"


@pytest.fixture
def started(lessons, monkeypatch) -> list:
    """What `lab` became, as [command, environment]."""
    calls: list = []
    monkeypatch.setattr(cli, "ROOT", lessons[0].parent)
    (cli.ROOT / "course.py").touch()
    monkeypatch.setattr(workspace, "become", lambda *call: calls.extend(call) or 0)
    return calls


def test_lab_opens_work_with_its_progress_file(lessons, started) -> None:
    assert cli.main(["lab", "--no-browser", "--port", "9", "--ip", "0.0.0.0", "--log-level=ERROR"]) == 0
    command, environ = started
    work = lessons[1]
    assert command[:3] == [sys.executable, "-m", "jupyterlab"]
    wanted = {f"--ServerApp.root_dir={work}", "--ServerApp.port=9", "--ServerApp.ip=0.0.0.0", "--no-browser"}
    assert wanted | {"--log-level=ERROR"} <= set(command)
    assert environ["PPCOURSE_PROGRESS"] == str(work / "progress.json")
    assert names(work) == ["03_a.ipynb", "04_b.ipynb"]


@pytest.mark.thorough
def test_the_kernel_is_this_pythons_whatever_the_user_has_installed(tmp_path) -> None:
    theirs = tmp_path / "kernels" / "python3"
    theirs.mkdir(parents=True)
    (theirs / "kernel.json").write_text(json.dumps({"argv": ["/other/python"], "display_name": "other"}))
    find = "from jupyter_client.kernelspec import get_kernel_spec as f; print(f('python3').resource_dir)"
    misleading = {"JUPYTER_DATA_DIR": str(tmp_path), "JUPYTER_PREFER_ENV_PATH": "0"}
    assert python(find, **misleading).strip() == str(theirs)
    ours = Path(sys.prefix, "share", "jupyter", "kernels", "python3")
    assert python(find, **{**workspace.kernel_environment(), **misleading}).strip() == str(ours)


# test: every part runs, and what failed is counted


def commands(*arguments: str) -> dict[str, list[str]]:
    options, extra = cli.parser().parse_known_args(["test", *arguments])
    return dict(check.parts(cli.ROOT, options.all, options.quick, extra))


def test_the_parts_of_the_test() -> None:
    assert list(commands()) == ["ruff check", "ruff format", "mypy", "tests", "notebooks", "solutions"]
    assert list(commands("--quick")) == ["ruff check", "ruff format", "mypy", "tests"]
    assert commands()["tests"] == ["pytest", "tests", *check.THREE_FILES]
    assert commands("--all")["tests"] == ["pytest", "tests", *check.THREE_FILES, "--all"]
    assert commands("--quick")["tests"] == ["pytest", "tests", *check.TWO_FILES, "-m", "not thorough"]
    assert commands("--quick", "-k", "gpipe")["tests"] == ["pytest", "tests", "-k", "gpipe"]
    assert commands("-k", "gpipe", "-x")["tests"] == ["pytest", "tests", "-k", "gpipe", "-x"]
    assert commands("tests/test_cli.py::x")["tests"] == ["pytest", "tests/test_cli.py::x"]


@pytest.mark.thorough
def test_a_failed_part_stops_nothing_and_every_result_is_counted(started, monkeypatch, capfd) -> None:
    (cli.ROOT / "test_one.py").write_text(
        "import os, pathlib, pytest\n"
        "def test_a(): assert not pathlib.Path(os.environ['PPCOURSE_PROGRESS']).exists()\n"
        "def test_b(): assert 0\n"
        "def test_c(): pytest.skip('no GPU')\n"
        "@pytest.mark.xfail\n"
        "def test_d(): assert 0\n"
    )
    parts = {"lint": ["nothing_of_this_name"], "tests": ["pytest", "test_one.py"], "last": ["this", "-h"]}
    monkeypatch.setattr(check, "parts", lambda *arguments: parts.items())
    assert cli.main(["test"]) == 1
    *_, lint, tests, last, total = capfd.readouterr().out.splitlines()
    assert total == "2 passed, 3 failed"
    assert lint.startswith("lint         FAILED")
    assert tests.endswith("1 passed, 2 failed, 1 skipped")
    assert last.startswith("last         ok")


@pytest.mark.thorough
def test_no_notebooks_is_a_failure_that_is_said(started, capfd) -> None:
    for path in (cli.ROOT / "notebooks").iterdir():
        path.unlink()
    outcome = check.run_part(cli.ROOT, "notebooks", ["pytest", "notebooks"], cli.ROOT)
    assert outcome.failed == 1
    assert "There are no notebooks in notebooks/" in capfd.readouterr().out


@pytest.mark.thorough
@pytest.mark.parametrize("cell", ["import os; os._exit(1)", "import time; time.sleep(60)"])
def test_the_cells_after_a_dead_or_endless_one_count_as_failed(started, cell) -> None:
    cells = [nbformat.v4.new_code_cell(source) for source in ("1", cell, "raise ValueError", "2")]
    kernel = {
        "kernelspec": {"name": "python3", "display_name": "Python 3"},
        "language_info": {"name": "python"},
    }
    nbformat.write(nbformat.v4.new_notebook(cells=cells, metadata=kernel), cli.ROOT / "notebooks" / "03_a.ipynb")
    command = [
        "pytest",
        "-o",
        "xfail_strict=true",
        *check.NBVAL,
        "--nbval-cell-timeout=5",
        "notebooks/03_a.ipynb",
    ]
    outcome = check.run_part(cli.ROOT, "notebooks", command, cli.ROOT)
    assert (outcome.passed, outcome.failed) == (1, 3)
