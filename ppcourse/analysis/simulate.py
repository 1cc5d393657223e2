"""Event simulation: when each action of a plan starts and ends, given what actions and hops take."""

import math
import random
from numbers import Integral, Real

from ppcourse.analysis.timeline import Timeline, Track
from ppcourse.schedules.action import Op
from ppcourse.schedules.bulk import collector_paused
from ppcourse.schedules.channels import ways
from ppcourse.schedules.costs import Costs, check_total, demand_costs
from ppcourse.schedules.schedule import Schedule
from ppcourse.schedules.validate import check, order_of
from ppcourse.schedules.waits import NOBODY, waits_of


def simulate(plan: Schedule, costs: Costs | None = None, *, jitter: float = 0.0, seed: int = 0) -> Timeline:
    """The timeline of `plan` if each action starts as soon as its rank is free and what it needs has arrived.

    A result made on another rank arrives `costs.comm` after it is done, or later where a bandwidth makes
    messages queue; on the same rank it is there at once. An overlapped pair starts when both its actions may;
    both end together. Costs default to 1 for each of F, I and W, and nothing for a hop.

    jitter   random delays: each F, I and W lasts longer by a share of its cost drawn from an exponential
             distribution with this mean. The draws come from `seed`, op, stage and microbatch alone, so that
             every schedule, of any length, meets the same delays

    Deterministic, and linear in the number of actions. Raises ScheduleError for a plan that breaks a rule;
    for one that would never end the sentence says what each rank waits for. Raises ValueError for costs that
    do not fit the plan or are too large to be added up, for a jitter that is not a number of at least 0 and for a
    seed that is no whole number.
    """
    if costs is not None:
        demand_costs(costs)
    if not (isinstance(jitter, Real) and 0 <= jitter < math.inf):
        raise ValueError(f"jitter is {jitter!r}; it must be a number of at least 0 (0.1: a tenth longer on average).")
    if not isinstance(seed, Integral):
        raise ValueError(f"seed is {seed!r}; it must be a whole number, so that equal calls give equal delays.")
    check(plan)
    costs = costs or Costs()
    with collector_paused():
        starts, ends = _execute(plan, _Durations(plan, costs, jitter, int(seed)), _Post(plan, costs))
        check_total(plan.num_ranks * sum(ends))
    places = (slice(row.start, row.stop) for row in waits_of(plan).rows)
    ran = zip(plan.rows, places, strict=True)
    return Timeline(plan.name, tuple(Track(row, tuple(starts[at]), tuple(ends[at])) for row, at in ran))


def _execute(plan: Schedule, lasts: "_Durations", post: "_Post") -> tuple[list[float], list[float]]:
    """When each action starts and ends, by its place (see Waits). Where a rank begins, that is 0."""
    waits, hops, alone, pairs = waits_of(plan), not post.free, lasts.alone, lasts.pairs
    starts, ends = [0.0] * (waits.never + 1), [0.0] * (waits.never + 1)
    maker, arrived = (post.sender, ends.copy()) if hops else (waits.maker, ends)
    for stretch in order_of(plan):
        end = ends[stretch.start - 1]
        for place in stretch:
            start, before = arrived[maker[place]], end
            if start < before:
                start = before
            end = start + alone[place]
            if pairs:
                if place in pairs:
                    start = max(start, arrived[maker[place + 1]])
                    end = start + pairs[place]
                elif place - 1 in pairs:  # the B of a pair starts and ends with its F
                    start, end = starts[place - 1], before
            starts[place] = start
            ends[place] = end
            if hops:
                arrived[place] = post.arrival(place, end)
    return starts, ends


class _Durations:
    """How long actions last, by place, delays included.

    alone   each action by itself
    pairs   an overlapped pair, by the place of its F
    """

    def __init__(self, plan: Schedule, costs: Costs, jitter: float, seed: int) -> None:
        waits, self.pairs = waits_of(plan), dict[int, float]()
        single, overlap = costs.durations(plan.num_stages), costs.overlaps(plan.num_stages)
        self.alone = list(map([single[lane.op][lane.stage] for lane in waits.lanes].__getitem__, waits.lane))
        if jitter:
            late = _delays(plan, single, jitter, seed)
            for at, row in zip(waits.rows, plan.rows, strict=True):
                for place, (stage, op, i) in zip(at, row, strict=True):
                    self.alone[place] += late[op][stage][i]
        for rank, position in plan.overlapped:
            place, (forward, backward) = waits.rows[rank][position], plan.rows[rank][position : position + 2]
            both = self.alone[place] + self.alone[place + 1]
            if overlap is not None:
                both = overlap[forward.stage] + both - (single[Op.F][forward.stage] + single[Op.B][backward.stage])
            self.pairs[place] = both


def _delays(
    plan: Schedule, single: dict[Op, tuple[float, ...]], jitter: float, seed: int
) -> dict[Op, list[list[float]]]:
    """How much longer than its cost each action lasts; a B by the delays of its I and its W."""

    def delays(op: Op, stage: int, cost: float) -> list[float]:
        rng = random.Random(f"{seed} {op} {stage}")  # dice of its own, which other stages and counts leave alone
        return [cost * jitter * rng.expovariate(1.0) for _ in range(plan.num_microbatches)]

    late = {op: [delays(op, stage, cost) for stage, cost in enumerate(single[op])] for op in (Op.F, Op.I, Op.W)}
    both = zip(late[Op.I], late[Op.W], strict=True)
    return late | {Op.B: [[i + w for i, w in zip(*rows, strict=True)] for rows in both]}


class _Post:
    """When what an action leaves behind has arrived where it is needed.

    free     nothing takes any time on its way
    sender   by place, that of the maker of what comes from another rank; NOBODY if nothing does
    """

    def __init__(self, plan: Schedule, costs: Costs) -> None:
        self.comm, self.queues = costs.comm, bool(costs.bandwidth)
        self.free = not (self.queues or self.comm)
        if self.free:
            return
        self.waits = waits = waits_of(plan)
        self.sends, uses = ways(waits)
        self.sender = [place if uses[n] else NOBODY for n, place in zip(waits.lane, waits.maker, strict=False)]
        sizes = costs.transfers(plan.num_stages)
        # a gradient is as large as what the stage before handed on
        self.takes = [sizes[lane.stage if lane.op is Op.F else lane.stage - 1] for lane in waits.lanes]
        self.busy: dict[tuple[int, int], float] = {}  # until when the way from a rank to another is taken

    def arrival(self, place: int, end: float) -> float:
        """To be asked in the order in which each rank sends: messages from a rank to another do not overtake."""
        lane = self.waits.lane[place]
        channel = self.sends[lane]
        if channel is None:
            return end
        if self.queues:
            way = channel[:2]
            end = self.busy[way] = max(end, self.busy.get(way, 0.0)) + self.takes[lane]
        return end + self.comm
