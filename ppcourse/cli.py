"""The command line: ppcourse lab | demo | test | doctor | build.

Every command imports what it needs when it runs, so that `ppcourse --help` answers at once.
"""

import argparse
import hashlib
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple
from xml.etree import ElementTree

ROOT = Path(__file__).resolve().parents[1]
SOURCES = ".sources.json"  # in work/: {notebook: hash of the course's version last put there}
NBVAL = ["--nbval-lax", "--nbval-current-env", "--nbval-cell-timeout=180", "-p", "no:cacheprovider"]
# One kernel a notebook, two at once; a cell has its own time limit instead of a test's.
PARALLEL = ["-n", "2", "--dist", "loadscope", "--timeout=0"]


def main(argv: Sequence[str] | None = None) -> int:
    options, extra = parser().parse_known_args(argv)
    if extra and options.command in ("demo", "doctor"):
        parser().error(f"{options.command} does not know {' '.join(extra)}")
    try:
        return COMMANDS[options.command](options, extra)
    except KeyboardInterrupt:
        return 130


def parser() -> argparse.ArgumentParser:
    top = argparse.ArgumentParser("ppcourse", description="A course on pipeline parallelism.", allow_abbrev=False)
    commands = top.add_subparsers(dest="command", required=True)

    def add(name: str, text: str, add_help: bool = True) -> argparse.ArgumentParser:
        return commands.add_parser(name, help=text, description=text, allow_abbrev=False, add_help=add_help)

    lab = add("lab", "Open the lessons in JupyterLab, on your own copy in work/; other options go to JupyterLab.")
    lab.add_argument("--no-browser", action="store_true", help="only print the address, for a remote machine")
    lab.add_argument("--port", type=int)
    lab.add_argument("--ip", help="address to listen on")
    demo = add("demo", "Train a small GPT on 4 real ranks with two schedules; print a table, draw the charts.")
    demo.add_argument("--steps", type=int, default=20)
    demo.add_argument("--out", type=Path, default=Path("demo"), help="folder for the charts")
    test = add("test", "Check everything: lint, types, tests, notebooks; other arguments go to pytest on tests/.")
    test.add_argument("--all", action="store_true", help="the long campaigns too")
    test.add_argument("--quick", action="store_true", help="no notebooks")
    add("doctor", "Say what this machine can do.")
    add("build", "Make the notebooks from solutions/*.py.", add_help=False)  # it has its own
    return top


def require_repository() -> None:
    if not (ROOT / "course.py").exists():
        raise SystemExit("This command needs the course's repository, installed with `pip install -e .`.")


# lab: the learner's own copy


def lab(options: argparse.Namespace, extra: list[str]) -> int:
    require_repository()
    work = ROOT / "work"
    for sentence in update_work(ROOT / "notebooks", work):
        print(sentence, flush=True)
    chosen = {"--ServerApp.root_dir": work, "--ServerApp.port": options.port, "--ServerApp.ip": options.ip}
    command = [sys.executable, "-m", "jupyterlab"]
    command += [f"{key}={value}" for key, value in chosen.items() if value]
    if options.no_browser:
        command.append("--no-browser")
    if hasattr(os, "geteuid") and os.geteuid() == 0:
        command.append("--allow-root")  # as in most containers, where Jupyter would refuse to start
    environ = {**kernel_environment(), "PPCOURSE_PROGRESS": str(work / "progress.json")}
    return become([*command, *extra], environ)


def update_work(notebooks: Path, work: Path) -> Iterator[str]:
    """Copy each notebook that work/ lacks, put a changed one beside the learner's; overwrite nothing.

    Yields what the learner should know. A new version is put there and spoken of once.
    """
    work.mkdir(exist_ok=True)
    record = work / SOURCES
    seen = read_record(record)
    for source in sorted(notebooks.glob("*.ipynb")):
        content = source.read_bytes()
        digest = hashlib.sha256(content).hexdigest()
        known, mine = seen.get(source.name, digest), work / source.name
        if not mine.exists():
            put(mine, content)
        elif known != digest and mine.read_bytes() != content:
            beside = free_name(work / f"{source.stem}.new.ipynb", content)
            put(beside, content)
            yield f"{source.name} has changed in the course: your copy stays, the new one is {beside.name}."
        seen[source.name] = digest
    record.write_text(json.dumps(seen, indent=1))


def read_record(path: Path) -> dict[str, str]:
    try:
        return dict(json.loads(path.read_text()))
    except (
        FileNotFoundError,
        TypeError,
        ValueError,
    ):  # none yet, or cut short: what is there counts as up to date
        return {}


def free_name(path: Path, content: bytes) -> Path:
    """This path or the next numbered one that is free: the learner may have worked in an earlier version."""
    stem, number = path.name.removesuffix(".ipynb"), 2
    while path.exists() and path.read_bytes() != content:
        path, number = path.with_name(f"{stem}{number}.ipynb"), number + 1
    return path


def put(path: Path, content: bytes) -> None:
    if not path.exists():
        with open(path, "xb") as file:
            file.write(content)


def kernel_environment() -> dict[str, str]:
    """An environment in which the kernel `python3` is this Python's, whatever else the user has installed."""
    ours = Path(sys.prefix, "share", "jupyter")
    if not (ours / "kernels" / "python3" / "kernel.json").exists():
        subprocess.run([sys.executable, "-m", "ipykernel", "install", "--sys-prefix"], check=True)
    paths = [str(ours), *filter(None, [os.environ.get("JUPYTER_PATH")])]
    return {**os.environ, "JUPYTER_PATH": os.pathsep.join(paths)}


def become(command: list[str], environ: dict[str, str]) -> int:
    if os.name == "posix":
        os.execve(command[0], command, environ)
    return subprocess.call(command, env=environ)


# demo, doctor, build


def demo(options: argparse.Namespace, extra: list[str]) -> int:
    from ppcourse.lab.demo import main as demonstrate

    return demonstrate(options.steps, options.out) or 0


def doctor(options: argparse.Namespace, extra: list[str]) -> int:
    import ppcourse

    print(ppcourse.doctor())
    return 0


def build(options: argparse.Namespace, extra: list[str]) -> int:
    from ppcourse.lab.build import main as make

    return make(extra) or 0


# test: every part, whatever the others said


class Outcome(NamedTuple):
    part: str
    passed: int
    failed: int
    skipped: int
    seconds: float

    def __str__(self) -> str:
        counts = f"{self.passed} passed, {self.failed} failed, {self.skipped} skipped"
        return f"{self.part:12} {'FAILED' if self.failed else 'ok':6} {self.seconds:6.1f} s  {counts}"


def test(options: argparse.Namespace, extra: list[str]) -> int:
    require_repository()
    outcomes = []
    with tempfile.TemporaryDirectory() as folder:
        for name, command in parts(options.all, options.quick, extra):
            print(f"\n── {name}", flush=True)
            outcomes.append(run_part(name, command, Path(folder)))
    print("\n" + "\n".join(map(str, outcomes)))
    failed = sum(outcome.failed for outcome in outcomes)
    print(f"{sum(outcome.passed for outcome in outcomes)} passed, {failed} failed")
    return 1 if failed else 0


def parts(everything: bool, quick: bool, extra: list[str]) -> Iterator[tuple[str, list[str]]]:
    """Name and command, to be run by this Python's -m, of each part of the test."""
    code = ["ppcourse", "tests", "course.py", "solutions", "notebooks", "bench"]
    code = [path for path in code if (ROOT / path).exists()]
    yield "ruff check", ["ruff", "check", *code]
    yield "ruff format", ["ruff", "format", "--check", *code]
    yield "mypy", ["mypy", "--strict", "ppcourse"]
    named = any(Path(ROOT, argument.split("::")[0]).exists() for argument in extra)
    yield "tests", ["pytest", *([] if named else ["tests"]), *(["--all"] if everything else []), *extra]
    if not quick:
        for folder in ("notebooks", "solutions"):
            yield folder, ["pytest", *NBVAL, *PARALLEL, folder]


def run_part(name: str, command: list[str], folder: Path) -> Outcome:
    report = folder / f"{name}.xml"
    environ = {**os.environ, "PPCOURSE_PROGRESS": str(folder / f"{name}.json")}
    if command[0] == "pytest":
        command = [*command, f"--junit-xml={report}"]
    begin = time.perf_counter()
    code = subprocess.call([sys.executable, "-m", *command], cwd=ROOT, env=environ)
    if name in ("notebooks", "solutions") and not any((ROOT / name).glob("*.ipynb")):
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


COMMANDS = {"lab": lab, "demo": demo, "test": test, "doctor": doctor, "build": build}
