"""The test command: every part runs, whatever the others said, and what failed is counted."""

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple
from xml.etree import ElementTree

NBVAL = ["--nbval-lax", "--nbval-current-env", "--nbval-cell-timeout=180", "-p", "no:cacheprovider"]
# Files at once. Tests and notebooks wait for processes more than they work, so three on two cores too; the quick
# tests only work.
THREE_FILES = ["-n", "3", "--dist", "loadfile"]
TWO_FILES = ["-n", "2", "--dist", "loadfile"]
A_KERNEL_EACH = [*THREE_FILES, "--timeout=0"]  # a notebook's cells have their own limit


class Outcome(NamedTuple):
    part: str
    passed: int
    failed: int
    skipped: int
    seconds: float

    def __str__(self) -> str:
        counts = f"{self.passed} passed, {self.failed} failed, {self.skipped} skipped"
        return f"{self.part:12} {'FAILED' if self.failed else 'ok':6} {self.seconds:6.1f} s  {counts}"


def check(root: Path, everything: bool, quick: bool, extra: list[str]) -> int:
    """Run all parts in `root`, print counts; the exit code."""
    outcomes = []
    with tempfile.TemporaryDirectory() as folder:
        for name, command in parts(root, everything, quick, extra):
            print(f"\n── {name}", flush=True)
            outcomes.append(run_part(root, name, command, Path(folder)))
    print("\n" + "\n".join(map(str, outcomes)))
    failed = sum(outcome.failed for outcome in outcomes)
    print(f"{sum(outcome.passed for outcome in outcomes)} passed, {failed} failed")
    return 1 if failed else 0


def parts(root: Path, everything: bool, quick: bool, extra: list[str]) -> Iterator[tuple[str, list[str]]]:
    """Name and command, to be run by this Python's -m, of each part of the test.

    A quick one leaves out the notebooks, and the tests marked thorough unless `extra` chooses tests.
    """
    code = ["ppcourse", "tests", "course.py", "solutions", "notebooks", "bench"]
    code = [path for path in code if (root / path).exists()]
    yield "ruff check", ["ruff", "check", *code]
    yield "ruff format", ["ruff", "format", "--check", *code]
    yield "mypy", ["mypy", "--strict", "--num-workers", "2", "ppcourse", "bench"]
    named = any(Path(root, argument.split("::")[0]).exists() for argument in extra)
    at_once = [] if extra else TWO_FILES if quick else THREE_FILES
    what = [] if named else ["tests", *at_once]
    which = [*(["--all"] if everything else []), *(["-m", "not thorough"] if quick and not extra else [])]
    yield "tests", ["pytest", *what, *which, *extra]
    if not quick:
        for folder in ("notebooks", "solutions"):
            yield folder, ["pytest", *NBVAL, *A_KERNEL_EACH, folder]


def run_part(root: Path, name: str, command: list[str], folder: Path) -> Outcome:
    report = folder / f"{name}.xml"
    environ = {**os.environ, "PPCOURSE_PROGRESS": str(folder / f"{name}.json")}
    if command[0] == "pytest":
        command = [*command, f"--junit-xml={report}"]
    begin = time.perf_counter()
    code = subprocess.call([sys.executable, "-m", *command], cwd=root, env=environ)
    if name in ("notebooks", "solutions") and not any((root / name).glob("*.ipynb")):
        print(f"There are no notebooks in {name}/: `ppcourse build` makes them.")
    return Outcome(name, *count(report, code), time.perf_counter() - begin)


def count(report: Path, code: int) -> tuple[int, int, int]:
    """How many passed, failed, were skipped; without a report, the exit code is the one thing tested.

    An expected failure is a failure: it is how nbval reports the cells after one that never came back.
    """
    if not report.exists():
        return int(code == 0), int(code != 0), 0
    cases = list(ElementTree.parse(report).iter("testcase"))
    failed = sum(any(failure(child) for child in case) for case in cases)
    skipped = sum(case.find("skipped") is not None for case in cases if not any(map(failure, case)))
    passed = len(cases) - failed - skipped
    return passed, failed or int(code != 0), skipped


def failure(child: ElementTree.Element) -> bool:
    return child.tag in ("failure", "error") or child.get("type") == "pytest.xfail"
