"""A rank that torchrun has started, on one host or several: the same worker as in a notebook's pool, without a driver.

torchrun starts the processes, tells each its rank and where rank 0 is, and ends all of them when one fails. What a
pool's driver does otherwise is done here: each rank cuts the model and the batches itself and takes its own part, all
tell each other their losses, and a rank that finds that nothing moves ends itself.
"""

import os
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import nn

from ppcourse.runtime.checkpoints.checkpoint_folder import Story
from ppcourse.runtime.checkpoints.saving import Saving, saving_of
from ppcourse.runtime.checkpoints.saving_here import asking, begin_here, gathered
from ppcourse.runtime.errors import Failure, RankError
from ppcourse.runtime.layers import layers_of
from ppcourse.runtime.machine import gpus
from ppcourse.runtime.machine.system import sleep_precisely
from ppcourse.runtime.prepare import check_memory, check_weights, cut
from ppcourse.runtime.processes.alike import check_alike
from ppcourse.runtime.processes.board import Board
from ppcourse.runtime.processes.job import Job
from ppcourse.runtime.processes.joining import join
from ppcourse.runtime.processes.ranks import START_TIMEOUT
from ppcourse.runtime.processes.session import shares
from ppcourse.runtime.processes.worker import Worker
from ppcourse.runtime.stages.batch import Batch, batch_of, reduction_of
from ppcourse.runtime.stages.stage import LossFunction
from ppcourse.runtime.stages.statistics import check_statistics
from ppcourse.runtime.training import Trainer
from ppcourse.schedules.costs import Costs
from ppcourse.schedules.schedule import Schedule

LOOK_AGAIN = 0.5  # seconds between two looks at whether anything moves
NOTHING: Mapping[str, Any] = MappingProxyType({})


class Place(NamedTuple):
    """What torchrun tells a process: its rank among all, and among those of its host."""

    rank: int
    num_ranks: int
    local_rank: int
    local_ranks: int


class StepLog(NamedTuple):
    """One step: the loss of the whole batch, the norm of all gradients, and what the slowest rank took (seconds)."""

    loss: float
    norm: float
    seconds: float
    message_bytes: int


def place() -> Place | None:
    """This process's, or None if torchrun did not start it."""
    if not {"RANK", "WORLD_SIZE", "MASTER_ADDR"} <= set(os.environ):
        return None
    told = (os.environ.get(name, default) for name, default in _TOLD)
    return Place(*map(int, told))


_TOLD = (("RANK", "0"), ("WORLD_SIZE", "1"), ("LOCAL_RANK", "0"), ("LOCAL_WORLD_SIZE", "1"))


def carried(place: Place, device: str, link: str) -> tuple[str, str]:
    """This rank's device and its link, with the reason. Raises ValueError for what cannot be had under torchrun."""
    if link not in ("auto", "gloo", "nccl", "staged") or device not in ("auto", "cpu", "cuda"):
        raise ValueError(
            f"link is {link!r} and device {device!r}; under torchrun the link is auto, gloo, nccl or staged, and the"
            " device auto, cpu or cuda."
        )
    found = 0 if device == "cpu" or link == "gloo" else gpus.usable()
    if not found:
        if device == "cuda" or link in ("nccl", "staged"):
            raise ValueError("No GPU can be used on this host; leave --device and --link out, or say --link gloo.")
        return "cpu", "gloo: torchrun's ranks may be on several hosts"
    if link == "nccl" and found < place.local_ranks:
        raise ValueError(f"NCCL wants {place.local_ranks} GPUs on this host, found {found}; say --link staged.")
    name = link if link != "auto" else "nccl" if found >= place.local_ranks else "staged"
    return f"cuda:{place.local_rank % found}", f"{name}: {place.local_ranks} ranks on this host, which has {found} GPUs"


def train_here(
    place: Place,
    plan: Schedule,
    model: nn.Sequential,
    batches: Iterable[tuple[Any, Any]],
    told: Callable[[int, StepLog], None],
    *,
    loss_fn: LossFunction,
    optimizer: Callable[[Iterable[nn.Parameter]], torch.optim.Optimizer],
    steps: int,
    clip_norm: float | None = None,
    checkpoint_dir: str | Path | None = None,
    checkpoint_every: int = 10,
    device: str = "auto",
    link: str = "auto",
    pace: Costs | None = None,
    seed: int = 0,
    timeout: float = 60.0,
    goes_on: Callable[[Story], None] = lambda story: None,
    alike: Mapping[str, Any] = NOTHING,
) -> None:
    """`steps` training steps as this rank; every rank calls this with the same model and the same batches.

    told     gets the number of each step and what came of it, the same on every rank
    goes_on  gets what the checkpoint says that this training goes on from, before the first step, if there is one
    timeout  seconds without this rank finishing an action within a step, after which it ends its process; before and
             after a step, where ranks wait for each other, and in a checkpoint, 120 s at least
    alike    {name: what every rank must have been told}, which is looked at before the first step

    Arguments are otherwise those of `train`. Raises ValueError for what cannot work, before the first step,
    ConnectionError if the ranks do not meet, and RankError, for this rank, if it fails in a step.
    """
    where, carrier = carried(place, device, link)
    made = cut(plan, model, "uniform")
    check_weights(made, loss_fn)
    check_memory(made)
    kind, twins = reduction_of(loss_fn, None), check_statistics(made)
    with closing(saving_of(checkpoint_dir, checkpoint_every, layers_of(model), optimizer, seed, steps)) as saving:
        with tempfile.TemporaryDirectory(prefix="ppcourse-") as folder:
            worker = Worker(place.rank, Board(Path(folder) / "board", place.num_ranks, create=True), {})
        join()
        patience = Patience(worker, timeout, saving)
        patience.start()
        ask = asking(patience.together, worker)
        with patience.together("begin"):
            check_alike({**alike, "the link": carrier.partition(":")[0]})
            begin_here(saving, place.rank)
        coming, history = saving.left(batches), saving.history()
        if saving.begun.step:
            goes_on(saving.begun)
        sleep_precisely()
        torch.set_num_threads(1)  # as in a pool, with whose sums these agree to the last digit
        try:
            owns = Trainer(optimizer, clip_norm, made.ties(place.rank))
            job = Job(plan, made.of_rank(place.rank), loss_fn, pace, seed=seed, trainer=owns, link=carrier, twins=twins)
            with patience.together("open"):
                worker.open(replace(job, device=where))
            saving.restore(ask)
            for number, (inputs, targets) in coming:
                batch = batch_of(inputs, targets, {}, plan.num_microbatches, kind, None)
                with patience.together("step"):
                    log = _step(worker, batch, history)
                told(number, log)
                saving.after(history, ask)
            saving.after(history, ask, end=True)
            with patience.together("end"):
                dist.barrier()  # nobody leaves while another one still listens
        except Exception as error:
            action = worker.interpreter.now if worker.interpreter else None
            failure = Failure.of(place.rank, action, error)
            raise RankError(place.rank, action, failure.cause, failure.traceback, saving.last()) from error


def _step(worker: Worker, batch: Batch, history: Sequence[list[float]]) -> StepLog:
    """One step, with the optimizer's, written down in `history`."""
    report = worker.step(*shares(worker.job.plan, batch)[worker.rank], {})
    norm = worker.update()
    took = max(span.end for span in report.spans) - min(span.start for span in report.spans)
    losses, times, sizes = zip(*gathered((report.loss, took, report.message_bytes)), strict=True)
    log = StepLog(sum(losses), norm, max(times), sum(sizes))
    for column, value in zip(history, log, strict=False):
        column.append(value)
    return log


class Patience(threading.Thread):
    """Ends this process when its row stands still for too long within a step, or when the ranks wait for too long for
    each other before or after it, or in a checkpoint: nobody else would."""

    def __init__(self, worker: Worker, timeout: float, saving: Saving) -> None:
        super().__init__(daemon=True, name="patience")
        self._worker, self._timeout, self._saving = worker, timeout, saving
        self._together: tuple[str, int] | None = None  # what, and the number of steps before it

    @contextmanager
    def together(self, name: str) -> Iterator[None]:
        """In here ranks wait for each other, which may take its time, but not for ever."""
        self._together = name, self._worker.step_number
        try:
            yield
        finally:
            self._together = None

    def run(self) -> None:
        seen, since = None, time.monotonic()
        while True:
            time.sleep(LOOK_AGAIN)
            row = self._worker.interpreter
            # None: by itself, between two steps
            now = (id(row), row.finished, row.now) if row and row.now else self._together
            limit = max(self._timeout, START_TIMEOUT) if now and now == self._together else self._timeout
            if now is None or now != seen:
                seen, since = now, time.monotonic()
            elif time.monotonic() - since > limit:
                cause = f"no progress for {limit:g} s, which may be another rank's doing"
                error = RankError(self._worker.rank, row.now if row else None, cause, "", self._saving.last())
                print(error, file=sys.stderr, flush=True)
                os._exit(1)
