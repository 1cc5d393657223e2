"""The V-shaped schedules: golden tables, memory as the formulas say, bubbles no larger than the published ones."""

import json
import sys
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from strategies import microbatches, quick, ranks, refused

from ppcourse.analysis.in_flight import in_flight
from ppcourse.analysis.simulate import simulate
from ppcourse.analysis.timeline import Timeline
from ppcourse.schedules.action import Action, Op
from ppcourse.schedules.costs import Costs
from ppcourse.schedules.placement import vee
from ppcourse.schedules.schedule import Schedule
from ppcourse.schedules.v_half import v_half
from ppcourse.schedules.v_min import v_min
from ppcourse.schedules.v_shape import lay_block, repeat_block
from ppcourse.schedules.validate import validate
from ppcourse.schedules.zb_v import zb_v

DATA = json.loads((Path(__file__).parent / "data" / "v_shape.json").read_text())

BUILDERS: dict[str, Callable[[int, int], Schedule]] = {"v-min": v_min, "v-half": v_half, "zb-v": zb_v}

MICROBATCHES_HELD: dict[str, Callable[[int], int]] = {
    "v-min": lambda p: (p + 4) // 3,
    "v-half": lambda p: (p + 2) // 2,
    "zb-v": lambda p: p,
}

every_schedule = pytest.mark.parametrize("name", BUILDERS)

# In these tables every action lasts one slot, and a dot is an idle slot.
STAIRCASES = {
    ("v-min", 2, 4): """
        0F0  .   .  3F0 3I0 0F1 3W0 0I0 0W0 3F1 3I1 0F2 3W1 0I1 0W1 3F2 3I2 0F3 3W2 0I2 0W2 3F3 3I3 3W3  .  0I3 0W3
         .  1F0 2F0  .   .  2I0 1I0 1F1 2F1 2W0 1W0 2I1 1I1 1F2 2F2 2W1 1W1 2I2 1I2 1F3 2F3 2W2 1W2 2I3 1I3 2W3 1W3
    """,
    ("v-half", 2, 4): """
        0F0 0F1 0F2 3F0 3I0 3W0 3F1 0I0 3I1 0W0 0F3 3W1 3F2 0I1 3I2 0W1 3W2 3F3 3I3 0I2 0W2 0I3 3W3 0W3  .
         .  1F0 2F0 1F1 2F1 2I0 1I0 2W0 1W0 1F2 2F2 2I1 1I1 2W1 1W1 1F3 2F3 2I2 1I2 2I3 1I3 2W2 1W2 2W3 1W3
    """,
    ("zb-v", 2, 4): """
        0F0 0F1 0F2 3F0 3I0 3W0 3F1 3I1 3W1 0F3 0I0 0W0 3F2 3I2 3W2 0I1 0W1 3F3 3I3 3W3 0I2 0W2 0I3 0W3  .
         .  1F0 2F0 1F1 2F1 2I0 2W0 1F2 1I0 1W0 2F2 2I1 2W1 1F3 1I1 1W1 2F3 2I2 1I2 2I3 1I3 1W2 2W2 2W3 1W3
    """,
    ("v-min", 4, 1): """
        0F0  .   .   .   .   .   .  7F0 7I0 7W0  .   .   .   .   .  0I0 0W0
         .  1F0  .   .   .   .  6F0  .   .  6I0 6W0  .   .   .  1I0 1W0  .
         .   .  2F0  .   .  5F0  .   .   .   .  5I0 5W0  .  2I0 2W0  .   .
         .   .   .  3F0 4F0  .   .   .   .   .   .  4I0 3I0 4W0 3W0  .   .
    """,
    ("v-half", 1, 2): "0F0 1F0 1I0 0I0 1W0 0W0 0F1 1F1 1I1 0I1 1W1 0W1",
    ("zb-v", 1, 2): "0F0 1F0 1I0 1W0 0F1 0I0 0W0 1F1 1I1 1W1 0I1 0W1",
}


def staircase(plan: Schedule) -> list[list[str]]:
    """When each rank does what, slot by slot."""
    timeline = simulate(plan)
    table = [["."] * int(timeline.makespan) for _ in range(plan.num_ranks)]
    for span in timeline.spans:
        table[span.rank][int(span.start)] = str(span.action)
    return table


def bubble(plan: Schedule) -> float:
    """What the longest stage time is above the work of a rank, in units of one chunk's F, I or W."""
    return simulate(plan).longest_stage_time - 6 * plan.num_microbatches


def fitted_bubble(name: str, p: int) -> int:
    """The formulas in the data; v-half's for odd p goes through the one value that there is."""
    if name == "zb-v" or p == 1:
        return 0
    if name == "v-min":
        return 4 * p - 5 if p % 3 else 4 * p - 7
    return max(3 * p - 4 if p % 2 else 3 * p - 7, 0)


@pytest.mark.parametrize(("counts", "drawn"), STAIRCASES.items(), ids=lambda value: str(value)[:20])
def test_golden(counts: tuple[str, int, int], drawn: str) -> None:
    name, p, m = counts
    assert staircase(BUILDERS[name](p, m)) == [line.split() for line in drawn.strip().splitlines()]


@every_schedule
@quick
@given(p=st.integers(1, 12), m=st.integers(1, 30))
def test_every_plan_is_legal_and_complete(name: str, p: int, m: int) -> None:
    plan = BUILDERS[name](p, m)
    assert validate(plan) == ()
    assert (plan.name, plan.placement, plan.num_microbatches) == (name, vee(p), m)
    for rank, row in enumerate(plan.rows):
        stages = (rank, 2 * p - 1 - rank)
        assert len(row) == 6 * m
        assert set(row) == {Action(s, op, i) for s in stages for op in (Op.F, Op.I, Op.W) for i in range(m)}


@pytest.mark.thorough
@every_schedule
@quick
@given(p=st.integers(1, 16), m=st.integers(1, 40))
def test_some_rank_holds_what_the_formula_says_and_none_more(name: str, p: int, m: int) -> None:
    assert max(in_flight(BUILDERS[name](p, m))) == min(m, MICROBATCHES_HELD[name](p))


@pytest.mark.parametrize("row", DATA["unit_costs"]["rows"], ids=lambda row: "{schedule} p={p} m={m}".format(**row))
def test_costs_and_holds_no_more_than_published(row: dict) -> None:
    plan = BUILDERS[row["schedule"]](row["p"], row["m"])
    assert simulate(plan).longest_stage_time <= row["makespan"]
    if row["held"] is not None:
        assert 2 * max(in_flight(plan)) <= row["held"]


@pytest.mark.thorough
@every_schedule
@pytest.mark.parametrize("p", range(1, 17))
def test_the_bubble_of_a_long_step_does_not_depend_on_its_length(name: str, p: int) -> None:
    for m in (2 * p, 2 * p + 1, 2 * p + 2, 3 * p + 2):
        assert bubble(BUILDERS[name](p, m)) == fitted_bubble(name, p)


@every_schedule
@quick
@given(p=ranks, m=microbatches)
def test_no_step_takes_longer_than_1f1bs(name: str, p: int, m: int) -> None:
    """1F1B works for 6 units on a microbatch of both chunks, and on m + p - 1 one after the other."""
    assert simulate(BUILDERS[name](p, m)).makespan <= 6 * (m + p - 1)


@quick
@given(p=st.integers(1, 12), m=st.integers(1, 30))
def test_zb_v_has_no_bubble_from_2p_minus_1_microbatches_on(p: int, m: int) -> None:
    assert (bubble(zb_v(p, m)) == 0) == (m >= 2 * p - 1)


@pytest.mark.parametrize(
    ("hops", "turns"), [((1, 1, 1, 1), (1, 1, 1)), ((1, 1, 1, 1), (1, 1, 2)), ((1, 2, 1, 2), (3, 2, 1))]
)
@pytest.mark.parametrize("p", range(1, 25))
def test_a_repeated_block_never_meets_itself(
    p: int, hops: tuple[int, int, int, int], turns: tuple[int, int, int]
) -> None:
    block = lay_block(p, hops, turns)
    assert all(len({time % 6 for time in times}) == 4 for times in block)
    ways = (block, block[::-1], block, block[::-1])
    path = [times[way] for way, ranks in enumerate(ways) for times in ranks]
    _, *least = (step for turn, hop in zip((0, *turns), hops, strict=True) for step in (turn, *[hop] * (p - 1)))
    assert all(after - before >= step for (before, after), step in zip(pairwise(path), least, strict=True))


def test_a_block_that_fits_has_no_delay() -> None:
    """The picture at the head of the module."""
    assert lay_block(4, (1, 1, 1, 1)) == ((0, 7, 8, 15), (1, 6, 9, 14), (2, 5, 10, 13), (3, 4, 11, 12))


def test_a_block_that_does_not_fit_is_delayed() -> None:
    """For three ranks I1 of rank 0 would come 6 units after F0."""
    assert lay_block(3, (1, 1, 1, 1))[0][:3] == (0, 5, 7)


@pytest.mark.parametrize("in_order", [True, False])
def test_too_small_a_cap_is_refused(in_order: bool) -> None:
    with refused("short comes to a halt: cap is 1, and the block needs more chunks than that."):
        repeat_block("short", lay_block(4, (1, 1, 1, 1)), 8, cap=1, in_order=in_order)


def zb_v_measured(row: dict) -> Timeline:
    costs = Costs(row["T_F"] / 2, row["T_B"] / 2, row["T_W"] / 2, comm=row["T_comm"])
    return simulate(zb_v(row["p"], row["m"]), costs)


@pytest.mark.parametrize(("row", "saved"), list(zip(DATA["profile"]["rows"], (0, 6171), strict=True)))
def test_zb_v_costs_no_more_than_its_authors_search_finds_for_measured_costs(row: dict, saved: int) -> None:
    """The order does not know the costs, and the search does: one row is the same to the last digit, one is shorter."""
    assert row["cost"] - zb_v_measured(row).longest_stage_time == saved


@pytest.mark.parametrize("row", DATA["profile"]["rows"])
def test_within_the_memory_of_1f1b_zb_v_is_no_worse_than_the_memory_grid_says(row: dict) -> None:
    """Of the grid's 17 limits that is the one that our order has: it never holds more than p microbatches."""
    [column] = [column for column in DATA["limits"]["columns"] if (column["p"], column["m"]) == (row["p"], row["m"])]
    published = column["bubble_rate"][DATA["limits"]["limit_in_p"].index(1.0)]
    assert max(in_flight(zb_v(row["p"], row["m"]), row["kept_for_w"])) <= row["p"]
    assert zb_v_measured(row).stage_bubble_rate <= published + 0.5e-6  # they print six digits


@pytest.mark.thorough
@every_schedule
def test_twice_the_microbatches_take_twice_the_work(name: str) -> None:
    """Counted in calls of functions, which unlike seconds are the same every time."""

    def calls(m: int) -> int:
        count = 0

        def tick(frame: object, event: str, function: object) -> None:
            nonlocal count
            count += event in ("call", "c_call")

        sys.setprofile(tick)
        try:
            BUILDERS[name](8, m)
        finally:
            sys.setprofile(None)
        return count

    assert calls(128) < 2.2 * calls(64)
