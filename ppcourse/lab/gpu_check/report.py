"""The report: what it ran on, first; then a line a section, then each section with its numbers."""

import platform
from collections.abc import Iterator, Sequence
from datetime import date
from typing import NamedTuple

import torch

from ppcourse.lab.gpu_check.finding import Finding
from ppcourse.lab.gpu_check.setting import Setting
from ppcourse.schedules import SCHEDULES

DRY_TITLE = "# Dry run of the GPU check: on the CPU, nothing here ran on a GPU"
DRY_HEAD = (
    "**No GPU was used.** The same code ran on the CPU, to see that it runs. It says nothing about GPUs, and takes no"
    " place of a report that does."
)
COMMAND = "python3 course.py gpu-check"


class Outcome(NamedTuple):
    """A section's title, what it found and how many seconds that took."""

    title: str
    finding: Finding
    seconds: float


def markdown(setting: Setting, outcomes: Sequence[Outcome], waiting: Sequence[str] = ()) -> str:
    """The report of the sections so far; those `waiting` have not run."""
    return "\n".join([*_head(setting), "", *_overview(outcomes, waiting), *_sections(setting, outcomes)]) + "\n"


def _head(setting: Setting) -> Iterator[str]:
    yield DRY_TITLE if setting.dry else f"# GPU check on {setting.gpus} GPU{'s' * (setting.gpus > 1)}"
    yield ""
    if setting.dry:
        yield DRY_HEAD
        yield ""
    versions = f"Python {platform.python_version()}, torch {torch.__version__}"
    if left := [name for name in SCHEDULES if name not in setting.schedules]:
        yield f"**Not all schedules were asked for.** Left out: {', '.join(left)}."
        yield ""
    yield f"{date.today().isoformat()}, {versions}, by `{COMMAND}{' --dry' * setting.dry}`."


def _overview(outcomes: Sequence[Outcome], waiting: Sequence[str]) -> Iterator[str]:
    rows = [("section", "outcome", "seconds")]
    for number, (title, finding, seconds) in enumerate(outcomes, 1):
        rows.append((f"{number}. {title}", finding.verdict, f"{seconds:.1f}"))
    for number, title in enumerate(waiting, len(outcomes) + 1):
        rows.append((f"{number}. {title}", "not run yet", ""))
    rows.append(("together", "", f"{sum(outcome.seconds for outcome in outcomes):.1f}"))
    yield from _table(rows)


def _sections(setting: Setting, outcomes: Sequence[Outcome]) -> Iterator[str]:
    where = " (dry, on the CPU)" * setting.dry
    for number, (title, finding, _) in enumerate(outcomes, 1):
        yield f"\n## {number}. {title}: {finding.verdict}{where}\n"
        yield finding.sentence
        if finding.cut:
            yield f"\n**Left out for lack of time:** {', '.join(finding.cut)}."
        if finding.table:
            yield ""
            yield from _table(finding.table)
        if finding.page:
            yield f"\n```\n{finding.page}\n```"


def _table(rows: Sequence[Sequence[str]]) -> Iterator[str]:
    head, *lines = rows
    for row in (head, ["---"] * len(head), *lines):
        yield "| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |"
