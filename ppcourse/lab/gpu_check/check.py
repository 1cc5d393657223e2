"""Runs the sections one after another, whatever becomes of each, and keeps the report up to date."""

import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from ppcourse.lab.doctor import doctor
from ppcourse.lab.gpu_check.allowance import Allowance
from ppcourse.lab.gpu_check.finding import Finding, State, failed, impossible
from ppcourse.lab.gpu_check.report import Outcome, markdown
from ppcourse.lab.gpu_check.sections import SECTIONS, Section
from ppcourse.lab.gpu_check.setting import Setting
from ppcourse.schedules import SCHEDULES

DRY, WET = Path("gpu_check_dry.md"), Path("gpu_check.md")
NONE = "There is no GPU here to check. `ppcourse gpu-check --dry` runs the same on the CPU, to see that it runs."
NEEDS = "needs a GPU: not run"


def main(dry: bool = False, out: str | Path | None = None, schedules: Sequence[str] = ()) -> int:
    """Check, print a line a section, write the report: 0, 1 if a section failed, 2 if nothing can be checked.

    schedules   the names of those to check; all by default
    """
    gpus = len(doctor(()).gpus)
    if not (dry or gpus):
        print(NONE, file=sys.stderr)
        return 2
    path = (DRY if dry else WET) if out is None else Path(out)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.open("a").close()
    except OSError as error:  # now, and not after the first section
        print(f"--out is {path}, but no report can be written there: {error.strerror}.", file=sys.stderr)
        return 2
    with tempfile.TemporaryDirectory(prefix="ppcourse-") as folder:
        setting = Setting("cpu" if dry else "cuda", gpus, tuple(schedules or SCHEDULES), Path(folder))
        outcomes = check(setting, path, SECTIONS)
    print(f"{path}: the report")
    return int(any(outcome.finding.state is State.FAILED for outcome in outcomes))


def check(setting: Setting, path: Path, sections: Sequence[Section]) -> list[Outcome]:
    """What came of every section. The report is written anew after each: a check that is ended leaves what it has."""
    outcomes: list[Outcome] = []
    for section in sections:
        began = time.monotonic()
        finding = ask(setting, section)
        outcomes.append(Outcome(section.title, finding, time.monotonic() - began))
        print(f"{finding.verdict:16} {section.title}: {finding.sentence}", flush=True)
        waiting = [later.title for later in sections[len(outcomes) :]]
        path.write_text(markdown(setting, outcomes, waiting), encoding="utf-8")
    return outcomes


def ask(setting: Setting, section: Section) -> Finding:
    """What the section found; whatever it raises, and not to return in time, is its failure."""
    if section.needs_gpu and setting.dry:
        return impossible(NEEDS)
    if section.option and not setting.knows(section.option):
        return impossible(f"needs run(…, {section.option}=…), which this version does not have: not run")
    allowance = Allowance(section.seconds)
    try:
        with allowance.held():
            return section.function(setting, allowance)
    except Exception as error:
        said = " ".join(f"{type(error).__name__}: {error}".split())
        late = f"Ended after its {section.seconds:g} s. " if allowance.spent else ""
        return failed(late + said)
