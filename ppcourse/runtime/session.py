"""A job on a pool of ranks: open, steps, close."""

import contextlib
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from ppcourse.analysis.timeline import Span, Timeline
from ppcourse.runtime.errors import RankError
from ppcourse.runtime.job import Job, Report
from ppcourse.runtime.prepare import Cut, check_all_travel
from ppcourse.runtime.ranks import START_TIMEOUT, Pool, in_use, pool_of
from ppcourse.runtime.shipping import order
from ppcourse.runtime.stage import End


@dataclass
class Session:
    """What the notebook's process can ask of ranks that have a job."""

    cut: Cut
    pool: Pool
    paced: bool
    timeout: float

    def step(self, inputs: Sequence[Any], ends: Sequence[End]) -> list[Report]:
        """One step of the plan; `inputs` and `ends` by microbatch."""
        plan, ranks = self.cut.plan, range(self.pool.num_ranks)
        first: list[dict[int, Any]] = [{} for _ in ranks]
        last: list[dict[int, End]] = [{} for _ in ranks]
        for i, (begin, end) in enumerate(zip(inputs, ends, strict=True)):
            first[plan.rank_of(0, i)][i] = begin
            last[plan.rank_of(plan.num_stages - 1, i)][i] = end
        orders = [order("step", first[rank], last[rank]) for rank in ranks]
        reports: list[Report] = self.pool.call(orders, plan, self.timeout)
        return reports

    def ask(self, name: str) -> list[Any]:
        """The same order to every rank."""
        return self.pool.call([order(name)] * self.pool.num_ranks, self.cut.plan, self.timeout)

    def timeline(self, reports: Sequence[Report]) -> Timeline:
        """All ranks' spans on one clock that starts with the first of them."""
        spans = [span for report in reports for span in report.spans]
        zero = min(span.start for span in spans)
        moved = tuple(Span(s.rank, s.action, s.start - zero, s.end - zero) for s in spans)
        return Timeline(self.cut.plan.name, self.pool.num_ranks, moved, "paced" if self.paced else "measured")

    def gradients(self) -> dict[str, Tensor | None]:
        """By the model's names; the copies of a weight that lives on several ranks are summed."""
        by_rank = self.ask("gradients")
        return {name: _sum_of_copies(by_rank, aliases) for name, aliases in self.cut.aliases.items()}


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
    try:
        yield Session(cut, pool, job.pace is not None, timeout)
        pool.call([order("close")] * pool.num_ranks, cut.plan, timeout)
    except BaseException:
        pool.kill()
        raise
    finally:
        _show(pool)


def _opened(cut: Cut, orders: Sequence[bytes], job: Job, timeout: float) -> Pool:
    """A pool whose ranks have opened their jobs."""
    # a rank's first optimizer makes torch import for seconds, which is no hang
    patience = timeout if job.trainer is None else max(timeout, START_TIMEOUT)
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


def _sum_of_copies(by_rank: Sequence[dict[str, Tensor | None]], aliases: Sequence[str]) -> Tensor | None:
    copies = (next((grads[name] for name in aliases if name in grads), None) for grads in by_rank)
    found = [copy for copy in copies if copy is not None]
    return None if not found else sum(found[1:], start=found[0])
