"""Event simulation: when each action of a plan starts and ends, given what actions and hops take."""

from ppcourse.analysis.timeline import Span, Timeline
from ppcourse.schedules.action import Op
from ppcourse.schedules.costs import Costs
from ppcourse.schedules.replay import Replay
from ppcourse.schedules.schedule import Schedule
from ppcourse.schedules.validate import check


def simulate(plan: Schedule, costs: Costs | None = None) -> Timeline:
    """The timeline of `plan` if each action starts as soon as its rank is free and what it needs has arrived.

    A result made on another rank arrives `costs.comm` after it is done; on the same rank it is there at once.
    An overlapped pair starts when both its actions may; both end together. Costs default to 1 for each of F,
    I and W, and nothing for a hop.

    Deterministic, and linear in the number of actions. Raises ScheduleError for a plan that breaks a rule;
    for one that would never end the sentence says what each rank waits for.
    """
    if costs is not None and not isinstance(costs, Costs):
        raise ValueError(f"costs is {costs!r}, but it must be Costs, for example Costs(forward=1, comm=0.1).")
    check(plan)
    costs = costs or Costs()
    lasts = _Durations(plan, costs)
    replay = Replay(plan)
    ended = [0.0] * replay.numbering.size
    made_on = [0] * replay.numbering.size
    free = [0.0] * plan.num_ranks
    spans = []
    for rank, position, needs in replay:
        start = free[rank]
        for need in needs:
            arrival = ended[need] if made_on[need] == rank else ended[need] + costs.comm
            if arrival > start:
                start = arrival
        end = free[rank] = start + lasts(rank, position)
        for action in plan.rows[rank][position : position + replay.size(rank, position)]:
            spans.append(Span(rank, action, start, end))
            for number in replay.numbering.results(action):
                ended[number], made_on[number] = end, rank
    return Timeline(plan.name, plan.num_ranks, tuple(spans))


class _Durations:
    """How long what starts at a place of the plan lasts."""

    def __init__(self, plan: Schedule, costs: Costs) -> None:
        self.plan = plan
        self.single = costs.durations(plan.num_stages)
        self.pair = costs.overlaps(plan.num_stages)

    def __call__(self, rank: int, position: int) -> float:
        stage, op, _ = self.plan.rows[rank][position]
        if not self.plan.overlapped or (rank, position) not in self.plan.overlapped:
            return self.single[op][stage]
        if self.pair is not None:
            return self.pair[stage]
        return self.single[Op.F][stage] + self.single[Op.B][self.plan.rows[rank][position + 1].stage]
