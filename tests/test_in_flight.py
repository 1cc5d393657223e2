"""How many microbatches of activations a plan makes each rank hold."""

from collections.abc import Callable
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from strategies import plans, quick, random_orders, refused

from ppcourse.analysis.in_flight import in_flight, in_flight_bytes
from ppcourse.schedules import build
from ppcourse.schedules.action import Action, Op
from ppcourse.schedules.schedule import Schedule, ScheduleError

SPLIT = Schedule.from_text("0F0 0F1 0I0 0I1 0W0 0W1")


@pytest.mark.parametrize("m", [1, 4, 8, 32])
def test_gpipe_holds_every_microbatch_on_every_rank(m: int) -> None:
    assert in_flight(build("gpipe", 4, m)) == (m,) * 4


@pytest.mark.parametrize(
    ("p", "m", "held"),
    [
        (4, 8, (4, 3, 2, 1)),
        (4, 800, (4, 3, 2, 1)),
        (4, 2, (2, 2, 2, 1)),
        (4, 1, (1, 1, 1, 1)),
        (8, 32, (8, 7, 6, 5, 4, 3, 2, 1)),
    ],
)
def test_1f1b_holds_no_more_than_there_are_ranks_from_it_on(p: int, m: int, held: tuple[int, ...]) -> None:
    assert in_flight(build("1f1b", p, m)) == held


def test_a_stage_is_its_share_of_what_its_rank_holds() -> None:
    plan = Schedule.from_text("0F0 2F0 0F1 2F1 2B0 0B0 2B1 0B1\n1F0 3F0 3B0 1B0 1F1 3F1 3B1 1B1")
    assert in_flight(plan) == (2, 1)


def test_three_stages_of_a_rank_make_up_one_microbatch() -> None:
    """Exactly: thirds that are added one by one would not."""
    three = Schedule.from_text("0F0 1F0 2F0 0F1 1F1 2F1 0F2 1F2 2F2 2B0 1B0 0B0 2B1 1B1 0B1 2B2 1B2 0B2")
    assert in_flight(three) == (3,)


@pytest.mark.parametrize(
    ("kept_for_w", "held"),
    [(1.0, 2), (0.5, 2), (0.0, 2), (1.25, 2.5), (2.0, 4)],
)
def test_i_gives_back_what_w_does_not_need(kept_for_w: float, held: float) -> None:
    assert in_flight(SPLIT, kept_for_w) == (held,)


@pytest.mark.parametrize(("kept_for_w", "held"), [(1.0, 3), (0.5, 2), (0.0, 1)])
def test_work_put_off_is_held_until_it_is_done(kept_for_w: float, held: float) -> None:
    put_off = Schedule.from_text("0F0 0I0 0F1 0I1 0F2 0I2 0W0 0W1 0W2")
    assert in_flight(put_off, kept_for_w) == (held,)


@quick
@given(random_orders())
def test_what_is_kept_from_i_to_w_is_held_as_if_backward_came_at_w(plan: Schedule) -> None:
    """With all kept, and a rank's stages equal, I frees nothing: count from F to W."""
    for rank, row in enumerate(plan.rows):
        held = most = 0
        for action in row:
            held += {"F": 1, "I": 0, "W": -1, "B": -1}[action.op]
            most = max(most, held)
        assert in_flight(plan)[rank] == pytest.approx(most * plan.num_ranks / plan.num_stages)


@quick
@given(plans, st.floats(0, 2), st.floats(0, 2))
def test_keeping_more_never_holds_less(plan: Schedule, one: float, other: float) -> None:
    less, more = (in_flight(plan, share) for share in sorted((one, other)))
    assert all(a <= b + 1e-9 for a, b in zip(less, more, strict=True))


@pytest.mark.parametrize("share", [-0.1, float("nan"), float("inf"), None, "half"])
def test_a_share_that_makes_no_sense_is_refused(share: float) -> None:
    with refused(f"kept_for_w is {share!r}; it must be a share of at least 0 (1.0: I frees nothing)."):
        in_flight(SPLIT, share)


def test_many_additions_leave_no_error_of_rounding() -> None:
    """One whole microbatch on the last rank, one more on each before it; the rest wait for W. Added up one by one,
    0.1 is off."""
    assert in_flight(build("zb-h1", 4, 100), 0.1) == (4, 3 + 0.1 * 1, 2 + 0.1 * 2, 1 + 0.1 * 3)


@pytest.mark.parametrize("ask", [in_flight, lambda plan: in_flight_bytes(plan, 1)])
@pytest.mark.parametrize("action", [Action(0, "X", 0), Action(0, [], 0), (0, "F"), 7], ids=repr)
def test_what_is_no_action_is_told_as_by_the_rules(ask: Callable[[Schedule], object], action: Action) -> None:
    right = "an action is a stage, one of F, B, I, W, and a microbatch, as in 2F0"
    with refused(f"Rank 0 runs {action!r}, but {right}.", ScheduleError):
        ask(replace(SPLIT, rows=((*SPLIT.rows[0], action),)))


def test_a_stage_that_the_plan_does_not_have_has_no_size() -> None:
    with refused("Rank 0 runs 5F0, but the plan has stages 0 to 0 and microbatches 0 to 1.", ScheduleError):
        in_flight_bytes(replace(SPLIT, rows=((*SPLIT.rows[0], Action(5, Op.F, 0)),)), 1)


def test_a_plan_that_breaks_a_rule_is_counted_all_the_same() -> None:
    assert in_flight(Schedule.from_text("0B0 0F0 0F1")) == (1,)


# In bytes.


@quick
@given(plans, st.integers(0, 50), st.integers(0, 60))
def test_equal_stages_hold_their_share_of_bytes(plan: Schedule, stashed: int, kept: int) -> None:
    held = in_flight_bytes(plan, stashed, kept)
    if stashed:
        full = stashed * plan.num_stages / plan.num_ranks  # of one rank's stages
        assert held == pytest.approx([full * count for count in in_flight(plan, kept / stashed)])
    else:
        assert held == pytest.approx([kept * most_owed(row) for row in plan.rows])


def most_owed(row: tuple) -> int:
    """The most I without their W at a time."""
    owed = [sum({"I": 1, "W": -1}.get(action.op, 0) for action in row[: n + 1]) for n in range(len(row))]
    return max([0, *owed])


def test_unequal_stages_are_counted_each_by_its_own_size() -> None:
    plan = Schedule.from_text("0F0 2F0 0F1 2F1 2I0 0B0 2W0 2B1 0B1\n1F0 3F0 3B0 1B0 1F1 3F1 3B1 1B1")
    assert in_flight_bytes(plan, [1, 10, 100, 1000], [0, 0, 40, 0]) == (202, 1010)
    assert in_flight_bytes(plan, [1, 10, 100, 1000], [0, 0, 140, 0]) == (242, 1010)


@pytest.mark.parametrize(
    ("sizes", "sentence"),
    [
        (([1, 2], 0), "stashed has 2 numbers for 1 stages; give 1, or one number for all."),
        ((1, [-2]), "kept_for_w is -2; it must be a finite number of at least 0, or a list of one a stage."),
        ((float("nan"), 0), "stashed is nan; it must be a finite number of at least 0, or a list of one a stage."),
    ],
)
def test_sizes_that_are_none_are_refused(sizes: tuple, sentence: str) -> None:
    with refused(sentence):
        in_flight_bytes(SPLIT, *sizes)
