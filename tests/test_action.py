"""One entry of a plan and its text form."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from strategies import quick

from ppcourse.schedules.action import Action, Op

actions = st.builds(Action, st.integers(0, 300), st.sampled_from(Op), st.integers(0, 5000))


def test_2f0_is_stage_2_forward_microbatch_0() -> None:
    assert Action.parse("2F0") == Action(stage=2, op=Op.F, microbatch=0)
    assert str(Action(12, Op.W, 34)) == "12W34"


@quick
@given(actions)
def test_an_action_is_read_back_from_its_text(action: Action) -> None:
    assert Action.parse(str(action)) == action
    assert Action.parse(f"  {action}\t") == action


@pytest.mark.parametrize("text", ["", "F0", "2F", "2f0", "2X0", "-1F0", "2F0 2F1", "2FB0", "0SEND_F0"])
def test_what_is_not_an_action_gets_a_sentence_that_shows_one(text: str) -> None:
    with pytest.raises(ValueError, match="is not an action") as error:
        Action.parse(text)
    right = "an action is a stage, one of F, B, I, W, and a microbatch, as in 2F0"
    assert str(error.value) == f"{text!r} is not an action; {right}."


def test_an_op_indexes_tables_by_its_letter() -> None:
    assert {Op.F: "forward"}["F"] == "forward"
    assert [op.value for op in Op] == ["F", "B", "I", "W"]
