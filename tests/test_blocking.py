"""Would a legal plan hang where sends block?"""

from collections import defaultdict
from itertools import permutations, product

import pytest
from hypothesis import given
from strategies import Fact, made, needed, plans, quick

from ppcourse.schedules import build
from ppcourse.schedules.blocking import blocking
from ppcourse.schedules.schedule import Schedule, ScheduleError
from ppcourse.schedules.validate import validate


@pytest.mark.parametrize(("p", "m"), [(1, 4), (2, 1), (4, 1), (3, 5)])
def test_forwards_then_backwards_never_meet(p: int, m: int) -> None:
    assert blocking(build("gpipe", p, m)) is None
    assert blocking(build("naive", p, m)) is None


def test_an_action_receives_before_it_sends() -> None:
    """There and back between two ranks, and only one of them ever has something to send."""
    assert blocking(Schedule.from_text("0F0 2F0 2B0 0B0\n1F0 3F0 3B0 1B0")) is None


@pytest.mark.parametrize(("p", "m"), list(product([2, 3, 4, 8], [3, 4, 8])))
def test_1f1b_hangs_where_a_forward_goes_down_while_a_backward_comes_up(p: int, m: int) -> None:
    found = blocking(build("1f1b", p, m))
    assert found is not None
    assert found.code == "blocking"


def test_the_sentence_names_the_two_actions() -> None:
    found = blocking(build("1f1b", 2, 2))
    assert found is not None
    assert found[:3] == ("blocking", 0, 1)
    assert found.message == (
        "Where sends block, this plan hangs: rank 0 stands at its send after 0F1 and waits for rank 1;"
        " rank 1 stands at its send after 1B0 and waits for rank 0."
    )


@pytest.mark.parametrize("p", [pytest.param(p, id=f"R01 p={p}") for p in (2, 4)])
def test_two_ranks_that_both_send_first(p: int) -> None:
    """Interleaved stages, both ranks with an activation to send: legal, and named before anything runs."""
    plan = build("interleaved", p, 2 * p, 2)
    assert validate(plan) == ()
    found = blocking(plan)
    assert found is not None
    assert found.message.count("at its send after") >= 2


def test_a_plan_that_breaks_a_rule_is_told_so_first() -> None:
    with pytest.raises(ScheduleError, match=r"^Rank 0 runs 0B0 at position 0, but needs 0F0"):
        blocking(Schedule.from_text("0B0 0F0"))


# By brute force, from the tests' own statement of the rules.


def stands(plan: Schedule) -> bool:
    """Whether ranks come to stand: pairs of ranks meet, in any order, until no two of them can."""
    maker = {fact: (rank, a) for rank, row in enumerate(plan.rows) for a in row for fact in made(a)}
    users = defaultdict(list)
    for rank, row in enumerate(plan.rows):
        for action in row:
            for fact in needed(action, plan.num_stages):
                if maker[fact][0] != rank:
                    users[fact].append(rank)
    queues: list[list[tuple[str, Fact]]] = []
    for rank, row in enumerate(plan.rows):
        queue: list[tuple[str, Fact]] = []
        for action in row:
            queue += [("receive", f) for f in needed(action, plan.num_stages) if maker[f][0] != rank]
            queue += [("send", fact) for fact in made(action) for _ in users[fact]]
        queues.append(queue)
    moved = True
    while moved:
        moved = False
        for one, other in permutations(queues, 2):
            if one and other and one[0][0] == "send" and other[0] == ("receive", one[0][1]):
                one.pop(0)
                other.pop(0)
                moved = True
    return any(queues)


@quick
@given(plans)
def test_it_is_found_where_ranks_come_to_stand_and_nowhere_else(plan: Schedule) -> None:
    assert (blocking(plan) is not None) == stands(plan)
