"""pyproject.toml, constraints.txt and environment.yml say the same."""

import subprocess
import sys
import tomllib
from importlib import metadata
from pathlib import Path

import yaml
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
BUILD = tomllib.loads((ROOT / "pyproject.toml").read_text())["build-system"]
DIRECT = [Requirement(line) for line in PROJECT["dependencies"] + PROJECT["optional-dependencies"]["test"]]


def pins() -> dict[str, Version]:
    lines = (line.split("#")[0].strip() for line in (ROOT / "constraints.txt").read_text().splitlines())
    pairs = [line.split("==") for line in lines if line]
    return {canonicalize_name(name): Version(version) for name, version in pairs}


def needed(requirements: list[Requirement]) -> dict[str, Requirement]:
    """These and all that the installed packages behind them ask for here, by name.

    What torch brings for NVIDIA GPUs is left out: its own metadata pins that.
    """
    found: dict[str, Requirement] = {}
    waiting = list(requirements)
    while waiting:
        requirement = waiting.pop()
        name = canonicalize_name(requirement.name)
        known = name in found and requirement.extras <= found[name].extras
        if known or name.startswith(("nvidia-", "cuda-", "triton")):
            continue
        found[name] = requirement
        for line in metadata.requires(name) or []:
            further = Requirement(line)
            extras = {"", *requirement.extras}
            if not further.marker or any(further.marker.evaluate({"extra": extra}) for extra in extras):
                waiting.append(further)
    return found


def test_everything_that_is_needed_is_pinned() -> None:
    assert sorted(set(needed(DIRECT)) - set(pins())) == []


def test_the_pins_satisfy_what_the_project_asks_for() -> None:
    chosen = pins()
    assert all(requirement.specifier.contains(chosen[canonicalize_name(requirement.name)]) for requirement in DIRECT)


def test_reading_a_notebook_builds_no_parsers() -> None:
    loaded = "import sys, nbformat; print('lark' in sys.modules)"
    assert subprocess.check_output([sys.executable, "-c", loaded], text=True) == "False\n"
    assert "lark" not in needed(DIRECT)


def test_torch_is_pinned_for_every_kind_of_machine() -> None:
    assert str(pins()["torch"]) == "2.13.0"  # no +cpu: that would exclude GPUs
    accepts = next(requirement for requirement in DIRECT if requirement.name == "torch").specifier
    assert accepts.contains("2.10.0")
    assert not accepts.contains("2.9.1")


def test_what_builds_the_package_is_pinned_too() -> None:
    (builder,) = map(Requirement, BUILD["requires"])
    assert str(builder.specifier) == f"=={pins()[builder.name]}"


def test_the_dev_extra_is_the_test_extra() -> None:
    assert PROJECT["optional-dependencies"]["dev"] == [f"{PROJECT['name']}[test]"]


def test_conda_gives_python_and_pip_and_the_pins_give_the_rest() -> None:
    environment = yaml.safe_load((ROOT / "environment.yml").read_text())
    *conda, pip = environment["dependencies"]
    python = Requirement(conda[0].replace("=", "==", 1) + ".*")
    (version,) = (specifier.version for specifier in python.specifier)
    assert [python.name, *conda[1:]] == ["python", "pip"]
    assert Requirement("python" + PROJECT["requires-python"]).specifier.contains(version.removesuffix(".*"))
    assert pip == {"pip": ["-c constraints.txt", "-e .[test]"]}
