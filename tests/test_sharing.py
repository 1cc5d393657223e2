"""What two stages on one rank keep together is counted once: against a count of the storages themselves."""

import random
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from strategies import quick, random_order, refused

from ppcourse.analysis.memory import Sizes, held_by_plan, ledger
from ppcourse.analysis.sharing import Sharing, Turn
from ppcourse.schedules import build
from ppcourse.schedules.action import Action, Op
from ppcourse.schedules.placement import Placement
from ppcourse.schedules.schedule import Schedule

STASH, DEBT = "stash", "debt"


class Storages:
    """For each stage, what it keeps of a microbatch from F on, and from I on: {name: bytes}.

    Neighbours share names: what a stage hands over, x1 for stage 1, and the gradient that comes back for it, g1, may be
    kept by both or by none.
    """

    def __init__(self, rng: random.Random, stages: int) -> None:
        self.x, self.g = ([rng.randint(1, 9) for _ in range(stages)] for _ in range(2))
        self.kept: list[dict[str, dict[str, int]]] = []
        for stage in range(stages):
            own = {STASH: {f"s{stage}": rng.randint(0, 9)}, DEBT: {f"d{stage}": rng.randint(0, 9)}}
            if stage:
                handed, gradient = {f"x{stage}": self.x[stage]}, {f"g{stage}": self.g[stage]}
                for where, what in ((self.kept[-1][STASH], handed), (own[STASH], handed), (own[DEBT], handed)):
                    where |= what if rng.random() < 0.6 else {}
                for each in (self.kept[-1], own):
                    each[DEBT] |= gradient if rng.random() < 0.5 else {}
            self.kept.append(own)

    def sizes(self) -> Sizes:
        stashed, owed = ([sum(each[state].values()) for each in self.kept] for state in (STASH, DEBT))
        turns = [Turn(), *(self.turn(stage) for stage in range(1, len(self.kept)))]
        return Sizes(stashed=stashed, kept_for_w=owed, turns=turns)

    def turn(self, stage: int) -> Turn:
        first, second = self.kept[stage - 1], self.kept[stage]
        gradient = self.g[stage]

        def both(one: str, other: str) -> int:
            return sum(size for name, size in second[other].items() if name in first[one])

        return Turn(
            waits=0 if f"x{stage}" in first[STASH] else self.x[stage],
            shared=both(STASH, STASH),
            between=gradient,
            for_w=both(STASH, DEBT) + (gradient if f"g{stage}" in second[DEBT] else 0),
            owed=both(DEBT, DEBT),
            returned=gradient,
        )

    def most(self, plan: Schedule, rank: int) -> int:
        """The most bytes that are there, each storage once for each microbatch."""
        states: dict[tuple[int, int], str] = {}
        most = 0
        for stage, op, i in plan.rows[rank]:
            states[stage, i] = {Op.F: STASH, Op.I: DEBT}.get(op, "")
            alive = {
                (i, n): size for (s, i), state in states.items() if state for n, size in self.kept[s][state].items()
            } | self.waiting(plan, rank, states)
            most = max(most, sum(alive.values()))
        return most

    def waiting(self, plan: Schedule, rank: int, states: dict[tuple[int, int], str]) -> dict[tuple[int, str], int]:
        """What is handed over on the rank and not used yet."""
        found: dict[tuple[int, str], int] = {}
        for (stage, i), state in states.items():
            user = stage + 1
            if state != STASH or user == plan.num_stages or plan.rank_of(user, i) != rank:
                continue
            if (user, i) not in states:
                found[i, f"x{user}"] = self.x[user]
            elif states[user, i] != STASH:
                found[i, f"g{user}"] = self.g[user]
        return found


@quick
@given(st.integers(0, 2**32))
def test_each_storage_counts_once_in_any_order(seed: int) -> None:
    """Up to four stages in a row on a rank."""
    rng = random.Random(seed)
    homes = rng.choice([[0, 0], [0, 1, 1, 0], [0, 0, 0, 1], [0, 1, 1, 1, 1], [1, 0, 1, 0, 0]])
    plan, storages = random_order(rng, homes, rng.randint(1, 4)), Storages(rng, len(homes))
    found = held_by_plan(plan, storages.sizes())
    assert [sum(held) for held in found] == [storages.most(plan, rank) for rank in range(plan.num_ranks)]


@pytest.mark.parametrize("name", ["v-half", "v-min", "zb-v", "dualpipe-v", "dualpipe"])
def test_each_storage_counts_once_where_a_vee_turns(name: str) -> None:
    for seed in range(5):
        plan = build(name, 2, 6)
        storages = Storages(random.Random(seed), plan.num_stages)
        found = held_by_plan(plan, storages.sizes())
        assert [sum(held) for held in found] == [storages.most(plan, rank) for rank in range(2)]


def test_by_hand() -> None:
    """After the first F: 10 and what waits, 1. After both: 10 + 6 - 4. Between the I's: 10 and the gradient that waits,
    2, and 3 - 1 for W. After both I's: 5 + 3 - 2. After W of the second one, if that comes first: 10 + 2."""
    turns = [Turn(), Turn(waits=1, shared=4, between=2, for_w=1, owed=2, returned=2)]
    sizes = Sizes(stashed=[10, 6], kept_for_w=[5, 3], turns=turns)
    seen = []
    for row in ("0F0 1F0 1I0 0I0 1W0 0W0", "0F0 1F0 1I0 1W0 0I0 0W0"):
        plan = Schedule.from_text(row)
        walk = Sharing(plan, turns)
        seen.append([walk.after(action) for action in plan.rows[0]])
    assert seen[0] == [(1, 0), (-5, 0), (6, -1), (-2, -1), (0, 2), (0, 0)]
    assert seen[1] == [(1, 0), (-5, 0), (6, -1), (0, 1), (-2, 0), (0, 0)]
    assert held_by_plan(Schedule.from_text("0F0 1F0 1I0 0I0 1W0 0W0"), sizes) == ((12.0, 2.0, 0.0),)


def test_stages_on_two_ranks_share_nothing() -> None:
    alone = Sizes(stashed=[10, 6, 8, 3], kept_for_w=2)
    both = replace(alone, turns=[Turn(), *[Turn(shared=2)] * 3])
    for name in ("1f1b", "zb-h1"):
        for origin in ("simulated", "formula"):
            plan = build(name, 4, 8)
            assert ledger(plan, both, origin=origin).rows == ledger(plan, alone, origin=origin).rows
    plan = build("v-half", 2, 4)
    assert ledger(plan, both).totals[0] == ledger(plan, alone).totals[0]
    assert ledger(plan, both).totals[1] < ledger(plan, alone).totals[1]
    plan = build("breadth-first", 1, 4, 4)
    assert ledger(plan, alone, origin="formula").peak == 4 * 27
    with refused("There is no closed form for what breadth-first holds here; take origin='simulated'."):
        ledger(plan, both, origin="formula")


def test_stages_that_live_on_two_ranks_turn_where_their_second_copies_meet() -> None:
    """Stage 1 follows stage 0 on rank 1 for the second half of the microbatches only."""
    place = Placement(2, (0, 1, 0), (1, 1, 0), 1)
    plan = Schedule("mine", place, 2, tuple(tuple(map(Action.parse, row.split())) for row in (
        "0F0 2F0 2B0 2F1 2B1 0B0", "1F0 0F1 1F1 1B0 1B1 0B1"
    )))  # fmt: skip
    sizes = Sizes(stashed=[10, 10, 10], turns=[Turn(), Turn(shared=9), Turn()])
    assert held_by_plan(plan, sizes) == ((20.0, 0.0, 0.0), (21.0, 0.0, 0.0))


def test_turns_that_are_none_are_refused() -> None:
    with refused("Sizes.turns is -1; it must be a finite number of at least 0, or a list of one a stage."):
        Sizes(turns=[Turn(shared=-1)])
    with refused("Sizes.turns has 1 of them for 4 stages; give one for each."):
        ledger(build("1f1b", 4, 8), Sizes(turns=[Turn()]))
