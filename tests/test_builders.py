"""The schedules: golden tables, what holds for all counts, and what is said of counts that cannot be."""

import numpy as np
import pytest
from hypothesis import given
from strategies import microbatches, quick, ranks, refused

from ppcourse.analysis import formulas
from ppcourse.analysis.in_flight import in_flight
from ppcourse.analysis.simulate import simulate
from ppcourse.schedules import SCHEDULES, build
from ppcourse.schedules.action import Action, Op
from ppcourse.schedules.costs import Costs
from ppcourse.schedules.schedule import Schedule
from ppcourse.schedules.validate import validate

# In these tables F and B last one slot each, and a dot is an idle slot.
SLOTS = Costs(forward=1, input_grad=0.5, weight_grad=0.5)

STAIRCASES = {
    ("naive", 3, 2): """
        0F0  .   .   .   .  0B0 0F1  .   .   .   .  0B1
         .  1F0  .   .  1B0  .   .  1F1  .   .  1B1  .
         .   .  2F0 2B0  .   .   .   .  2F1 2B1  .   .
    """,
    ("gpipe", 3, 4): """
        0F0 0F1 0F2 0F3  .   .   .   .  0B0 0B1 0B2 0B3
         .  1F0 1F1 1F2 1F3  .   .  1B0 1B1 1B2 1B3  .
         .   .  2F0 2F1 2F2 2F3 2B0 2B1 2B2 2B3  .   .
    """,
    ("gpipe", 4, 2): """
        0F0 0F1  .   .   .   .   .   .  0B0 0B1
         .  1F0 1F1  .   .   .   .  1B0 1B1  .
         .   .  2F0 2F1  .   .  2B0 2B1  .   .
         .   .   .  3F0 3F1 3B0 3B1  .   .   .
    """,
    ("1f1b", 3, 4): """
        0F0 0F1 0F2  .   .  0B0 0F3 0B1  .  0B2  .  0B3
         .  1F0 1F1  .  1B0 1F2 1B1 1F3 1B2  .  1B3  .
         .   .  2F0 2B0 2F1 2B1 2F2 2B2 2F3 2B3  .   .
    """,
    ("1f1b", 4, 6): """
        0F0 0F1 0F2 0F3  .   .   .  0B0 0F4 0B1 0F5 0B2  .  0B3  .  0B4  .  0B5
         .  1F0 1F1 1F2  .   .  1B0 1F3 1B1 1F4 1B2 1F5 1B3  .  1B4  .  1B5  .
         .   .  2F0 2F1  .  2B0 2F2 2B1 2F3 2B2 2F4 2B3 2F5 2B4  .  2B5  .   .
         .   .   .  3F0 3B0 3F1 3B1 3F2 3B2 3F3 3B3 3F4 3B4 3F5 3B5  .   .   .
    """,
    ("1f1b", 4, 2): """
        0F0 0F1  .   .   .   .   .  0B0  .  0B1
         .  1F0 1F1  .   .   .  1B0  .  1B1  .
         .   .  2F0 2F1  .  2B0  .  2B1  .   .
         .   .   .  3F0 3B0 3F1 3B1  .   .   .
    """,
    ("naive", 1, 3): "0F0 0B0 0F1 0B1 0F2 0B2",
    ("gpipe", 1, 3): "0F0 0F1 0F2 0B0 0B1 0B2",
    ("1f1b", 1, 3): "0F0 0B0 0F1 0B1 0F2 0B2",
}


def staircase(plan: Schedule) -> list[list[str]]:
    """When each rank does what, slot by slot."""
    timeline = simulate(plan, SLOTS)
    table = [["."] * int(timeline.makespan) for _ in range(plan.num_ranks)]
    for span in timeline.spans:
        table[span.rank][int(span.start)] = str(span.action)
    return table


@pytest.mark.parametrize(("counts", "drawn"), STAIRCASES.items(), ids=lambda value: str(value)[:20])
def test_golden(counts: tuple[str, int, int], drawn: str) -> None:
    name, p, m = counts
    rows = [line.split() for line in drawn.strip().splitlines()]
    plan = build(name, p, m)
    assert [row.split() for row in plan.to_text().splitlines()] == [
        [word for word in row if word != "."] for row in rows
    ]
    assert staircase(plan) == rows


@pytest.mark.parametrize("name", SCHEDULES)
@quick
@given(p=ranks, m=microbatches)
def test_every_schedule_is_legal_and_complete_for_all_counts(name: str, p: int, m: int) -> None:
    plan = build(name, p, m)
    assert validate(plan) == ()
    assert (plan.name, plan.num_ranks, plan.num_stages, plan.num_microbatches) == (name, p, p, m)
    assert plan.stages_per_rank == 1
    for rank, row in enumerate(plan.rows):
        assert set(row) == {Action(rank, op, i) for op in (Op.F, Op.B) for i in range(m)}
        assert len(row) == 2 * m


@quick
@given(ranks, microbatches)
def test_what_each_rank_holds_has_a_closed_form(p: int, m: int) -> None:
    assert in_flight(build("naive", p, m)) == (1,) * p
    assert in_flight(build("gpipe", p, m)) == formulas.gpipe_in_flight(p, m)
    assert in_flight(build("1f1b", p, m)) == formulas.one_f_one_b_in_flight(p, m)


@quick
@given(ranks, microbatches)
def test_1f1b_runs_its_first_backward_after_one_forward_for_each_rank_from_it_on(p: int, m: int) -> None:
    for rank, row in enumerate(build("1f1b", p, m).rows):
        first_backward = next(n for n, action in enumerate(row) if action.op == "B")
        assert first_backward == min(m, p - rank)


@pytest.mark.parametrize("name", SCHEDULES)
@pytest.mark.parametrize(
    ("counts", "sentence"),
    [
        ({"p": 0}, "p, the number of ranks, is 0; it must be a whole number of at least 1."),
        ({"p": -1}, "p, the number of ranks, is -1; it must be a whole number of at least 1."),
        ({"p": True}, "p, the number of ranks, is True; it must be a whole number of at least 1."),
        ({"p": 1.5}, "p, the number of ranks, is 1.5; it must be a whole number of at least 1."),
        ({"p": "4"}, "p, the number of ranks, is '4'; it must be a whole number of at least 1."),
        ({"m": 0}, "m, the number of microbatches, is 0; it must be a whole number of at least 1."),
        ({"m": 2.0}, "m, the number of microbatches, is 2.0; it must be a whole number of at least 1."),
        ({"m": None}, "m, the number of microbatches, is None; it must be a whole number of at least 1."),
        ({"v": 0}, "v is 0; it must be a whole number of at least 1."),
        ({"v": True}, "v is True; it must be a whole number of at least 1."),
    ],
    ids=str,
)
def test_counts_that_are_no_counts_get_a_sentence(name: str, counts: dict[str, int], sentence: str) -> None:
    with refused(sentence):
        build(name, **{"p": 4, "m": 8} | counts)


@pytest.mark.parametrize("name", ["naive", "gpipe", "1f1b"])
def test_two_stages_a_rank_are_refused_where_there_is_only_one(name: str) -> None:
    assert build(name, 4, 8, v=1) == build(name, 4, 8)
    with refused(f"v is 2, but {name} has one stage a rank; leave v out, or give v=1."):
        build(name, 4, 8, v=2)


def test_counts_may_be_numpy_integers() -> None:
    plan = build("1f1b", np.int64(2), np.int32(3))
    assert plan == build("1f1b", 2, 3)
    assert type(plan.num_microbatches) is int


@pytest.mark.parametrize(("typed", "meant"), [("gpip", "gpipe"), ("GPipe", "gpipe"), ("1F1B", "1f1b"), ("1f1", "1f1b")])
def test_an_unknown_name_gets_the_names_there_are_and_the_nearest(typed: str, meant: str) -> None:
    known = f"the schedules are {', '.join(SCHEDULES)}"
    with refused(f"There is no schedule {typed!r}; {known}. Did you mean {meant!r}?"):
        build(typed, 4, 8)


def test_a_name_like_no_other_gets_no_suggestion() -> None:
    with refused(f"There is no schedule 'xyz'; the schedules are {', '.join(SCHEDULES)}."):
        build("xyz", 4, 8)
