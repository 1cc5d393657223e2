"""zb-auto: a plan made for given costs and a given memory limit."""

import math
from collections.abc import Iterator
from itertools import chain, product
from numbers import Real

from ppcourse.schedules.action import Action, Op
from ppcourse.schedules.costs import Costs, check_total, demand_costs
from ppcourse.schedules.placement import loop
from ppcourse.schedules.schedule import Schedule
from ppcourse.schedules.zb_bound import lower_bound, run_ahead
from ppcourse.schedules.zb_problem import Problem
from ppcourse.schedules.zb_repair import Plan, repair
from ppcourse.schedules.zb_sweep import Recipe, Short, sweep
from ppcourse.schedules.zero_bubble import zb_h1, zb_h2

TARGETS = 8
MOST_TRIES, FEWEST_TRIES = 4000, 300
WORK = 2_000_000  # letters that the tries of a repair may time, all together: about two seconds


def zb_auto(
    p: int,
    m: int,
    costs: Costs | None = None,
    memory_limit: float | None = None,
    kept_for_w: float = 1.0,
    work: int = WORK,
) -> Schedule:
    """Qi et al. 2024, §3.1, and a search on top: the shortest longest stage time that is found.

    p, m           ranks, microbatches
    costs          what F, I, W and a hop take, in any one unit; 1, 1, 1 and 0 by default
    memory_limit   the most a rank may hold, in microbatches of one rank's full activation; p by default,
                   what the first rank of 1F1B holds
    kept_for_w     the share of a microbatch that stays from its I until its W
    work           how many letters the last step may time; with fewer it ends sooner, and finds less

    1. What cannot be beaten?    a lower bound on the longest stage time                 zb_bound.py
    2. Many plans                two questions decide a plan: how far ahead does each    zb_sweep.py
                                 rank run before its first I, and which gaps does W
                                 fill? The answers differ from plan to plan
    3. The best one, improved    one letter at a time, on its critical path              zb_repair.py

    The search ends as soon as the bound is reached: such a plan is optimal. Equal arguments give equal plans.

    Raises ValueError if not even one microbatch fits, and for a limit, share or cost that makes no sense.
    """
    limit = p if memory_limit is None else memory_limit
    problem = _problem(p, m, Costs() if costs is None else costs, limit, kept_for_w)
    letters = {op.value: op for op in (Op.F, Op.I, Op.W)}
    plan = []
    for rank, row in enumerate(search(problem, work).rows):
        following = {letter: iter(range(m)) for letter in letters}
        plan.append(tuple(Action(rank, letters[letter], next(following[letter])) for letter in row))
    return Schedule("zb-auto", loop(p), m, tuple(plan))


def search(problem: Problem, work: int = WORK) -> Plan:
    """The best plan found: one string of the letters F, I and W a rank."""
    good_enough = lower_bound(problem) * (1 + 1e-12)
    first = (sweep(problem, recipe) for recipe in _first_recipes(problem))
    best = _best_of(problem, chain(first, _by_hand(problem)), None, good_enough)
    recipes = dict.fromkeys(_targeted_recipes(problem, good_enough, best.times.longest))
    best = _best_of(problem, (sweep(problem, recipe) for recipe in recipes), best, good_enough)
    tries = max(FEWEST_TRIES * work // WORK, min(MOST_TRIES, work // (3 * problem.p * problem.m)))
    return repair(problem, best, tries, good_enough)


def _best_of(problem: Problem, candidates: Iterator[list[str]], best: Plan | None, good_enough: float) -> Plan:
    """The best of `best` and the candidates; no more of them are made once it is good enough."""
    while best is None or best.times.longest > good_enough:
        rows = next(candidates, None)
        if rows is None:
            break
        plan = Plan.of(problem, rows)
        if best is None or plan.score < best.score:
            best = plan
    assert best is not None
    return best


def _by_hand(problem: Problem) -> Iterator[list[str]]:
    """The orders that need no search, where they fit."""
    for plan in (zb_h1(problem.p, problem.m), zb_h2(problem.p, problem.m)):
        rows = ["".join(action.op.value for action in row) for row in plan.rows]
        if all(map(problem.fits, rows)):
            yield rows


def _first_recipes(problem: Problem) -> Iterator[Recipe]:
    """The paper's eight and four more.

    Before its first I a rank waits less than an F takes, or not at all; or (not in the paper) up to half an F
    longer. Where memory ends the count, each rank still runs one less ahead than the one before it, or F and I
    would block each other. Two more choices, each tried both ways.
    """
    for share in (1 - 1e-9, 0.0, 1.5):
        ahead = run_ahead(problem, [share * forward for forward in problem.forward])
        for rank in range(1, problem.p):
            if ahead[rank] < problem.m:
                ahead[rank] = max(1, min(ahead[rank], ahead[rank - 1] - 1))
        for yields, short in product((True, False), (Short.FAIR, Short.WAIT)):
            yield Recipe(tuple(ahead), yields, short)


def _targeted_recipes(problem: Problem, bound: float, best: float) -> Iterator[Recipe]:
    """From the bound to the best so far: if a step may take this long, how far ahead must each rank run?"""
    for step in range(TARGETS + 1):
        target = bound + (best - bound) * step / TARGETS
        ahead = tuple(run_ahead(problem, [target - busy for busy in problem.busy]))
        yield Recipe(ahead, yields=False, short=Short.FAIR)
        for yields in (False, True):
            yield Recipe(ahead, yields, Short.TARGET, target)


def _problem(p: int, m: int, costs: Costs, memory_limit: float, kept_for_w: float) -> Problem:
    """The problem in plain numbers, or a ValueError."""
    demand_costs(costs)
    if not (_is_number(kept_for_w) and 0 <= kept_for_w < math.inf):
        raise ValueError(f"kept_for_w is {kept_for_w!r}; it must be a share of at least 0 (1.0: I frees nothing).")
    least = max(1.0, kept_for_w)  # beyond 1, a microbatch takes most between its I and its W
    if not (_is_number(memory_limit) and memory_limit >= least):
        raise ValueError(f"memory_limit is {memory_limit!r}; it must be at least {least:g}, what one microbatch takes.")
    lasts = costs.durations(p)
    each = (lasts[Op.F], lasts[Op.I], lasts[Op.W])
    check_total(10.0 * p * m * (sum(map(sum, each)) + 2 * costs.comm))  # no sum of the search is larger
    return Problem(p, m, *each, float(costs.comm), float(memory_limit), float(kept_for_w))


def _is_number(value: object) -> bool:
    return isinstance(value, Real) and not isinstance(value, bool)
