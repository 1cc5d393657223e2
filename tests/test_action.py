"""One entry of a plan and its text form."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from strategies import quick, refused

from ppcourse.schedules.action import Action, Op
from ppcourse.schedules.schedule import Schedule, ScheduleError

actions = st.builds(Action, st.integers(0, 300), st.sampled_from(Op), st.integers(0, 5000))


def test_2f0_is_stage_2_forward_microbatch_0() -> None:
    assert Action.parse("2F0") == Action(stage=2, op=Op.F, microbatch=0)
    assert str(Action(12, Op.W, 34)) == "12W34"


@quick
@given(actions)
def test_an_action_is_read_back_from_its_text(action: Action) -> None:
    assert Action.parse(str(action)) == action
    assert Action.parse(f"  {action}\t") == action


NOT_ONE = ["", "F0", "٢F0", "2F٠", "2F", "2f0", "2X0", "-1F0", "2F0 2F1", "2FB0", "0SEND_F0", "٢F٠", "9" * 5000 + "F0"]


@pytest.mark.parametrize("text", NOT_ONE, ids=lambda text: text[:9])
def test_what_is_not_an_action_gets_a_sentence_that_shows_one(text: str) -> None:
    with pytest.raises(ValueError, match="is not an action") as error:
        Action.parse(text)
    right = "an action is a stage, one of F, B, I, W, and a microbatch, as in 2F0"
    assert str(error.value) == f"{text!r} is not an action; {right}."


def test_an_op_indexes_tables_by_its_letter() -> None:
    assert {Op.F: "forward"}["F"] == "forward"
    assert [op.value for op in Op] == ["F", "B", "I", "W"]


@pytest.mark.parametrize(("stage", "op", "microbatch"), [(0.0, Op.F, 0), (0, Op.F, None), ("0", Op.F, 0), (0, "X", 0)])
def test_numbers_and_ops_are_checked(stage: int, op: Op, microbatch: int) -> None:
    action = Action(stage, op, microbatch)
    right = "an action is a stage, one of F, B, I, W, and a microbatch, as in 2F0"
    with refused(f"{action!r} is not an action; {right}."):
        action.checked()
    with refused(f"rank 0, position 1: {action!r} is not an action; {right}.", ScheduleError):
        Schedule.from_rows([["0F0", action]])
    assert Action(1, "F", 2).checked().op is Op.F
