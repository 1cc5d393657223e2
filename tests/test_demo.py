"""`ppcourse demo`: a real run, told in one table and two charts."""

import re

import pytest

from ppcourse.lab.demo import main
from ppcourse.lab.sizing import core_speed


@pytest.mark.thorough
def test_the_demo_trains_tells_and_draws(tmp_path, capsys) -> None:
    assert main(2, tmp_path / "charts") == 0
    out = capsys.readouterr().out
    table = [line.split("  ") for line in out.splitlines() if line[:6] in ("gpipe ", "1f1b  ")]
    gpipe, other = ([cell.strip() for cell in row if cell.strip()] for row in table)
    assert gpipe[1:3] == other[1:3]  # the same losses
    assert gpipe[4] == other[4] == "27.3%"  # the same bubble, predicted
    assert gpipe[-1] == "8 8 8 8"
    assert other[-1] == "4 3 2 1"
    assert float(gpipe[-2].split()[0]) > float(other[-2].split()[0])  # bytes on rank 0
    assert {path.name for path in (tmp_path / "charts").iterdir()} == {"gpipe.png", "1f1b.png"}
    kinds = [line.split() for line in out.splitlines() if line.split()[1:2] in (["parameters"], ["activations"])]
    assert len(kinds) == 2 * 4 * 2  # schedules, ranks, kinds
    for _, kind, predicted, measured in kinds:
        assert predicted == measured, kind
    _, plan = out.split("What the planner would take here:")
    assert re.search(r"\n1 +[a-z0-9-]+ +[124] ", plan), plan  # ranked first, on 1, 2 or 4 ranks
    assert "Assumed: 4 ranks with a core each" in plan


def test_a_core_is_as_fast_as_cores_are() -> None:
    assert 1e8 < core_speed() < 1e13


def test_what_cannot_be_done_is_one_sentence(tmp_path, capsys) -> None:
    assert main(0, tmp_path) == 1
    assert capsys.readouterr().err == "steps is 0; it must be a whole number of at least 1.\n"
    (tmp_path / "file").touch()
    assert main(1, tmp_path / "file" / "charts") == 2
    assert "file" in capsys.readouterr().err
