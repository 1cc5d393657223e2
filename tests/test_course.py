"""course.py: what it makes, what it leaves alone, and what it says. Nothing here is downloaded."""

import ast
import importlib.util
import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections import namedtuple
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[1] / "course.py"


def load():
    spec = importlib.util.spec_from_file_location("course", SOURCE)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


course = load()


class Tree:
    """A repository with a fake installer: `commands` are what course.py ran, `act` what happens in them."""

    def __init__(self, root: Path) -> None:
        self.root, self.venv = root, root / ".venv"
        self.commands: list[list[str]] = []
        self.act = lambda command, log: 0
        for name in ("pyproject.toml", "constraints.txt"):
            (root / name).write_text(name)

    def ensure(self, **environ: str) -> list[list[str]]:
        """The commands of one start."""
        self.commands = []
        course.ensure(str(self.root), environ, lambda root, lock: self.run)
        return self.commands

    def run(self, command, log) -> int:
        self.commands.append(command)
        if "venv" in command:
            self.add_python()
        return self.act(command, log)

    def add_python(self, text: str = f'exec {sys.executable} "$@"') -> None:
        path = self.venv / "bin" / "python"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"#!/bin/sh\n{text}\n")
        path.chmod(0o755)

    @property
    def stamp(self) -> dict:
        return json.loads((self.venv / course.STAMP).read_text())

    def restamp(self, **changes) -> None:
        (self.venv / course.STAMP).write_text(json.dumps({**self.stamp, **changes}))


def kinds(commands: list[list[str]]) -> list[str]:
    return ["venv" if "venv" in c else "torch" if "torch" in c else "course" for c in commands]


@pytest.fixture
def tree(tmp_path, monkeypatch) -> Tree:
    monkeypatch.setattr(shutil, "disk_usage", lambda path: namedtuple("usage", "free")(100e9))
    return Tree(tmp_path)


def test_it_imports_the_standard_library_only_and_is_written_for_an_old_python() -> None:
    code = ast.parse(SOURCE.read_text(), feature_version=(3, 6))
    imported = {alias.name for node in ast.walk(code) if isinstance(node, ast.Import) for alias in node.names}
    imported |= {node.module for node in ast.walk(code) if isinstance(node, ast.ImportFrom)}
    assert {name.split(".")[0] for name in imported} <= sys.stdlib_module_names
    assert "__future__" not in imported  # its annotations came with 3.7


@pytest.mark.parametrize("version", [(3, 6, 15), (3, 10, 13)])
def test_an_old_python_is_told_so_in_one_sentence(tmp_path, version) -> None:
    shutil.copy(SOURCE, tmp_path)
    start = (
        f"import runpy, sys; sys.version_info = {version}; sys.argv = ['course.py', 'lab'];"
        f" runpy.run_path({str(tmp_path / 'course.py')!r}, run_name='__main__')"
    )
    done = subprocess.run([sys.executable, "-c", start], capture_output=True, text=True)
    assert done.returncode == 1
    assert "needs Python 3.11 or newer and this is " + ".".join(map(str, version)) in done.stderr
    assert done.stderr.count("\n") == 1
    assert not (tmp_path / ".venv").exists()


def test_python_3_11_is_new_enough() -> None:
    assert course.too_old((3, 11, 0)) is None
    assert course.too_old((3, 14, 0)) is None


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [([], 0, "lab"), (["--help"], 0, course.TORCH_INDEX), (["lob"], 1, "No command 'lob': there are lab, ")],
)
def test_help_and_mistakes_install_nothing(tmp_path, arguments, code, said) -> None:
    shutil.copy(SOURCE, tmp_path)
    done = subprocess.run([sys.executable, tmp_path / "course.py", *arguments], capture_output=True, text=True)
    assert done.returncode == code
    assert said in done.stdout + done.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["course.py"]


# When it installs


def test_the_first_start_installs_and_the_second_does_nothing(tree) -> None:
    assert kinds(tree.ensure()) == ["venv", "course"]
    assert tree.stamp["finished"]
    assert tree.ensure() == []


@pytest.mark.parametrize("name", ["pyproject.toml", "constraints.txt"])
def test_changed_pins_update_the_environment_in_place(tree, name) -> None:
    tree.ensure()
    (tree.root / name).write_text("changed")
    assert kinds(tree.ensure()) == ["course"]
    assert tree.ensure() == []


@pytest.mark.parametrize("change", [{"python": "3.9"}, {"root": "/elsewhere"}, {"torch_index": "https://a.b"}])
def test_another_python_place_or_torch_index_makes_it_anew(tree, change) -> None:
    tree.ensure(**{course.TORCH_INDEX: "cpu"})
    tree.restamp(**change)
    (tree.venv / "left-over").touch()
    assert kinds(tree.ensure(**{course.TORCH_INDEX: "cpu"})) == ["venv", "torch", "course"]
    assert not (tree.venv / "left-over").exists()


@pytest.mark.parametrize("moment", ["venv", "course"])
def test_an_interrupted_install_is_made_anew(tree, moment) -> None:
    def interrupt(command, log):
        if kinds([command]) == [moment]:
            (tree.venv / "half").mkdir()
            raise KeyboardInterrupt
        return 0

    tree.act = interrupt
    with pytest.raises(KeyboardInterrupt):
        tree.ensure()
    assert not tree.stamp["finished"]
    tree.act = lambda command, log: 0
    assert kinds(tree.ensure()) == ["venv", "course"]
    assert not (tree.venv / "half").exists()
    assert tree.ensure() == []


def test_a_failed_update_keeps_the_environment_and_is_tried_again(tree) -> None:
    tree.ensure()
    (tree.root / "constraints.txt").write_text("changed")
    tree.act = lambda command, log: 1
    with pytest.raises(course.SetupError):
        tree.ensure()
    tree.act = lambda command, log: 0
    (tree.root / "constraints.txt").write_text("constraints.txt")  # even when the pins are those of before
    assert kinds(tree.ensure()) == ["course"]
    assert tree.ensure() == []


@pytest.mark.parametrize("damage", ["no python", "no pip", "half a stamp"])
def test_a_damaged_environment_is_made_anew(tree, damage) -> None:
    tree.ensure()
    if damage == "no python":
        (tree.venv / "bin" / "python").unlink()
    elif damage == "no pip":
        tree.add_python("exit 1")
        (tree.root / "constraints.txt").write_text("changed")
    else:
        (tree.venv / course.STAMP).write_text('{"finished": tr')
    assert kinds(tree.ensure()) == ["venv", "course"]


def test_an_environment_that_someone_else_made_is_used_if_it_works(tree) -> None:
    tree.add_python()
    (tree.venv / "theirs").touch()
    assert kinds(tree.ensure()) == ["course"]
    assert (tree.venv / "theirs").exists()


def test_an_environment_that_someone_else_made_is_replaced_if_it_does_not_work(tree) -> None:
    tree.venv.mkdir()
    assert kinds(tree.ensure()) == ["venv", "course"]


def test_a_link_to_a_larger_disk_stays_a_link(tree, tmp_path_factory) -> None:
    tree.venv.symlink_to(tmp_path_factory.mktemp("large"))
    tree.ensure()
    assert tree.venv.is_symlink()
    assert tree.ensure() == []


def test_two_starts_at_once_install_once(tree) -> None:
    done: list[str] = []

    def slow(command, log) -> int:
        time.sleep(0.2)
        return 0

    def start() -> None:
        done.append(course.ensure(str(tree.root), {}, lambda root, lock: tree.run))

    tree.act = slow
    threads = [threading.Thread(target=start) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert kinds(tree.commands) == ["venv", "course"]
    assert done == [course.python_of(str(tree.venv))] * 2


# Where torch comes from


def test_without_the_variable_pips_own_configuration_rules(tree) -> None:
    assert not any("index" in word for command in tree.ensure() for word in command)


@pytest.mark.parametrize(("value", "url"), [("cpu", course.CPU_INDEX), ("https://a.b/cu130", "https://a.b/cu130")])
def test_the_variable_chooses_the_index_of_torch_alone(tree, value, url) -> None:
    _, torch, rest = tree.ensure(**{course.TORCH_INDEX: value})
    assert torch[torch.index("--index-url") + 1] == url
    assert torch[torch.index("--retries") + 1] == "1"  # an index that does not answer is soon given up
    assert torch[-2:] == ["--no-deps", "torch"]
    assert url not in rest


@pytest.mark.parametrize("interrupted", [False, True])
def test_a_choice_made_once_holds_until_another_is_made(tree, interrupted) -> None:
    tree.ensure(**{course.TORCH_INDEX: "cpu"})
    tree.restamp(finished=not interrupted)
    assert kinds(tree.ensure()) == (["venv", "torch", "course"] if interrupted else [])
    assert tree.stamp["torch_index"] == course.CPU_INDEX
    assert kinds(tree.ensure(**{course.TORCH_INDEX: ""})) == ["venv", "course"]


# What it says


@pytest.mark.parametrize(
    ("output", "said"),
    [
        ("NewConnectionError: [Errno -2]\nERROR: No matching distribution found", "No network"),
        ("OSError: [Errno 28] No space left on device", "The disk is full"),
        ("ERROR: something new", "The installation failed"),
    ],
)
def test_a_failed_step_is_explained_with_its_own_last_lines(tree, output, said) -> None:
    tree.venv.mkdir()
    (tree.venv / course.LOG).write_text("Errno 28 of yesterday\n")
    tree.add_python()

    def fail(command, log) -> int:
        log.write("".join(f"line {i}\n" for i in range(50)) + output + "\n")
        return 1

    tree.act = fail
    with pytest.raises(course.SetupError) as error:
        tree.ensure()
    sentence, *lines = str(error.value).splitlines()
    assert sentence.startswith(said)
    assert "run the same command again" in sentence
    assert output.splitlines()[-1] in lines[-1]
    assert "line 49" in str(error.value)
    assert "line 20" not in str(error.value)


def test_an_index_of_torch_that_fails_is_named(tree) -> None:
    tree.act = lambda command, log: int("torch" in command)
    with pytest.raises(course.SetupError, match=rf"had from https://a\.b: set {course.TORCH_INDEX} to another"):
        tree.ensure(**{course.TORCH_INDEX: "https://a.b"})


def test_too_little_disk_is_said_before_anything_is_fetched(tree, monkeypatch) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda path: namedtuple("usage", "free")(1.2e9))
    with pytest.raises(course.SetupError, match=r"needs 2\.5 GB of disk and .* has 1\.2 GB free: make room"):
        tree.ensure(**{course.TORCH_INDEX: "cpu"})
    monkeypatch.setattr(sys, "platform", "linux")
    with pytest.raises(course.SetupError, match=rf"needs 11\.0 GB .*set {course.TORCH_INDEX}=cpu"):
        tree.ensure(**{course.TORCH_INDEX: ""})
    assert tree.commands == []


def test_a_python_without_ensurepip_is_said(tree, monkeypatch) -> None:
    found = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "ensurepip" else found(name))
    with pytest.raises(course.SetupError, match="apt install python3-venv"):
        tree.ensure()


# The whole program, with a pip and a ppcourse that only pretend

PIP = """
import os, sys, time
print("pid", os.getpid(), *sys.argv[1:], flush=True)
while os.environ["PRETEND"] == "hang":
    print("still downloading", flush=True)
    time.sleep(0.05)
"""
PPCOURSE = "import sys; print(sys.prefix, *sys.argv[1:]); sys.exit(7)"


def alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


class Program:
    """course.py in a repository of its own, beside a .venv that someone made."""

    def __init__(self, folder: Path) -> None:
        self.fakes, self.root = folder / "fakes", folder / "a course"
        for name, code in {"pip": PIP, "ppcourse": PPCOURSE}.items():
            (self.fakes / name).mkdir(parents=True)
            (self.fakes / name / "__init__.py").touch()
            (self.fakes / name / "__main__.py").write_text(code)
        self.root.mkdir()
        for name in ("course.py", "pyproject.toml", "constraints.txt"):
            shutil.copy(SOURCE.parent / name, self.root)
        Tree(self.root).add_python()

    def start(self, *arguments: str, pip: str) -> subprocess.Popen:
        environ = {**os.environ, "PYTHONPATH": str(self.fakes), "PRETEND": pip, course.TORCH_INDEX: "cpu"}
        command = [sys.executable, "course.py", *arguments]
        out = subprocess.PIPE
        return subprocess.Popen(command, env=environ, cwd=self.root, stdout=out, stderr=out, text=True)

    def start_and_kill(self, death: signal.Signals) -> int:
        """The exit code of a start that is killed while its pip runs; pip must die with it."""
        first = self.start("doctor", pip="hang")
        pip = self.wait_for_pip()
        first.send_signal(death)
        first.communicate(timeout=20)
        deadline = time.monotonic() + 5
        while alive(pip) and time.monotonic() < deadline:
            time.sleep(0.05)
        assert not alive(pip)
        return first.returncode

    def wait_for_pip(self) -> int:
        log = self.root / ".venv" / course.LOG
        deadline = time.monotonic() + 30
        while time.monotonic() < deadline:
            if log.exists() and "pid" in (text := log.read_text()):
                return int(text.split("pid", 1)[1].split()[0])
            time.sleep(0.05)
        raise TimeoutError(f"no pip in {log}")


@pytest.mark.thorough
def test_asked_to_end_it_ends_pip_too(tmp_path) -> None:
    assert Program(tmp_path).start_and_kill(signal.SIGTERM) == 143


@pytest.mark.thorough
def test_interrupted_it_says_how_to_go_on(tmp_path) -> None:
    assert Program(tmp_path).start_and_kill(signal.SIGINT) == 130


@pytest.mark.thorough
def test_killed_in_the_middle_it_repairs_and_hands_over(tmp_path) -> None:
    program = Program(tmp_path)
    assert program.start_and_kill(signal.SIGKILL) == -signal.SIGKILL

    second = program.start("doctor", "--some", "argument", pip="end")
    out, err = second.communicate(timeout=100)
    assert second.returncode == 7, err  # the exit code is ppcourse's
    assert out == f"{program.root / '.venv'} doctor --some argument\n"
    assert "Making .venv" in err

    third = program.start("doctor", pip="hang")  # which would be seen: nothing is installed again
    out, err = third.communicate(timeout=20)
    assert (third.returncode, err) == (7, "")
