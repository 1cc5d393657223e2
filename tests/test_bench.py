"""bench/ calls what there is: its types are checked as the package's are, and a call gone stale is an error then."""

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import ranks
import two_hosts

from ppcourse import cli
from ppcourse.cli import check
from ppcourse.cli.train import parser

STALE = {  # what a bench says now, and what it might still say after a change of ours
    "ranks.py": ("pp.build(name, p, m)", "pp.built(name, p, m)"),
    "balance.py": ("found.costs(cut)", "found.cost(cut)"),
    "links.py": ("GlooLink(plan, rank)", "GlooLink(plan)"),
    "planner.py": ("pace=costs", "paced=costs"),
    "schedules.py": ("pp.check(plan)", "pp.checked(plan)"),
    "against_torch.py": ("for report in step()", "for report in step(1)"),
    "torch_side.py": ("self.clock.worked()", "self.clock.work()"),
    "first_run.py": ("p=4, m=8", "ranks=4, m=8"),
}


def test_the_test_command_checks_the_types_of_bench() -> None:
    parts = dict(check.parts(cli.ROOT, everything=False, quick=True, extra=[]))
    assert parts["mypy"][:2] == ["mypy", "--strict"]
    assert parts["mypy"][-2:] == ["ppcourse", "bench"]


@pytest.mark.thorough
def test_a_stale_call_is_found_where_it_is_and_nothing_else(tmp_path: Path) -> None:
    """Also in the script that ranks.py starts from a text, where mypy does not look."""
    shutil.copytree(cli.ROOT / "bench", tmp_path, dirs_exist_ok=True, ignore=shutil.ignore_patterns("__pycache__"))
    (tmp_path / "first_run.py").write_text(ranks.FIRST_RUN)
    wanted = set()
    for name, (now, stale) in STALE.items():
        source = (tmp_path / name).read_text()
        assert now in source
        (tmp_path / name).write_text(source.replace(now, stale))
        wanted |= {(name, n) for n, line in enumerate(source.splitlines(), 1) if now in line}
    mypy = [sys.executable, "-m", "mypy", "--strict", str(tmp_path)]
    said = subprocess.run(mypy, cwd=cli.ROOT, capture_output=True, text=True, check=False).stdout
    found = {(Path(path).name, int(line)) for path, line in re.findall(r"^(\S+\.py):(\d+): error", said, re.M)}
    assert found == wanted, said


@pytest.mark.parametrize("name", two_hosts.PLANS)
def test_the_options_that_a_bench_gives_are_options_of_train(name: str) -> None:
    options = parser().parse_args([*two_hosts.PLANS[name], "--json", "steps.json"])
    assert (options.schedule, options.m, options.pace) == (name, 4, 20.0)
