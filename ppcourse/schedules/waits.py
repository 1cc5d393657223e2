"""Who waits for whom, in whole numbers: what check, simulate and channels go through instead of a million actions.

An action waits for two others: the one before it in its row, and the one that makes what it needs. So a plan is a
list of places, one an action, and a second list that has for each place that of the maker. Both are filled in the
loops of the standard library, which take a fraction of the time of ours.
"""

from collections import Counter, defaultdict
from collections.abc import Sequence
from operator import add, index
from typing import NamedTuple

from ppcourse.schedules.action import Action, Op
from ppcourse.schedules.bulk import collector_paused
from ppcourse.schedules.dependencies import Numbering
from ppcourse.schedules.schedule import Schedule

KEPT = "_waits"  # where a plan keeps them
BEGIN = -1  # the lane of a place where a rank begins
NOBODY = 0  # the maker of what nobody needs to make: the place where rank 0 begins, which is done from the start


class Lane(NamedTuple):
    """An op of a stage on the rank that holds it: actions that differ in the microbatch only.

    far      for the microbatches from `placement.turn` on, where these live elsewhere
    needs    of what the op needs, the last to be done, as a number for microbatch 0 (see Numbering)
    leaves   what it leaves behind; of two results the one that others wait for
    """

    stage: int
    op: Op
    far: bool
    rank: int
    needs: int
    leaves: int


class Waits:
    """Places are counted rank after rank; before each row there is one more, where the rank begins.

    rows         rows[rank]: the places of its actions
    lanes        all lanes of the plan
    lane         lane[place]: that of the action, as a place in `lanes`; BEGIN where a rank begins
    microbatch   microbatch[place]: that of the action
    maker        maker[place]: the place of the action that makes the last thing needed; `never`, a place that is
                 never done, if nobody makes it, and where a rank begins
    strays       the ranks that run a stage of another rank, or a stage, op or microbatch that there is not; of
                 what they run nothing is known here
    whole        all the work is there, and once. Where it is not known without a closer look, False: where a row has
                 full backwards and split ones
    """

    def __init__(self, plan: Schedule) -> None:
        self.numbering = Numbering(plan.num_stages, plan.num_microbatches)
        self.lanes = _lanes(plan, self.numbering)
        self.lane: list[int] = []
        self.microbatch: list[int] = []
        self.rows: list[range] = []
        self.strays: list[int] = []
        own = defaultdict[int, set[int]](set)  # the lanes of each rank
        for n, each in enumerate(self.lanes):
            own[each.rank].add(n)
        used: list[set[int]] = []  # of these, the ones that there are actions in
        for rank, row in enumerate(plan.rows):
            lane, microbatches, found = self._read(plan, row, own[rank])
            used.append(found)
            self.strays += [rank] if len(lane) < len(row) else []
            self.lane += [BEGIN, *lane]
            self.microbatch += [0, *microbatches]
            self.rows.append(range(len(self.lane) - len(lane), len(self.lane)))
        self.never = len(self.lane)
        m, room = self.numbering.num_microbatches, self.numbering.room  # room: the number where ranks begin
        first = [*(lane.leaves for lane in self.lanes), room]
        leaves = [*map(add, map(first.__getitem__, self.lane), self.microbatch)]
        place = [self.never] * (room + 1)  # by number, that of the action which leaves it behind
        for n, number in enumerate(leaves):
            place[number] = n
        place[room] = self.never
        once = len(place) - place.count(self.never) == self.never - plan.num_ranks
        self.whole = not self.strays and once and self._is_full(plan, used)
        place[self.numbering.size : room] = [NOBODY] * (room - self.numbering.size)
        makers = [self.never] * (room + 1)  # by number, the place of what had to be there before
        for each in self.lanes:
            makers[each.leaves : each.leaves + m] = place[each.needs : each.needs + m]
        self.maker = [*map(makers.__getitem__, leaves), self.never]

    def __reduce__(self) -> tuple[type, tuple[()]]:
        return type(None), ()  # a plan that is sent to another process leaves them behind

    def _read(
        self, plan: Schedule, row: tuple[Action, ...], own: set[int]
    ) -> tuple[Sequence[int], Sequence[int], set[int]]:
        """The lane and the microbatch of each action of a row, and all lanes that are used.

        Nothing if something is out of place, or no action.
        """
        if {*map(type, row)} != {Action}:
            return (), (), set()
        first = {op: n * plan.num_stages for n, op in enumerate(Op)}
        try:
            stages, ops, microbatches = zip(*row, strict=True)
            stages, microbatches = _whole(stages), _whole(microbatches)
            lane = list(map(add, map(first.__getitem__, ops), stages))
        except (TypeError, KeyError):
            return (), (), set()
        if plan.placement.opposite:
            turn, far = plan.placement.turn, len(Op) * plan.num_stages
            lane = [n if i < turn else n + far for n, i in zip(lane, microbatches, strict=True)]
        used = {*lane}
        at_home = own.issuperset(used) and {self.lanes[n].stage for n in own}.issuperset({*stages})
        there = {*range(plan.num_microbatches)}.issuperset({*microbatches})
        return (lane, microbatches, used) if at_home and there else ((), (), set())

    def _is_full(self, plan: Schedule, used: list[set[int]]) -> bool:
        """Given that nothing is there twice, is there as much as the stages of each rank have to do?"""
        m, turn = plan.num_microbatches, plan.placement.turn if plan.placement.opposite else plan.num_microbatches
        each = {False: min(turn, m), True: m - min(turn, m)}  # microbatches, by far
        right = ({Op.F, Op.B}, {Op.F, Op.I, Op.W}) if plan.trains else ({Op.F},)
        held = Counter[int]()
        for lane in self.lanes:
            held[lane.rank] += each[lane.far] * (lane.op is Op.F)
        for rank, row in enumerate(self.rows):
            ops = {self.lanes[lane].op for lane in used[rank]}
            if ops not in right or len(row) != held[rank] * len(ops):
                return False
        return sum(held[rank] for rank in range(plan.num_ranks)) == plan.num_stages * m


def waits_of(plan: Schedule) -> Waits:
    """What the plan's actions wait for, found out once: a plan never changes."""
    waits: Waits | None = plan.__dict__.get(KEPT)
    if waits is None:
        with collector_paused():
            waits = plan.__dict__[KEPT] = Waits(plan)
    return waits


def _whole(numbers: tuple[int, ...]) -> tuple[int, ...]:
    """The same as ints, whatever stands for one. Raises TypeError for what is no whole number, as True is none."""
    kinds = {*map(type, numbers)}
    if bool in kinds:
        raise TypeError
    return numbers if kinds == {int} else tuple(map(index, numbers))


def _lanes(plan: Schedule, numbering: Numbering) -> list[Lane]:
    homes = [plan.placement.ranks, plan.placement.opposite] if plan.placement.opposite else [plan.placement.ranks]
    return [
        Lane(stage, op, far > 0, rank, *numbering.ends(stage, op))
        for far, ranks in enumerate(homes)
        for op in Op
        for stage, rank in enumerate(ranks)
    ]
