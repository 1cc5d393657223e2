"""`ppcourse schedules`: one line a schedule, and README's table is its output."""

from pathlib import Path

from ppcourse import cli
from ppcourse.lab.survey import survey
from ppcourse.schedules import SCHEDULES

README = Path(__file__).parents[1] / "README.md"


def cells(table: str) -> dict[str, list[str]]:
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in table.splitlines()]
    return {row[0]: row[1:] for row in rows[2:]}


def test_every_schedule_has_its_line() -> None:
    assert list(cells(survey())) == list(SCHEDULES)


def test_what_the_literature_says_of_four_ranks_and_eight_microbatches() -> None:
    """v, makespan, longest stage, bubble rate, microbatches held, messages; F = I = W = 1."""
    lines = {name: row[:6] for name, row in cells(survey()).items()}
    assert lines["gpipe"] == ["1", "33", "33", "27.3%", "8", "48"]
    assert lines["1f1b"] == ["1", "33", "33", "27.3%", "4", "48"]
    assert lines["interleaved"] == ["2", "28.5", "28.5", "15.8%", "5.5", "112"]
    assert lines["zb-h1"] == ["1", "27", "27", "11.1%", "4", "48"]
    assert lines["zb-h2"] == ["1", "27", "24", "11.1%", "7", "48"]
    assert lines["zb-v"][2] == "24"
    assert lines["dualpipe"] == ["2", "26", "26", "7.7%", "5", "48"]


def test_a_schedule_that_cannot_have_these_counts_says_so() -> None:
    assert cells(survey(3, 3))["dualpipe"][-1].startswith("p is 3, but dualpipe pairs the ranks")


def test_hops_cost_time() -> None:
    assert cells(survey(comm=0.1))["1f1b"][1] == "34.6"


def test_the_readme_shows_what_the_command_prints(capsys) -> None:
    assert cli.main(["schedules"]) == 0
    assert capsys.readouterr().out in README.read_text()
