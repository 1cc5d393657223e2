"""The command line: ppcourse lab | demo | train | schedules | test | doctor | gpu-check | build.

Every command imports what it needs when it runs, so that `ppcourse --help` answers at once.
"""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def main(argv: Sequence[str] | None = None) -> int:
    options, extra = parser().parse_known_args(argv)
    if extra and options.command in ("demo", "schedules", "doctor", "gpu-check"):
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
    train = "Train a small GPT by a schedule, on ranks that it starts, or that torchrun has started."
    add("train", train, add_help=False)  # it has its own
    schedules = add("schedules", "Compare all schedules: time, bubble, memory, messages, and their names elsewhere.")
    schedules.add_argument("-p", type=int, default=4, help="ranks")
    schedules.add_argument("-m", type=int, default=8, help="microbatches")
    schedules.add_argument("--comm", type=float, default=0.0, help="what a hop costs, if a rank's F costs 1")
    test = add("test", "Check everything: lint, types, tests, notebooks; other arguments go to pytest on tests/.")
    test.add_argument("--all", action="store_true", help="the long campaigns too")
    test.add_argument("--quick", action="store_true", help="no notebooks, and only the fast tests")
    add("doctor", "Say what this machine can do.")
    gpus = add("gpu-check", "Check on this machine's GPUs, in 5 minutes at most, what the course does on the CPU.")
    gpus.add_argument("--dry", action="store_true", help="the same on the CPU, to see that it runs")
    gpus.add_argument("--out", type=Path, help="the report; gpu_check.md, or gpu_check_dry.md, by default")
    add("build", "Make the notebooks from solutions/*.py.", add_help=False)  # it has its own
    return top


def require_repository() -> None:
    if not (ROOT / "course.py").exists():
        raise SystemExit("This command needs the course's repository, installed with `pip install -e .`.")


def lab(options: argparse.Namespace, extra: list[str]) -> int:
    from ppcourse.cli import workspace

    require_repository()
    return workspace.lab(ROOT, options, extra)


def demo(options: argparse.Namespace, extra: list[str]) -> int:
    from ppcourse.lab.demo import main as demonstrate

    return demonstrate(options.steps, options.out) or 0


def train(options: argparse.Namespace, extra: list[str]) -> int:
    from ppcourse.cli.train import main as train_a_gpt

    return train_a_gpt(extra)


def doctor(options: argparse.Namespace, extra: list[str]) -> int:
    import ppcourse

    print(ppcourse.doctor())
    return 0


def gpu_check(options: argparse.Namespace, extra: list[str]) -> int:
    from ppcourse.lab.gpu_check.check import main as look

    return look(options.dry, options.out)


def build(options: argparse.Namespace, extra: list[str]) -> int:
    from ppcourse.lab.build import main as make

    return make(extra) or 0


def schedules(options: argparse.Namespace, extra: list[str]) -> int:
    from ppcourse.lab.survey import survey
    from ppcourse.schedules import build

    try:
        build("naive", options.p, options.m)  # which any counts suit that make sense
        print(survey(options.p, options.m, options.comm))
    except ValueError as error:
        print(error, file=sys.stderr)
        return 2
    return 0


def test(options: argparse.Namespace, extra: list[str]) -> int:
    from ppcourse.cli.check import check

    require_repository()
    return check(ROOT, options.all, options.quick, extra)


COMMANDS = {
    "lab": lab,
    "demo": demo,
    "train": train,
    "schedules": schedules,
    "test": test,
    "doctor": doctor,
    "gpu-check": gpu_check,
    "build": build,
}
