"""What must be done before an action may start."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from strategies import made, microbatches, needed, quick, ranks

from ppcourse.schedules.action import Action, Op
from ppcourse.schedules.dependencies import Numbering, Result

LETTER = {Result.ACTIVATION: "F", Result.INPUT_GRAD: "I", Result.WEIGHT_GRAD: "W"}


def said(numbering: Numbering, numbers: list[int]) -> list[str]:
    """Numbers in words, as `ACTIVATION of 1, microbatch 0`."""
    described = (numbering.describe(number) for number in numbers)
    return [f"{result.name} of {stage}, microbatch {i}" for result, stage, i in described]


@pytest.mark.parametrize(
    ("text", "needs"),
    [
        ("0F7", []),
        ("1F7", ["ACTIVATION of 0, microbatch 7"]),
        ("2F7", ["ACTIVATION of 1, microbatch 7"]),
        ("2B7", ["ACTIVATION of 2, microbatch 7"]),
        ("1B7", ["ACTIVATION of 1, microbatch 7", "INPUT_GRAD of 2, microbatch 7"]),
        ("0I7", ["ACTIVATION of 0, microbatch 7", "INPUT_GRAD of 1, microbatch 7"]),
        ("0W7", ["INPUT_GRAD of 0, microbatch 7"]),
    ],
)
def test_in_a_model_of_three_stages(text: str, needs: list[str]) -> None:
    numbering = Numbering(num_stages=3, num_microbatches=8)
    assert said(numbering, numbering.needs(Action.parse(text))) == needs


def test_a_full_backward_leaves_behind_what_i_and_w_leave_behind() -> None:
    numbering = Numbering(3, 8)
    both, split, weights = (numbering.results(Action(1, op, 5)) for op in (Op.B, Op.I, Op.W))
    assert both == split + weights


def test_numbers_are_dense() -> None:
    numbering = Numbering(3, 4)
    actions = [Action(stage, op, i) for op in (Op.F, Op.I, Op.W) for stage in range(3) for i in range(4)]
    numbers = [number for action in actions for number in numbering.results(action)]
    assert numbers == list(range(numbering.size))


@quick
@given(ranks, microbatches, st.data())
def test_the_rules_are_those_of_the_tests_own_statement(num_stages: int, m: int, data: st.DataObject) -> None:
    numbering = Numbering(num_stages, m)
    stage, i = data.draw(st.integers(0, num_stages - 1)), data.draw(st.integers(0, m - 1))
    action = Action(stage, data.draw(st.sampled_from(Op)), i)
    for numbers, facts in (
        (numbering.needs(action), needed(action, num_stages)),
        (numbering.results(action), made(action)),
    ):
        described = [numbering.describe(number) for number in numbers]
        assert {(LETTER[result], of, microbatch) for result, of, microbatch in described} == facts
