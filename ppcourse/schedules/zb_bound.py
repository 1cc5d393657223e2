"""What no plan can beat, however its rows are ordered; and how far ahead each rank must run to come close."""

from collections.abc import Sequence

from ppcourse.schedules.zb_problem import NOTHING, Problem


def lower_bound(problem: Problem) -> float:
    """A time that no order's longest stage time is below, in the unit of the costs.

    Three things cost time wherever they happen, and the bound adds up what cannot be had at the same time:

    head   before its first I a rank has only forwards to do, and only as many as fit into its memory
    tail   after its last F a rank has only what it holds to do, while that F goes down and its I comes back
    chain  after a rank's last I every rank before it still has one I to do, one after the other
    """
    best = target_of_heads(problem)
    for rank in range(problem.p):
        head, tail = _head(problem, rank), _tail(problem, rank)
        best = max(best, problem.busy[rank] + head + tail)
        late = _most_owed(problem) * problem.weight_grad[rank]
        done = problem.first_start[rank] + problem.busy[rank] + head - late
        for before in reversed(range(rank + 1)):
            best = max(best, done + problem.weight_grad[before] - problem.first_start[before])
            if before:
                done += problem.comm + problem.input_grad[before - 1]
    return best


def run_ahead(problem: Problem, idle: Sequence[float]) -> list[int]:
    """How many forwards each rank does before its first I so that it waits for it no longer than `idle[rank]`.

    From the last rank up, the fewest that do: each forward too many delays the I, and with it all ranks before.
    Where memory ends, so does the count; the wait is then longer.
    """
    ahead = [1] * problem.p
    done = 0.0  # when the first I of the rank below is done
    for rank in reversed(range(problem.p)):
        start, forward = problem.first_start[rank], problem.forward[rank]
        arrival = done + problem.comm if rank + 1 < problem.p else start + forward
        least = 1 if rank + 1 == problem.p else ahead[rank + 1]
        while least < problem.most_ahead and arrival - start - least * forward > idle[rank]:
            least += 1
        ahead[rank] = least
        done = max(arrival, start + least * forward) + problem.input_grad[rank]
    return ahead


def target_of_heads(problem: Problem) -> float:
    """The shortest longest stage time for which the ranks can be given enough forwards to start with.

    Waits are traded between ranks here (see run_ahead), which the head of a rank alone does not show.
    """
    low, high = max(problem.busy), max(problem.busy) + sum(problem.forward) + sum(problem.input_grad)
    high += 2 * problem.p * problem.comm
    if (at_once := _with_heads(problem, low)) <= low:
        return at_once
    for _ in range(60):
        middle = (low + high) / 2
        reached = _with_heads(problem, middle)
        low, high = (low, min(middle, reached)) if reached <= middle else (middle, high)
    return high


def _with_heads(problem: Problem, target: float) -> float:
    """The longest stage time if each rank waits as `run_ahead` has it for `target`, and never again."""
    ahead = run_ahead(problem, [target - busy for busy in problem.busy])
    longest, done = 0.0, 0.0
    for rank in reversed(range(problem.p)):
        start, forward = problem.first_start[rank], problem.forward[rank]
        arrival = done + problem.comm if rank + 1 < problem.p else start + forward
        wait = max(0.0, arrival - start - ahead[rank] * forward)
        longest = max(longest, problem.busy[rank] + wait)
        done = max(arrival, start + ahead[rank] * forward) + problem.input_grad[rank]
    return longest


def _round_trip(problem: Problem, rank: int) -> float:
    """From the start of an F on `rank` until its I can start there."""
    below = sum(problem.forward[rank:]) + sum(problem.input_grad[rank + 1 :])
    return below + 2 * problem.comm * (problem.p - 1 - rank)


def _head(problem: Problem, rank: int) -> float:
    """How long a rank is idle, at least, before its first I."""
    return max(0.0, _round_trip(problem, rank) - problem.most_ahead * problem.forward[rank])


def _tail(problem: Problem, rank: int) -> float:
    """How long a rank is idle, at least, from the start of its last F on.

    By then it holds `ahead` microbatches that wait for their I and `owed` that wait for their W, and what it
    does from there on is what these leave to do. Nothing if all forwards may come before the first I: the tail
    would then be the head.
    """
    if problem.m <= problem.most_ahead:
        return 0.0
    forward, input_grad, weight_grad = problem.forward[rank], problem.input_grad[rank], problem.weight_grad[rank]
    most = 0.0
    for ahead in range(1, problem.most_ahead + 1):
        owed = min(problem.m - ahead, _most_that_fit(problem, problem.limit - ahead))
        most = max(most, forward + ahead * input_grad + (ahead + owed) * weight_grad)
    return max(0.0, _round_trip(problem, rank) + input_grad + weight_grad - most)


def _most_owed(problem: Problem) -> int:
    """The most W that can be left when a rank does its last I."""
    return min(problem.m, 1 + _most_that_fit(problem, problem.limit - max(1.0, problem.kept)))


def _most_that_fit(problem: Problem, room: float) -> int:
    """How many microbatches fit into `room` that wait for their W only; m if all do.

    One too many makes a bound low, one too few makes it false. So NOTHING counts twice: `room` is what is left of
    a limit that a plan may exceed by as much, and it has been rounded.
    """
    room += 2 * NOTHING
    return problem.m if problem.kept * problem.m <= room else int(room / problem.kept)
