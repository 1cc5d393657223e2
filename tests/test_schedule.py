"""A schedule is plain data: counts, rows, and text both ways."""

import random
import time
from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st
from strategies import built_plans, plans, quick, random_orders, refused

from ppcourse.schedules import build
from ppcourse.schedules.action import Action, Op
from ppcourse.schedules.forward_only import forward_only
from ppcourse.schedules.placement import loop
from ppcourse.schedules.schedule import Schedule, ScheduleError
from ppcourse.schedules.validate import validate

STAIRS = """
0F0 0F1 0B0 0B1
1F0 1B0 1F1 1B1
"""


@st.composite
def overlapped_plans(draw: st.DrawFn) -> Schedule:
    """Plans in which some neighbouring F and B are joined."""
    plan, rng = draw(random_orders()), random.Random(draw(st.integers(0, 2**32)))
    pairs = [
        (rank, n)
        for rank, row in enumerate(plan.rows)
        for n, (one, other) in enumerate(pairwise(row))
        if (one.op, other.op) == (Op.F, Op.B) and rng.random() < 0.7
    ]
    return Schedule("mine", plan.placement, plan.num_microbatches, plan.rows, frozenset(pairs))


class TestText:
    def test_is_one_line_a_rank_and_one_word_an_action(self) -> None:
        assert build("gpipe", 2, 2).to_text() == "0F0 0F1 0B0 0B1\n1F0 1F1 1B0 1B1"

    @quick
    @given(plans)
    def test_is_read_back(self, plan: Schedule) -> None:
        assert Schedule.from_text(plan.to_text(), plan.name) == plan

    @quick
    @given(overlapped_plans())
    def test_is_read_back_with_its_overlapped_pairs(self, plan: Schedule) -> None:
        assert Schedule.from_text(plan.to_text()) == plan

    def test_joins_an_overlapped_pair_with_a_plus(self) -> None:
        plan = Schedule.from_text("0F0 0F1 0F2+0B0 0B1 0B2")
        assert plan.overlapped == {(0, 2)}
        assert plan.rows[0][2:4] == (Action(0, Op.F, 2), Action(0, Op.B, 0))
        assert str(plan) == "0F0 0F1 0F2+0B0 0B1 0B2"

    def test_may_show_idle_slots_as_dots(self) -> None:
        drawn = """
        0F0 0F1  .   .   .   .  0B0  .  0B1
         .  1F0 1B0 1F1 1B1  .   .   .   .
        """
        plan = Schedule.from_text(drawn)
        assert plan.to_text() == "0F0 0F1 0B0 0B1\n1F0 1B0 1F1 1B1"

    def test_shows_a_rank_that_does_nothing_as_a_dot(self) -> None:
        assert Schedule.from_text("0F0 0B0\n.").rows[1] == ()
        assert Schedule.from_text("0F0 0B0\n.").to_text() == "0F0 0B0\n."

    def test_may_have_blank_lines_and_remarks(self) -> None:
        with_remarks = "# mine\n\n 0F0 0F1  0B0 0B1 # rank 0\n\n1F0 1B0 1F1 1B1\n"
        assert Schedule.from_text(with_remarks) == Schedule.from_text(STAIRS)

    @pytest.mark.parametrize(
        ("text", "where"),
        [
            ("0F0 0B0\n1F0 1X0", "rank 1, position 1: '1X0' is not an action"),
            ("0F0 0G0", "rank 0, position 1: '0G0' is not an action"),
            ("0F0 0F1+", "rank 0, position 1: '' is not an action"),
            ("0F0+0B0+0F1", "rank 0, position 0: '0B0+0F1' is not an action"),
            ("", "The plan is empty; write one line of actions a rank"),
            ("# nothing but a remark", "The plan is empty"),
            (
                "0F0 0B0 0F9999999999",
                "The plan names 0F9999999999, but has too few actions to reach",
            ),
            ("0F0 0B0\n9999999999F0", "The plan names 9999999999F0, but has too few actions"),
            ("0F1", "The plan names 0F1, but has too few actions"),
        ],
    )
    def test_that_cannot_be_read_gets_a_sentence_that_says_where(self, text: str, where: str) -> None:
        with pytest.raises(ScheduleError) as error:
            Schedule.from_text(text)
        assert str(error.value).startswith(where)
        assert str(error.value).endswith(".")


class TestRowsThatALearnerTyped:
    @pytest.mark.parametrize(
        "rows",
        [
            ["0F0 0B0", "1F0 1B0"],
            [["0F0", "0B0"], ["1F0", "1B0"]],
            [[Action(s, Op.F, 0), Action(s, Op.B, 0)] for s in range(2)],
            [[Action(s, "F", 0), Action(s, "B", 0)] for s in range(2)],
            [iter(["0F0", "0B0"]), iter(["1F0", "1B0"])],
        ],
        ids=["words", "lists of words", "actions", "letters for ops", "iterators"],
    )
    def test_may_be_words_or_actions(self, rows: list) -> None:
        plan = Schedule.from_rows(rows)
        assert plan.to_text() == "0F0 0B0\n1F0 1B0"
        assert all(type(action.op) is Op for row in plan.rows for action in row)

    @pytest.mark.parametrize("cell", [None, 7, (0, "F", 0)])
    def test_and_nothing_else(self, cell: object) -> None:
        with pytest.raises(ScheduleError, match=r"rank 0, position 1: .* is not an action"):
            Schedule.from_rows([["0F0", cell]])

    def test_show_their_counts(self) -> None:
        plan = Schedule.from_text("0F0 0F1 2F0 2F1 2B0 2B1 0B0 0B1\n1F0 1F1 3F0 3F1 3B0 3B1 1B0 1B1")
        counts = (plan.num_ranks, plan.num_stages, plan.num_microbatches, plan.stages_per_rank)
        assert counts == (2, 4, 2, 2)
        assert plan.name == "mine"

    def test_show_their_placement(self) -> None:
        bent = Schedule.from_text("0F0 3F0 3B0 0B0\n1F0 2F0 2B0 1B0")
        assert [bent.rank_of(stage, 0) for stage in range(4)] == [0, 1, 1, 0]

    @pytest.mark.parametrize(
        "text",
        ["0F0 1B0\n1F0 0B0", "0F0 1F1 0B0 0B1\n1F0 0F1 1B0 1B1", "0F0 0F1 1F1 0B0 0B1\n1F0 1F1 1B0 1B1"],
        ids=["backwards swapped", "forwards swapped", "one too many"],
    )
    def test_keep_a_stage_where_most_of_it_runs_so_that_one_slip_does_not_move_it(self, text: str) -> None:
        plan = Schedule.from_text(text)
        for microbatch in range(plan.num_microbatches):
            assert [plan.rank_of(stage, microbatch) for stage in range(2)] == [0, 1]

    def test_keep_a_stage_with_as_many_forwards_on_either_rank_where_it_has_more_to_do(self) -> None:
        assert Schedule.from_rows(["0F0", "0F1 0B0 0B1"]).rank_of(0, 0) == 1
        assert Schedule.from_rows(["0F0 0B0", "0F1 0B1"]).rank_of(0, 0) == 0

    def test_may_leave_a_stage_out_which_then_is_looked_for_where_a_loop_has_it(self) -> None:
        plan = Schedule.from_rows(["0F0 0B0", "", "2F0 2B0"])
        assert plan.rank_of(1, 0) == 1

    @quick
    @given(built_plans())
    def test_of_a_built_plan_show_that_plan_but_for_its_pairs(self, plan: Schedule) -> None:
        assert Schedule.from_rows(plan.rows, plan.name) == replace(plan, overlapped=frozenset())


class TestForwardOnly:
    @quick
    @given(plans)
    def test_keeps_the_order_of_the_forwards(self, plan: Schedule) -> None:
        short = forward_only(plan)
        assert [list(row) for row in short.rows] == [[a for a in row if a.op == "F"] for row in plan.rows]
        assert short.placement == plan.placement
        assert plan.trains
        assert not short.trains

    @quick
    @given(plans)
    def test_of_a_legal_plan_is_legal(self, plan: Schedule) -> None:
        assert validate(forward_only(plan)) == ()

    def test_says_so_in_its_name(self) -> None:
        assert forward_only(build("1f1b", 2, 2)).name == "1f1b (forward only)"


@pytest.mark.parametrize("rows", [None, "0F0 0B0", [None], {0: "0F0 0B0"}, 5])
def test_what_is_not_rows_is_refused(rows: object) -> None:
    right = 'a list with a row for each rank, as in ["0F0 0B0", "1F0 1B0"]; for one text take from_text'
    with refused(f"Rows are {right}.", ScheduleError):
        Schedule.from_rows(rows)


@pytest.mark.parametrize(("text", "kind"), [(None, "NoneType"), (["0F0 0B0"], "list"), (b"0F0 0B0", "bytes")])
def test_what_is_not_text_is_refused(text: object, kind: str) -> None:
    with refused(f"from_text takes text, not {kind}; for rows take from_rows.", ScheduleError):
        Schedule.from_text(text)


@pytest.mark.parametrize("text", ["0F0,0B0", "0F0; 0B0", "0F0 | 0B0"])
def test_who_separates_actions_otherwise_is_told_how_it_is_done(text: str) -> None:
    with pytest.raises(ScheduleError, match=r"as in 2F0\. Between actions stand blanks\.$"):
        Schedule.from_text(text)


def test_rows_that_someone_keeps_and_changes_leave_the_plan_as_it_was() -> None:
    rows = [list(row) for row in build("gpipe", 2, 2).rows]
    plan = Schedule("mine", loop(2), 2, rows)
    assert validate(plan) == ()
    rows[0].reverse()
    rows.pop()
    assert plan.rows == build("gpipe", 2, 2).rows


@pytest.mark.parametrize(("plan", "most"), [(build("dualpipe", 4, 8), 2), (build("interleaved", 2, 2, 3), 3)])
def test_the_most_stages_of_a_rank(plan: Schedule, most: int) -> None:
    assert plan.stages_per_rank == most


def test_stages_are_counted_once_not_once_a_rank() -> None:
    def seconds(plan: Schedule) -> float:
        start = time.process_time()
        assert plan.stages_per_rank == 1
        return time.process_time() - start

    few, many = build("1f1b", 400, 1), build("1f1b", 3200, 1)
    assert min(seconds(many) for _ in range(3)) < 24 * min(seconds(few) for _ in range(3))
