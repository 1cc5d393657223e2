"""`ppcourse train`: a small GPT by any schedule, on ranks started here or by torchrun."""

import argparse
import functools
import json
import math
import os
import statistics
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch

from ppcourse.runtime.checkpoints.checkpoint_folder import Story
from ppcourse.runtime.data import batches, text_loss
from ppcourse.runtime.errors import RankError
from ppcourse.runtime.models import gpt
from ppcourse.runtime.prepare import check_count, check_trains, resolve_plan
from ppcourse.runtime.torchrun import Place, StepLog, place, train_here
from ppcourse.runtime.train import train
from ppcourse.schedules.costs import Costs
from ppcourse.schedules.schedule import Schedule


def parser() -> argparse.ArgumentParser:
    train = argparse.ArgumentParser(
        "ppcourse train",
        description="Train a small GPT on the text of Python's own help(), on ranks that this starts, or as one of"
        " those that torchrun has started: torchrun --nproc-per-node 4 -m ppcourse train --schedule 1f1b",
        allow_abbrev=False,
    )
    train.add_argument("--schedule", default="1f1b", help="one of those that `ppcourse schedules` lists (1f1b)")
    train.add_argument("-p", type=int, help="ranks (4); under torchrun, those that it starts")
    train.add_argument("-m", type=int, default=8, help="microbatches a step (8)")
    train.add_argument("-v", type=int, help="stages a rank, where the schedule allows several")
    train.add_argument("--steps", type=int, default=20, help="training steps (20)")
    train.add_argument("--batch", type=int, help="rows a step (two a microbatch)")
    train.add_argument("--layers", type=int, default=6, help="blocks of the GPT (6)")
    train.add_argument("--width", type=int, default=64, help="of the GPT (64)")
    train.add_argument("--context", type=int, default=64, help="tokens a row (64)")
    train.add_argument("--lr", type=float, default=1e-3, help="AdamW's learning rate (0.001)")
    train.add_argument("--clip-norm", type=float, help="the most that the norm of all gradients may be")
    train.add_argument("--pace", type=float, help="milliseconds that each of F, I and W of a rank lasts: a paced run")
    train.add_argument("--device", default="auto", help="auto, cpu or cuda")
    train.add_argument("--link", default="auto", help="auto, or what carries messages: shared, gloo, nccl, staged")
    train.add_argument("--seed", type=int, default=0)
    train.add_argument("--timeout", type=float, default=60.0, help="seconds without progress that pass for a hang (60)")
    train.add_argument("--checkpoint-dir", help="go on from the newest checkpoint in there, and write more")
    train.add_argument("--checkpoint-every", type=int, default=10, help="steps between two checkpoints (10)")
    train.add_argument("--json", type=Path, help="also write every step's numbers into this file")
    return train


def main(argv: Sequence[str]) -> int:
    """Train and tell: the exit status, 2 for what cannot work and 1 for what failed."""
    options = parser().parse_args(argv)
    here = place()
    try:
        plan = _plan(options, here)
        return _under_torchrun(here, plan, options) if here else _with_a_pool(plan, options)
    except ValueError as error:
        if here is None or here.local_rank == 0:  # once a host: another one's command may be right
            print(error, file=sys.stderr)
        return _end(here, 2)
    except (RankError, OSError) as error:
        print(error, *getattr(error, "__notes__", ()), sep="\n", file=sys.stderr)
        return _end(here, 1)
    except KeyboardInterrupt:
        return _end(here, 130)


def _plan(options: argparse.Namespace, here: Place | None) -> Schedule:
    _check(options)
    p = options.p if here is None else here.num_ranks
    if here and options.p not in (None, here.num_ranks):
        raise ValueError(f"-p is {options.p}, but torchrun has started {here.num_ranks} ranks; leave -p out.")
    return check_trains(resolve_plan(options.schedule, 4 if p is None else p, options.m, options.v))


def _check(options: argparse.Namespace) -> None:
    """Raise ValueError for numbers that make no GPT and no training, and for a file that cannot be written."""
    for name in ("steps", "layers", "width", "context", "batch"):
        if (given := getattr(options, name)) is not None:
            check_count(given, f"--{name}")
    if not 0 <= options.lr < math.inf:
        raise ValueError(f"--lr is {options.lr}; it is a finite number of at least 0.")
    if not 0 <= options.seed < 2**63:
        raise ValueError(f"--seed is {options.seed}; it is a whole number from 0 to 2**63 - 1.")
    path = options.json
    if path and (path.is_dir() or not os.access(path if path.exists() else path.parent, os.W_OK)):
        raise ValueError(f"--json is {path}, but that is no file that can be written.")


def _with_a_pool(plan: Schedule, options: argparse.Namespace) -> int:
    done = train(plan, _model(options), _data(plan, options), **_common(plan, options), progress=sys.stderr.isatty())
    logs = _logs(done.losses, done.norms, done.step_times, done.message_bytes)
    if done.begun:
        _goes_on(done.begun, options)
    for number, log in enumerate(logs[done.begun :], done.begun):
        _tell(number, log)
    return _close(plan, logs, options)


def _under_torchrun(here: Place, plan: Schedule, options: argparse.Namespace) -> int:
    logs: list[StepLog] = []

    def told(number: int, log: StepLog) -> None:
        logs.append(log)
        if here.rank == 0:
            _tell(number, log)

    def goes_on(story: Story) -> None:
        logs.extend(_logs(story.losses, story.norms, story.step_times))
        if here.rank == 0:
            _goes_on(story.step, options)

    given = _model(options), _data(plan, options), told
    train_here(here, plan, *given, **_common(plan, options), goes_on=goes_on, alike=_alike(options))
    if here.rank == 0:
        _close(plan, logs, options)
    return _end(here, 0)


def _alike(options: argparse.Namespace) -> dict[str, Any]:
    """What every host's command must say; paths may differ."""
    given = {name: value for name, value in vars(options).items() if name != "json"}
    given["checkpoint_dir"] = "given" if options.checkpoint_dir else "not given"
    return {f"-{'-' * (len(name) > 1)}{name.replace('_', '-')}": value for name, value in given.items()}


def _logs(losses: Sequence[float], norms: Sequence[float], seconds: Sequence[float], sent: int = 0) -> list[StepLog]:
    return [StepLog(*row, sent) for row in zip(losses, norms, seconds, strict=True)]


def _model(options: argparse.Namespace) -> torch.nn.Sequential:
    try:
        return gpt(layers=options.layers, width=options.width, context=options.context, seed=options.seed)
    except RuntimeError as error:  # more memory than there is
        raise ValueError(f"A GPT of this width, context and layers cannot be made: {error}") from None


def _data(plan: Schedule, options: argparse.Namespace) -> Iterator[Any]:
    rows = 2 * plan.num_microbatches if options.batch is None else options.batch
    return batches(rows, options.context, options.steps, options.seed)


def _common(plan: Schedule, options: argparse.Namespace) -> dict[str, Any]:
    each = None if options.pace is None else options.pace / 1e3 / plan.stages_per_rank
    return {
        "loss_fn": text_loss,
        "optimizer": functools.partial(torch.optim.AdamW, lr=options.lr),
        "steps": options.steps,
        "clip_norm": options.clip_norm,
        "checkpoint_dir": options.checkpoint_dir,
        "checkpoint_every": options.checkpoint_every,
        "device": options.device,
        "link": options.link,
        "pace": None if each is None else Costs(each, each, each),
        "seed": options.seed,
        "timeout": options.timeout,
    }


def _goes_on(step: int, options: argparse.Namespace) -> None:
    print(f"goes on after step {step}, from {options.checkpoint_dir}", flush=True)


def _tell(number: int, log: StepLog) -> None:
    print(f"step {number + 1:3}  loss {log.loss:.4f}  norm {log.norm:.3f}  {log.seconds * 1e3:.0f} ms", flush=True)


def _close(plan: Schedule, logs: list[StepLog], options: argparse.Namespace) -> int:
    how = "measured" if options.pace is None else "paced"
    median = statistics.median(log.seconds for log in logs) * 1e3
    sent = logs[-1].message_bytes  # all steps send as much, also those behind a checkpoint, which does not tell
    messages = f" {sent / 1e6:.2f} MB of messages a step;" if sent else ""
    print(f"{plan.name}, p={plan.num_ranks} m={plan.num_microbatches}: {median:.0f} ms a step ({how}, median);", end="")
    print(f"{messages} loss {logs[0].loss:.4f} to {logs[-1].loss:.4f}", flush=True)
    logs = [log._replace(message_bytes=sent) for log in logs]
    if options.json:
        options.json.write_text(json.dumps([log._asdict() for log in logs], indent=1))
    return 0


def _end(here: Place | None, status: int) -> int:
    """Under torchrun, end at once: threads that wait for a rank that is gone never would."""
    if here is not None:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)
    return status
