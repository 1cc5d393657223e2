"""Event simulation: when each action of a plan starts and ends, given what actions and hops take."""

import math
import random
from itertools import chain, repeat
from numbers import Integral, Real

from ppcourse.analysis.timeline import Span, Timeline
from ppcourse.schedules.action import Action, Op
from ppcourse.schedules.bulk import collector_paused
from ppcourse.schedules.channels import outgoing
from ppcourse.schedules.costs import Costs
from ppcourse.schedules.dependencies import Numbering
from ppcourse.schedules.schedule import Schedule
from ppcourse.schedules.validate import check, order_of


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
    do not fit the plan, for a jitter that is not a number of at least 0 and for a seed that is no whole number.
    """
    if costs is not None and not isinstance(costs, Costs):
        raise ValueError(f"costs is {costs!r}, but it must be Costs, for example Costs(forward=1, comm=0.1).")
    if not (isinstance(jitter, Real) and 0 <= jitter < math.inf):
        raise ValueError(f"jitter is {jitter!r}; it must be a number of at least 0 (0.1: a tenth longer on average).")
    if not isinstance(seed, Integral):
        raise ValueError(f"seed is {seed!r}; it must be a whole number, so that equal calls give equal delays.")
    check(plan)
    costs = costs or Costs()
    starts: list[list[float]] = [[] for _ in plan.rows]
    ends: list[list[float]] = [[] for _ in plan.rows]
    with collector_paused():
        _execute(plan, _Durations(plan, costs, jitter, int(seed)), _Post(plan, costs), starts, ends)
        # the loops of the standard library, which make a million spans in a third of the time of ours
        rows = (zip(repeat(rank), row, starts[rank], ends[rank]) for rank, row in enumerate(plan.rows))
        spans = tuple(map(tuple.__new__, repeat(Span), chain.from_iterable(rows)))
    return Timeline(plan.name, plan.num_ranks, spans)


def _execute(
    plan: Schedule, lasts: "_Durations", post: "_Post", starts: list[list[float]], ends: list[list[float]]
) -> None:
    """Fill in when each action starts and ends, rank by rank and position by position."""
    numbering = Numbering(plan.num_stages, plan.num_microbatches)
    bases, single = numbering.bases, lasts.single
    late, hops = lasts.late is not None, not post.free
    arrived = [0.0] * numbering.room
    free = [0.0] * plan.num_ranks
    all_pairs = plan.pairs
    for rank, stretch in order_of(plan):
        row, pairs, end = plan.rows[rank], all_pairs[rank], free[rank]
        starts_here, ends_here = starts[rank].append, ends[rank].append
        joined = False
        for position in stretch:
            stage, op, i = row[position]
            _, across, leaves = bases[op][stage]
            if joined:  # the B of a pair starts and ends with its F
                joined = False
            else:
                start = arrived[across + i]
                if start < end:
                    start = end
                if pairs and position in pairs:
                    other, joined = row[position + 1], True
                    start = max(start, arrived[bases[other.op][other.stage].across + other.microbatch])
                    end = start + lasts.pair(row[position], other)
                else:
                    end = start + (lasts.delayed(row[position]) if late else single[op][stage])
            starts_here(start)
            ends_here(end)
            arrived[leaves + i] = post.arrival(row[position], end) if hops else end
        free[rank] = end


class _Durations:
    """How long an action lasts, alone and in an overlapped pair, delays included."""

    def __init__(self, plan: Schedule, costs: Costs, jitter: float, seed: int) -> None:
        self.single, self.overlap = costs.durations(plan.num_stages), costs.overlaps(plan.num_stages)
        self.late = _delays(plan, self.single, jitter, seed) if jitter else None

    def delayed(self, action: Action) -> float:
        stage, op, i = action
        return self.single[op][stage] + (self.late[op][stage][i] if self.late else 0.0)

    def pair(self, forward: Action, backward: Action) -> float:
        both = self.delayed(forward) + self.delayed(backward)
        if self.overlap is None:
            return both
        alone = self.single[Op.F][forward.stage] + self.single[Op.B][backward.stage]
        return self.overlap[forward.stage] + both - alone


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
    """When what an action leaves behind has arrived where it is needed."""

    def __init__(self, plan: Schedule, costs: Costs) -> None:
        self.comm, self.turn = costs.comm, plan.placement.turn if plan.placement.opposite else plan.num_microbatches
        self.ways = [self._ways(plan, 0), self._ways(plan, plan.num_microbatches - 1)]
        self.queues = bool(costs.bandwidth)
        self.free = not (self.queues or self.comm)
        self.transfers = costs.transfers(plan.num_stages)
        self.busy: dict[tuple[int, int], float] = {}  # until when the way from a rank to another is taken

    def arrival(self, action: Action, end: float) -> float:
        """To be asked in the order in which each rank sends: messages from a rank to another do not overtake."""
        stage, op, i = action
        way = self.ways[i >= self.turn][op][stage]
        if way is None:
            return end
        if self.queues:
            sent = max(end, self.busy.get(way, 0.0))
            end = self.busy[way] = sent + self.transfers[stage if op is Op.F else stage - 1]
        return end + self.comm

    def _ways(self, plan: Schedule, microbatch: int) -> dict[Op, list[tuple[int, int] | None]]:
        """(source, destination) of what each op leaves behind at each stage; None where it stays on its rank."""
        messages = {op: [outgoing(plan, Action(s, op, microbatch)) for s in range(plan.num_stages)] for op in Op}
        return {op: [message and message.channel[:2] for message in row] for op, row in messages.items()}
