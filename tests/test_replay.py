"""One execution of a plan, in an order that its rules allow."""

from collections.abc import Iterator

from hypothesis import given
from strategies import made, needed, plans, quick

from ppcourse.schedules import build
from ppcourse.schedules.dependencies import Result
from ppcourse.schedules.replay import Replay
from ppcourse.schedules.schedule import Schedule


def steps(replay: Replay) -> Iterator[tuple[int, int]]:
    """(rank, position) of each action, in the order in which they run."""
    return (step for stretch in replay for step in located(replay.plan, stretch))


def located(plan: Schedule, stretch: range) -> list[tuple[int, int]]:
    """The places of a stretch as (rank, position): rank after rank, one place more before each row."""
    places = [(rank, n) for rank, row in enumerate(plan.rows) for n in range(-1, len(row))]
    return [places[place] for place in stretch]


@quick
@given(plans)
def test_a_legal_plan_is_run_to_its_end_and_nothing_runs_before_what_it_needs(plan: Schedule) -> None:
    known = set()
    places = []
    replay = Replay(plan)
    for rank, position in steps(replay):
        action = plan.rows[rank][position]
        assert needed(action, plan.num_stages) <= known
        known |= made(action)
        places.append((rank, position))
    assert sorted(places) == [(rank, n) for rank, row in enumerate(plan.rows) for n in range(len(row))]
    for rank in range(plan.num_ranks):
        assert [position for owner, position in places if owner == rank] == list(range(len(plan.rows[rank])))
    assert replay.stopped == [len(row) for row in plan.rows]
    assert replay.missing() == {}


def test_each_step_knows_what_it_needs() -> None:
    replay = Replay(build("gpipe", 2, 1))
    number_of = {str(a): replay.numbering.results(a)[0] for row in replay.plan.rows for a in row}
    needs = {str(replay.plan.rows[rank][n]): replay.needs(rank, n) for rank in (0, 1) for n in (0, 1)}
    assert needs == {
        "0F0": [],
        "1F0": [number_of["0F0"]],
        "1B0": [number_of["1F0"]],
        "0B0": [number_of["0F0"], number_of["1B0"]],
    }


def test_a_rank_runs_as_far_as_it_can() -> None:
    plan = build("1f1b", 2, 2)
    stretches = [located(plan, stretch) for stretch in Replay(plan)]
    assert stretches == [[(0, 0), (0, 1)], [(1, 0), (1, 1), (1, 2), (1, 3)], [(0, 2), (0, 3)]]


def test_a_plan_that_stops_tells_where_each_rank_stands_and_what_it_waits_for() -> None:
    plan = Schedule.from_text("0F0 0B0 0F1 0B1\n1F1 1B1 1F0 1B0")
    replay = Replay(plan)
    assert [str(plan.rows[rank][position]) for rank, position in steps(replay)] == ["0F0"]
    assert replay.stopped == [1, 0]
    describe = replay.numbering.describe
    waits = {rank: [describe(number) for number in needs] for rank, needs in replay.missing().items()}
    assert waits == {0: [(Result.INPUT_GRAD, 1, 0)], 1: [(Result.ACTIVATION, 0, 1)]}


def test_a_rank_that_finished_waits_for_nothing() -> None:
    replay = Replay(Schedule.from_text("0F0 0F1\n1F0 1B0 1B1 1F1"))
    assert len(list(steps(replay))) == 4
    assert set(replay.missing()) == {1}


def test_an_overlapped_pair_waits_for_the_needs_of_both() -> None:
    plan = Schedule.from_text("0F0 0F1 0F2+0B0 0B1 0B2\n1F0 1B0 1F1 1B1 1F2 1B2")
    replay = Replay(plan)
    assert len(replay.needs(0, 2)) == 2  # nothing for the F of the first stage, two for the B
    assert located(plan, next(iter(replay))) == [(0, 0), (0, 1)]
    assert [str(action) for action in replay.together(0, 2)] == ["0F2", "0B0"]


def test_what_a_pair_leaves_behind_is_there_for_other_ranks() -> None:
    rows = ["0F0 0F1 0F2 0B0 0B1 0B2", "1F0 1F1+1B0 1F2+1B1 1B2", "2F0 2B0 2F1 2B1 2F2 2B2"]
    replay = Replay(Schedule.from_rows(rows))
    assert len(list(steps(replay))) == 18
    assert replay.stopped == [6, 6, 6]
