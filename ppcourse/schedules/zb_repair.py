"""Making a plan for zb-auto better, one letter at a time, along the path that makes it as long as it is."""

import random
from itertools import accumulate
from typing import NamedTuple, TypeAlias

from ppcourse.schedules.zb_problem import Problem, Times, clock

Block: TypeAlias = tuple[int, int, int]
"""(rank, first, last): places in a row between which the rank never waits."""

Move: TypeAlias = tuple[int, int, int]
"""(rank, source, target): take the letter at `source` out of a row, and put it back so that it is at `target`."""

HISTORY = 50  # how many tries ago still counts
PATIENCE = 300  # tries without anything better, at least, before the best plan is shaken
STEPS = (1, 2, 4, 8)  # how far a W may be moved beyond its block
SHAKES = 4  # short moves


class Plan(NamedTuple):
    """Rows, and when their letters are done."""

    rows: list[str]
    times: Times

    @classmethod
    def of(cls, problem: Problem, rows: list[str]) -> "Plan":
        times = clock(problem, rows)
        assert times is not None, "these rows wait for each other in a circle"
        return cls(rows, times)

    @property
    def score(self) -> tuple[float, float]:
        """What is made small. Of two plans equally long, the one whose other ranks end earlier leaves more room."""
        return self.times.longest, sum(self.times.stage_times)


def repair(problem: Problem, plan: Plan, tries: int, good_enough: float) -> Plan:
    """The best plan that so many tries lead to; it stops at one that is as short as `good_enough`.

    Only a change on the critical path can make a plan shorter: the chain of letters, each starting the moment
    the one before is done, that ends with the slowest rank. So a try moves a letter of it: a W out of the way
    or into a gap, an F past an I. What is no worse than now, or than some tries ago, is kept (late acceptance:
    Burke and Bykov 2017). If nothing better has come for long, the best plan is shaken and tried again.
    The dice are the same each time.
    """
    dice = random.Random(0)
    patience = max(PATIENCE, sum(map(len, plan.rows)))
    best = now = plan
    history, stale, moves = [now.score] * HISTORY, 0, _moves(problem, now, dice)
    for attempt in range(tries):
        if best.score[0] <= good_enough:
            break
        if stale >= patience or not moves:
            now = _shaken(problem, best, dice)
            history, stale, moves = [now.score] * HISTORY, 0, _moves(problem, now, dice)
        stale += 1
        tried = _moved(problem, now, dice.choice(moves)) if moves else None
        if tried is None:
            continue
        slot = attempt % HISTORY
        if tried.score <= max(now.score, history[slot]):
            now, moves = tried, _moves(problem, tried, dice)
            if now.score < best.score:
                best, stale = now, 0
        history[slot] = now.score
    return best


def _moved(problem: Problem, plan: Plan, move: Move) -> Plan | None:
    """The plan after the move; None if it changes nothing, breaks the limit, or lets the ranks get stuck."""
    rank, source, target = move
    row = plan.rows[rank]
    rest = row[:source] + row[source + 1 :]
    changed = rest[:target] + row[source] + rest[target:]
    if changed == row or not problem.fits(changed):
        return None
    rows = [*plan.rows[:rank], changed, *plan.rows[rank + 1 :]]
    times = clock(problem, rows)
    return None if times is None else Plan(rows, times)


def _shaken(problem: Problem, plan: Plan, dice: random.Random) -> Plan:
    """The plan after a few short moves anywhere, good or bad."""
    for _ in range(SHAKES):
        rank = dice.randrange(problem.p)
        source = dice.randrange(len(plan.rows[rank]))
        target = min(max(0, source + dice.choice((-3, -2, -1, 1, 2, 3))), len(plan.rows[rank]) - 1)
        plan = _moved(problem, plan, (rank, source, target)) or plan
    return plan


def _moves(problem: Problem, plan: Plan, dice: random.Random) -> list[Move]:
    """The moves of letters on the critical path of one of the slowest ranks."""
    took = plan.times.stage_times
    slowest = [rank for rank in range(problem.p) if took[rank] == plan.times.longest]
    moves: list[Move] = []
    for rank, first, last in critical_path(problem, plan, dice.choice(slowest)):
        row = plan.rows[rank]
        places = {first, last, len(row) - 1}
        places |= {first - step for step in STEPS if step <= first}
        places |= {last + step for step in STEPS if last + step < len(row)}
        for place in range(first, last):
            if row[place] == "W":
                moves += [(rank, place, to) for to in sorted(places - {place})]
        for place in range(max(first - 1, 0), last):
            if row[place : place + 2] in ("FI", "IF"):
                moves.append((rank, place, place + 1))
    return moves


def critical_path(problem: Problem, plan: Plan, rank: int) -> list[Block]:
    """The blocks of letters without a wait that lead to the end of `rank`, from its end to the beginning."""
    place, path = len(plan.rows[rank]) - 1, []
    while True:
        first = _block_start(problem, plan, rank, place)
        path.append((rank, first, place))
        letter = plan.rows[rank][first]
        maker = rank + 1 if letter == "I" else rank - 1
        if letter == "W" or not 0 <= maker < problem.p:
            return path
        microbatch = plan.rows[rank].count(letter, 0, first)
        rank, place = maker, _place_of(plan.rows[maker], letter, microbatch)


def _block_start(problem: Problem, plan: Plan, rank: int, place: int) -> int:
    """The last place up to `place` before which the rank waited; 0 if there is none."""
    lasts = {"F": problem.forward[rank], "I": problem.input_grad[rank], "W": problem.weight_grad[rank]}
    ends = {"F": iter(plan.times.forwards[rank]), "I": iter(plan.times.input_grads[rank])}
    now, start = problem.first_start[rank], 0
    for at, letter in enumerate(plan.rows[rank][: place + 1]):
        unhindered = now + lasts[letter]
        now = unhindered if letter == "W" else next(ends[letter])
        if now > unhindered * (1 + 1e-12):
            start = at
    return start


def _place_of(row: str, letter: str, microbatch: int) -> int:
    """Where `row` has the letter for that microbatch."""
    counts = accumulate(each == letter for each in row)
    return next(place for place, count in enumerate(counts) if count > microbatch)
