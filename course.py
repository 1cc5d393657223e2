#!/usr/bin/env python3
"""Set up the course and start it:  python3 course.py lab

Makes .venv beside this file, installs the course there as pinned in constraints.txt, and hands over to
`ppcourse` in it. When nothing changed, it only hands over.

A stamp in .venv says what it was made for. It says `finished: false` from before the first change until
after the last one, so an install that died half-way is never mistaken for a whole one: it is made anew.

Standard library only, in the syntax of Python 3.6, so that an old Python can still say that it is too old.
"""

import contextlib
import hashlib
import importlib.util
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from typing import Any, Callable, Dict, Iterator, List, Mapping, Optional, TextIO, Tuple

try:
    import fcntl
except ImportError:  # Windows: no lock, one start at a time
    fcntl = None  # type: ignore[assignment]

ROOT = os.path.dirname(os.path.abspath(__file__))
MINIMUM = (3, 11)
TORCH_INDEX = "PPCOURSE_TORCH_INDEX"
CPU_INDEX = "https://download.pytorch.org/whl/cpu"
STAMP = "ppcourse.json"
LOG = "install.log"
COMMANDS = {
    "lab": "open the lessons in JupyterLab, on your own copy in work/ (--no-browser --port N)",
    "demo": "train a small GPT on 4 real ranks with two schedules and draw the charts (--steps N --out DIR)",
    "train": "train a small GPT by any schedule, here or under torchrun (--help)",
    "schedules": "compare all schedules: time, bubble, memory, their names elsewhere (-p N -m N --comm C)",
    "test": "check everything: lint, types, tests, every notebook (--quick, --all)",
    "doctor": "say what this machine can do",
    "gpu-check": "check on this machine's GPUs what the course does, in 5 minutes (--dry: on the CPU; --out FILE)",
    "build": "make the notebooks from solutions/*.py (NN …, --check)",
}
HELP = """usage: python3 course.py COMMAND [options]

{commands}

Everything is installed into .venv beside this file, once. On Linux the usual torch is the one for NVIDIA
GPUs, a download of 2.6 GB. Without a GPU, take the small one the first time:

    {variable}=cpu python3 course.py lab

{variable} is a pip index to take torch from; `cpu` is short for
{index}.""".format(
    commands="\n".join("  {:11}{}".format(*item) for item in COMMANDS.items()),
    variable=TORCH_INDEX,
    index=CPU_INDEX,
)
NO_SPACE = "No space left on device|Errno 28|Disk quota exceeded"
NO_NETWORK = (
    "NewConnectionError|NameResolutionError|Name or service not known|name resolution|ConnectTimeout|"
    "Connection refused|Network is unreachable|Read timed out|ProxyError|Connection broken"
)

Step = Tuple[str, List[str]]  # what to tell the user, and the command
Run = Callable[[List[str], TextIO], int]  # runs a command, its output into a log; gives its exit code


class SetupError(Exception):
    """What is wrong and what to do, in one sentence."""


def say(sentence: str) -> None:
    print(sentence, file=sys.stderr, flush=True)


def too_old(version: Tuple[int, ...]) -> Optional[str]:
    """The sentence for a Python below the minimum, else None."""
    if version >= MINIMUM:
        return None
    return (
        "The course needs Python {}.{} or newer and this is {}: start course.py with a newer one, "
        "for example `python3.12 course.py lab`."
    ).format(*MINIMUM, ".".join(str(part) for part in version))


def python_of(venv: str) -> str:
    return os.path.join(venv, *(("Scripts", "python.exe") if os.name == "nt" else ("bin", "python")))


def read_stamp(venv: str) -> Optional[Dict[str, Any]]:
    """What .venv was made for; None if course.py did not make it, {} if nobody can tell."""
    try:
        with open(os.path.join(venv, STAMP), encoding="utf-8") as file:
            stamp = json.load(file)
    except FileNotFoundError:
        return None
    except ValueError:
        return {}
    return stamp if isinstance(stamp, dict) else {}


def write_stamp(venv: str, stamp: Mapping[str, Any]) -> None:
    path = os.path.join(venv, STAMP)
    with open(path + ".part", "w", encoding="utf-8") as file:
        json.dump(stamp, file)
    os.replace(path + ".part", path)


def wanted(root: str, environ: Mapping[str, str], stamp: Optional[Mapping[str, Any]]) -> Dict[str, Any]:
    """What .venv should be made for. Where the variable is not set, torch stays as it was chosen before."""
    pins = hashlib.sha256()
    for name in ("pyproject.toml", "constraints.txt"):
        with open(os.path.join(root, name), "rb") as file:
            pins.update(file.read())
    index = environ.get(TORCH_INDEX, (stamp or {}).get("torch_index", ""))
    return {
        "finished": True,
        "python": "{}.{}".format(*sys.version_info),
        "root": root,  # scripts and the editable install hold this path
        "torch_index": CPU_INDEX if index == "cpu" else index,
        "pins": pins.hexdigest(),
    }


def usable(venv: str) -> bool:
    """Whether .venv has a Python of our version that has pip."""
    code = "import sys, pip; sys.exit(sys.version_info[:2] != {!r})".format(tuple(sys.version_info[:2]))
    try:
        return subprocess.call([python_of(venv), "-c", code], stderr=subprocess.DEVNULL) == 0
    except OSError:
        return False


def state(venv: str, stamp: Optional[Mapping[str, Any]], want: Mapping[str, Any]) -> str:
    """`ready`; `update`: only pins changed, or someone else made it; `make`: anything less sure than that."""
    if stamp == want and os.path.exists(python_of(venv)):
        return "ready"
    same = stamp is None or all(stamp.get(key) == want[key] for key in want if key != "pins")
    return "update" if same and usable(venv) else "make"


def steps(want: Mapping[str, Any], venv: str, make: bool) -> Iterator[Step]:
    """The commands that turn .venv into what is wanted."""
    pip = [python_of(venv), "-m", "pip", "install", "--no-input", "--disable-pip-version-check"]
    pip += ["-c", "constraints.txt"]
    if make:
        # A course.py started by the very .venv that it replaces would else ask a deleted Python.
        base = getattr(sys, "_base_executable", None) or sys.executable
        yield "Making .venv with Python {}".format(want["python"]), [base, "-m", "venv", venv]
    if want["torch_index"]:
        # What torch itself needs comes from the usual index: few others hold the pinned versions.
        options = ["--index-url", want["torch_index"], "--retries", "1", "--timeout", "15", "--no-deps"]
        yield "Installing torch from " + want["torch_index"], [*pip, *options, "torch"]
    yield "Installing the course and what it needs", [*pip, "-e", ".[test]"]


def require_space(venv: str, torch_index: str) -> None:
    """Stop before a download that cannot fit.

    Measured, .venv ends at 1.4 GB, or 5.5 GB with torch for GPUs; on the way pip holds every wheel twice,
    in its cache and in .venv/tmp.
    """
    small = torch_index.endswith("/cpu") or not sys.platform.startswith("linux")
    need, free = 2.5 if small else 11.0, shutil.disk_usage(venv).free / 1e9
    if free < need:
        hint = "" if small else ", or set {}=cpu if it has no GPU: that needs 2.5 GB".format(TORCH_INDEX)
        raise SetupError(
            "The installation needs {:.1f} GB of disk and {} has {:.1f} GB free: make room{}.".format(
                need, os.path.dirname(venv), free, hint
            )
        )


def require_venv() -> None:
    if importlib.util.find_spec("venv") is None or importlib.util.find_spec("ensurepip") is None:
        raise SetupError(
            "This Python cannot make environments, because its modules venv and ensurepip are missing: "
            "install them (Debian and Ubuntu: `sudo apt install python3-venv`) and run the command again."
        )


def explain(output: str, want: Mapping[str, Any], step: Step) -> str:
    """Why a step failed, in one sentence, and its last lines."""
    if re.search(NO_SPACE, output):
        reason = "The disk is full: make room, then run the same command again."
    elif want["torch_index"] in step[1]:
        reason = "torch could not be had from {}: set {} to another index, or to nothing for pip's usual one."
        reason = reason.format(want["torch_index"], TORCH_INDEX)
    elif re.search(NO_NETWORK, output):
        reason = "No network: pip could not reach its index; when it can, run the same command again."
    else:
        reason = "The installation failed: put right what its last lines say, then run the same command again."
    last = [line for line in output.splitlines() if line.strip()][-8:]
    return "\n    ".join([reason, "The last lines of .venv/{}:".format(LOG), *last])


@contextlib.contextmanager
def locked(path: str) -> Iterator[TextIO]:
    """One installation at a time; the system frees the lock whatever ends its holder."""
    with open(path, "a") as lock:
        if fcntl:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                say("Another start of the course is installing: waiting for it to end.")
                fcntl.flock(lock, fcntl.LOCK_EX)
        yield lock


def runner(root: str, lock: TextIO) -> Run:
    """Runs commands that hold the lock too: a pip that outlives a killed course.py keeps others out."""
    inherited = (lock.fileno(),) if os.name == "posix" else ()
    temporary = os.path.join(root, ".venv", "tmp")  # /tmp is often too small for torch
    environ = dict(os.environ, TMPDIR=temporary, PIP_USER="0", PYTHONUNBUFFERED="1")

    def run(command: List[str], log: TextIO) -> int:
        os.makedirs(temporary, exist_ok=True)
        pipes = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
        child = subprocess.Popen(
            command, cwd=root, env=environ, encoding="utf-8", errors="replace", pass_fds=inherited, **pipes
        )
        try:
            for line in child.stdout:
                log.write(line)
                log.flush()
                show_download(line)
            return child.wait()
        finally:
            child.kill()
            child.wait()
            show_download("")
            shutil.rmtree(temporary, ignore_errors=True)

    return run


def show_download(line: str) -> None:
    """On a terminal, what is being fetched now, in place: the big ones take minutes."""
    if sys.stderr.isatty():
        text = line.strip() if "Downloading" in line or line.startswith("Installing") else ""
        sys.stderr.write("\r\x1b[K" + text[: shutil.get_terminal_size().columns - 1])
        sys.stderr.flush()


def empty(venv: str) -> None:
    """Remove all but the stamp: the folder itself may be a link to a larger disk."""
    for name in os.listdir(venv):
        path = os.path.join(venv, name)
        if os.path.isdir(path) and not os.path.islink(path):
            shutil.rmtree(path)
        elif name != STAMP:
            os.unlink(path)


def install(root: str, want: Mapping[str, Any], make: bool, run: Run) -> None:
    """Make or update .venv; the stamp says `finished` only after the last step."""
    venv = os.path.join(root, ".venv")
    os.makedirs(venv, exist_ok=True)
    write_stamp(venv, dict(want, finished=False))
    if make:
        require_venv()
        empty(venv)
        require_space(venv, want["torch_index"])
    try:
        for step in steps(want, venv, make):
            take(step, want, venv, run)
    except SetupError:
        if not make:  # pip gave up in order, most likely offline: keep what worked, and update it next time
            write_stamp(venv, dict(want, pins=""))
        raise
    write_stamp(venv, want)


def take(step: Step, want: Mapping[str, Any], venv: str, run: Run) -> None:
    """Run one step: a line on the screen, the rest in the log."""
    begin = time.time()
    say(step[0] + " …")
    with open(os.path.join(venv, LOG), "a+", encoding="utf-8") as log:
        log.seek(0, os.SEEK_END)
        start = log.tell()
        if run(step[1], log) != 0:
            log.seek(start)
            raise SetupError(explain(log.read(), want, step))
    say("  done in {:.0f} s".format(time.time() - begin))


def ensure(root: str, environ: Mapping[str, str], make_runner: Callable[[str, TextIO], Run] = runner) -> str:
    """The Python of a whole .venv."""
    venv = os.path.join(root, ".venv")

    def look() -> Tuple[str, Dict[str, Any]]:
        stamp = read_stamp(venv)
        want = wanted(root, environ, stamp)
        return state(venv, stamp, want), want

    if look()[0] != "ready":
        with locked(venv + ".lock") as lock:
            now, want = look()  # another start may just have done it
            if now != "ready":
                install(root, want, now == "make", make_runner(root, lock))
    return python_of(venv)


def hand_over(python: str, arguments: List[str]) -> int:
    """Become ppcourse, so that signals and the exit code are its own."""
    command = [python, "-m", "ppcourse", *arguments]
    if os.name == "posix":
        os.execv(python, command)
    return subprocess.call(command)


def main(arguments: List[str]) -> int:
    if not arguments or arguments[0] in ("-h", "--help", "help"):
        print(HELP)
        return 0
    try:
        problem = too_old(tuple(sys.version_info[:3]))
        if problem:
            raise SetupError(problem)
        if arguments[0] not in COMMANDS:
            raise SetupError("No command {!r}: there are {}.".format(arguments[0], ", ".join(COMMANDS)))
        # Ended politely, end pip too.
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
        return hand_over(ensure(ROOT, os.environ), arguments)
    except KeyboardInterrupt:
        say("Interrupted: run the same command again to go on.")
        return 130
    except (SetupError, OSError) as error:
        say(str(error))
        return 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
