"""A job on a pool of ranks: open, steps, close."""

import contextlib
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from ppcourse.analysis.timeline import Span, Timeline
from ppcourse.runtime.errors import RankError
from ppcourse.runtime.prepare import Cut, check_all_travel
from ppcourse.runtime.processes.job import Job, Report
from ppcourse.runtime.processes.ranks import START_TIMEOUT, Pool, done_with, in_use, pool_of
from ppcourse.runtime.processes.shipping import order
from ppcourse.runtime.stages.batch import Batch
from ppcourse.runtime.stages.stage import End
from ppcourse.runtime.values.extras import among, taken_by
from ppcourse.runtime.values.sparse import joined, total
from ppcourse.schedules.fewer import fewer
from ppcourse.schedules.schedule import Schedule


@dataclass
class Session:
    """What the notebook's process can ask of ranks that have a job.

    plan    the cut's, or what is left of it for a batch of fewer microbatches
    """

    cut: Cut
    pool: Pool
    paced: bool
    timeout: float
    plan: Schedule

    def step(self, batch: Batch) -> list[Report]:
        """One step of the plan, or of its part for as many microbatches as the batch has."""
        self._follow(len(batch.inputs))
        dealt = enumerate(shares(self.plan, batch))
        orders = [order("step", *share, self._extras(rank, batch)) for rank, share in dealt]
        reports: list[Report] = self.pool.call(orders, self.plan, self.timeout)
        return reports

    def _follow(self, microbatches: int) -> None:
        if microbatches != self.plan.num_microbatches:
            self.plan = fewer(self.cut.plan, microbatches)
            self.pool.call([order("follow", self.plan)] * self.pool.num_ranks, None, self.timeout)

    def _extras(self, rank: int, batch: Batch) -> dict[int, dict[str, Any]]:
        """By microbatch, what the layers of a rank take of it."""
        if not any(batch.extras):
            return {}
        names = taken_by(layer for layers in self.cut.of_rank(rank).values() for layer in layers.values())
        homes = [set(self.plan.placement.homes(i)) for i in range(len(batch.extras))]
        return {i: among(names, extras) for i, extras in enumerate(batch.extras) if rank in homes[i]}

    def ask(self, name: str, *arguments: Any, patience: float | None = None) -> list[Any]:
        """The same order to every rank; `patience` takes the place of the timeout."""
        orders = [order(name, *arguments)] * self.pool.num_ranks
        return self.pool.call(orders, self.plan, patience or self.timeout)

    def timeline(self, reports: Sequence[Report]) -> Timeline:
        """All ranks' spans on one clock that starts with the first of them; empty if there was no step."""
        spans = [span for report in reports for span in report.spans]
        zero = min((span.start for span in spans), default=0.0)
        moved = (Span(s.rank, s.action, s.start - zero, s.end - zero) for s in spans)
        return Timeline.of(self.cut.plan.name, self.pool.num_ranks, moved, "paced" if self.paced else "measured")

    def gradients(self) -> dict[str, Tensor | None]:
        """By the model's names; the copies of a weight that lives on several ranks are summed."""
        by_rank = self.ask("gradients")
        return {name: _sum_of_copies(by_rank, aliases) for name, aliases in self.cut.aliases.items()}


def shares(plan: Schedule, batch: Batch) -> list[tuple[dict[int, Any], dict[int, End]]]:
    """For each rank, what its microbatches begin with and what they end in, where it has the first or last stage."""
    dealt: list[tuple[dict[int, Any], dict[int, End]]] = [({}, {}) for _ in plan.rows]
    for i, (begin, end) in enumerate(zip(batch.inputs, batch.ends, strict=True)):
        dealt[plan.rank_of(0, i)][0][i] = begin
        dealt[plan.rank_of(plan.num_stages - 1, i)][1][i] = end
    return dealt


@contextlib.contextmanager
def session(cut: Cut, jobs: Callable[[int], Job], timeout: float) -> Iterator[Session]:
    """Ranks that have opened their jobs. What they print is shown at the end, rank by rank."""
    made = [jobs(rank) for rank in range(cut.plan.num_ranks)]
    try:
        orders = [order("open", job) for job in made]
    except Exception:
        check_all_travel(cut, made)
        raise
    with in_use:
        yield from _on_a_pool(cut, orders, made[0], timeout)


def _on_a_pool(cut: Cut, orders: Sequence[bytes], job: Job, timeout: float) -> Iterator[Session]:
    pool = _opened(cut, orders, job, timeout)
    pool.busy = True
    try:
        yield Session(cut, pool, job.pace is not None, timeout, cut.plan)
        pool.call([order("close")] * pool.num_ranks, cut.plan, timeout)
    except BaseException:
        pool.kill()
        raise
    finally:
        _show(pool)
        done_with(pool)


def _opened(cut: Cut, orders: Sequence[bytes], job: Job, timeout: float) -> Pool:
    """A pool whose ranks have opened their jobs."""
    # a rank's first optimizer makes torch import for seconds, and CUDA takes as long to start; neither is a hang
    patience = timeout if job.trainer is None and job.device == "cpu" else max(timeout, START_TIMEOUT)
    pool = pool_of(cut.plan.num_ranks)
    try:
        pool.call(orders, cut.plan, patience)
    except RankError as error:
        _show(pool)
        if not pool.used or error.traceback:
            raise
        # one of the ranks kept from the last run was ended in between, a moment ago
        pool = pool_of(cut.plan.num_ranks)
        pool.call(orders, cut.plan, patience)
    pool.used = True
    return pool


def _show(pool: Pool) -> None:
    if said := pool.say():
        print(said, file=sys.stdout, flush=True)


def _sum_of_copies(by_rank: Sequence[dict[str, Any]], aliases: Sequence[str]) -> Tensor | None:
    copies = (joined(next((grads[name] for name in aliases if name in grads), None)) for grads in by_rank)
    return total([copy for copy in copies if copy is not None])
