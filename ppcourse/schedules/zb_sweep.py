"""Building a plan for zb-auto in sweeps: one F down the ranks, one I back up, and W into the gaps."""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

from ppcourse.schedules.zb_problem import NOTHING, Problem


class Short(Enum):
    """What a rank does with a gap too short for a W. To fill it delays what comes next; to wait wastes it."""

    WAIT = "always wait"
    FAIR = "wait while that leaves another rank with the most idle time, else fill"
    TARGET = "fill if what comes next is not urgent; else wait while the target allows, else fill"


@dataclass(frozen=True)
class Recipe:
    """The choices behind one plan.

    ahead    the forwards each rank does before its first I
    yields   leave out an F that would make the next I late (each rank then runs one less ahead)
    short    what to do with gaps shorter than a W
    target   the longest stage time that Short.TARGET aims at
    """

    ahead: tuple[int, ...]
    yields: bool
    short: Short
    target: float = 0.0


def sweep(problem: Problem, recipe: Recipe) -> list[str]:
    """The rows that `recipe` leads to.

    Qi et al. 2024, §3.1 give the idea: warm up with forwards, then alternate F and I, do W where there is a
    gap or where memory is full, and try each setting of a few choices. Going through the plan in sweeps means
    that when a rank decides, it knows when its next F or I arrives.
    """
    return _Sweep(problem, recipe).run()


class _Sweep:
    def __init__(self, problem: Problem, recipe: Recipe) -> None:
        p = problem.p
        self.problem, self.recipe = problem, recipe
        self.rows: list[list[str]] = [[] for _ in range(p)]
        self.forwards: list[list[float]] = [[] for _ in range(p)]  # when each was done
        self.input_grads: list[list[float]] = [[] for _ in range(p)]
        self.weight_grads = [0] * p
        self.free = [0.0] * p
        self.waited = [0.0] * p
        self.latest = latest_starts(problem, recipe) if recipe.short is Short.TARGET else None

    def run(self) -> list[str]:
        problem, ahead = self.problem, self.recipe.ahead
        for rank in range(problem.p):
            for _ in range(ahead[rank]):
                self.forward(rank)
        for _ in range(problem.m):
            for rank in reversed(range(problem.p)):
                self.input_grad(rank)
            for rank in self.takers():
                self.forward(rank)
        return ["".join(row) + "W" * (problem.m - done) for row, done in zip(self.rows, self.weight_grads, strict=True)]

    def takers(self) -> list[int]:
        """The ranks that do an F in this sweep; a rank that does none leaves none for those before it."""
        problem, taking = self.problem, []
        for rank in reversed(range(problem.p)):
            if len(self.forwards[rank]) < problem.m:
                if self.recipe.yields and self.too_early(rank):
                    break
                taking.append(rank)
        return taking[::-1]

    def too_early(self, rank: int) -> bool:
        """Would an F now end after the next I could be here, while the rank below has forwards to go on with?"""
        problem, below = self.problem, rank + 1
        if below == problem.p or len(self.forwards[rank]) < len(self.forwards[below]) + 2:
            return False
        arrival = self.forwards[rank][len(self.forwards[below])] + problem.comm
        back = max(self.free[below], arrival) + problem.forward[below] + problem.input_grad[below] + problem.comm
        return self.free[rank] + problem.forward[rank] > back

    def forward(self, rank: int) -> None:
        problem, done = self.problem, self.forwards[rank]
        while self.held(rank, more=1.0) and self.weight_grads[rank] < len(self.input_grads[rank]):
            self.weight_grad(rank)
        if rank:
            self.wait(rank, self.forwards[rank - 1][len(done)] + problem.comm, 0)
        self.free[rank] += problem.forward[rank]
        done.append(self.free[rank])
        self.rows[rank].append("F")

    def input_grad(self, rank: int) -> None:
        problem, done = self.problem, self.input_grads[rank]
        while self.held(rank, more=problem.kept - 1) and self.weight_grads[rank] < len(done):
            self.weight_grad(rank)
        if rank + 1 < problem.p:
            self.wait(rank, self.input_grads[rank + 1][len(done)] + problem.comm, 1)
        self.free[rank] += problem.input_grad[rank]
        done.append(self.free[rank])
        self.rows[rank].append("I")

    def weight_grad(self, rank: int) -> None:
        self.free[rank] += self.problem.weight_grad[rank]
        self.weight_grads[rank] += 1
        self.rows[rank].append("W")

    def held(self, rank: int, more: float) -> bool:
        """Would `more` be too much?"""
        counts = len(self.forwards[rank]), len(self.input_grads[rank]), self.weight_grads[rank]
        return self.problem.held(*counts) + more > self.problem.limit + NOTHING

    def wait(self, rank: int, arrival: float, which: int) -> None:
        """Until `arrival`, with as many W as there are and fit (`which`: 0 before an F, 1 before an I)."""
        lasts, done = self.problem.weight_grad[rank], self.input_grads[rank]
        while self.weight_grads[rank] < len(done) and self.free[rank] + lasts <= arrival:
            self.weight_grad(rank)
        gap = arrival - self.free[rank]
        if gap <= 0:
            return
        if self.weight_grads[rank] < len(done) and self.fills(rank, gap, which):
            self.weight_grad(rank)
        else:
            if self.forwards[rank]:
                self.waited[rank] += gap
            self.free[rank] = arrival

    def fills(self, rank: int, gap: float, which: int) -> bool:
        """Is a gap shorter than a W filled all the same?"""
        short = self.recipe.short
        if self.latest is not None:
            microbatch = len(self.input_grads[rank] if which else self.forwards[rank])
            if self.free[rank] + self.problem.weight_grad[rank] <= self.latest[which][rank][microbatch]:
                return True
            return self.waited[rank] + gap > self.recipe.target - self.problem.busy[rank]
        return short is Short.FAIR and self.waited[rank] + gap > max(self.waited)


def latest_starts(problem: Problem, recipe: Recipe) -> Sequence[list[list[float]]]:
    """When each F and each I must start at the latest if every rank is to meet the target.

    Counted back from the end, as if all W but the last could be moved out of the way. Returns two tables by
    rank and microbatch, for F and for I.
    """
    p, m, comm = problem.p, problem.m, problem.comm
    never = float("inf")
    forwards, input_grads = ([[never] * m for _ in range(p)] for _ in range(2))
    next_start = [
        start + recipe.target - weight_grad
        for start, weight_grad in zip(problem.first_start, problem.weight_grad, strict=True)
    ]
    for i in reversed(range(m)):
        for rank in reversed(range(p)):
            if (j := recipe.ahead[rank] + i) < m:
                below = forwards[rank + 1][j] - comm if rank + 1 < p else never
                next_start[rank] = min(next_start[rank], below) - problem.forward[rank]
                forwards[rank][j] = next_start[rank]
        for rank in range(p):
            above = input_grads[rank - 1][i] - comm if rank else never
            next_start[rank] = min(next_start[rank], above) - problem.input_grad[rank]
            input_grads[rank][i] = next_start[rank]
    return forwards, input_grads
