"""work/: the learner's own copy of the lessons, and JupyterLab on it."""

import argparse
import hashlib
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

SOURCES = ".sources.json"  # in work/: {notebook: hash of the course's version last put there}


def lab(root: Path, options: argparse.Namespace, extra: list[str]) -> int:
    """Open JupyterLab on work/ in `root`, brought up to date."""
    work = root / "work"
    for sentence in update_work(root / "notebooks", work):
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
