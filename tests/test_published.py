"""Numbers that papers and authors' programs give, reproduced to the last digit."""

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from strategies import quick, times

from ppcourse.analysis import formulas
from ppcourse.analysis.in_flight import in_flight
from ppcourse.analysis.simulate import simulate
from ppcourse.analysis.timeline import Timeline
from ppcourse.schedules import build
from ppcourse.schedules.costs import Costs

DATA = Path(__file__).parent / "data"
ZERO_BUBBLE = [row for table in json.loads((DATA / "zero_bubble.json").read_text())["tables"] for row in table["rows"]]
DUALPIPE = json.loads((DATA / "dualpipe.json").read_text())

zero_bubble = pytest.mark.parametrize(
    "row", ZERO_BUBBLE, ids=[f"{row['model']} p={row['p']} m={row['m']}" for row in ZERO_BUBBLE]
)


def timeline(name: str, row: dict, v: int = 1) -> Timeline:
    costs = Costs(row["T_F"] / v, row["T_B"] / v, row["T_W"] / v, comm=row["T_comm"])
    return simulate(build(name, row["p"], row["m"], v), costs)


@zero_bubble
def test_1f1b(row: dict) -> None:
    predicted = timeline("1f1b", row)
    assert predicted.makespan == row["cost"]["1F1B"]
    assert round(predicted.bubble_rate, 4) == row["bubble_rate"]["1F1B"]


@zero_bubble
def test_zb_h1(row: dict) -> None:
    predicted = timeline("zb-h1", row)
    assert predicted.makespan == row["cost"]["ZB-H1"]
    assert round(predicted.bubble_rate, 4) == row["bubble_rate"]["ZB-H1"]


@zero_bubble
def test_zb_h2(row: dict) -> None:
    predicted = timeline("zb-h2", row)
    assert predicted.longest_stage_time == row["cost"]["ZB-H2"]
    assert round(predicted.stage_bubble_rate, 4) == row["bubble_rate"]["ZB-H2"]


@zero_bubble
def test_interleaved_with_every_dependency_kept(row: dict) -> None:
    """The published column leaves some hops out, and is up to 0.6% lower."""
    true = timeline("interleaved", row, row["v_interleave"]).makespan
    published = row["cost"]["1F1B-I"]
    assert true == pytest.approx(row["cost"]["1F1B-I_all_dependencies"], rel=1e-12)
    assert 0 < true / published - 1 < 0.007


@pytest.mark.parametrize(
    "row", DUALPIPE["rows"], ids=lambda r: f"p={r['p']} F={r['F']} B={r['B_full']} W={r['W']} F&B={r['FB_overlap']}"
)
def test_dualpipe(row: dict) -> None:
    plan = build("dualpipe", row["p"], row["m"])
    costs = Costs(row["F"], row["B_full"] - row["W"], row["W"], overlap=row["FB_overlap"])
    predicted = simulate(plan, costs)
    assert predicted.makespan == row["makespan"]
    assert (max(predicted.idle), min(predicted.idle)) == (row["bubble_max_rank"], row["bubble_min_rank"])
    assert set(in_flight(plan)) == {row["peak_activations_both_directions"]}
    assert formulas.dualpipe_bubble_time(row["p"], row["B_full"], row["W"], row["FB_overlap"]) == row["formula"]


# The closed forms, on their conditions, and off outside them.


@quick
@given(st.integers(2, 6), st.integers(0, 6), times, times, times)
def test_the_bubbles_of_zb_h1_and_zb_h2(p: int, more: int, f: int, i: int, w: int) -> None:
    w = min(f, i, w)
    for name, closed in (("zb-h1", formulas.zb_h1_bubble_time), ("zb-h2", formulas.zb_h2_bubble_time)):
        m = 2 * p + more
        predicted = simulate(build(name, p, m), Costs(f, i, w))
        assert predicted.longest_stage_time - m * (f + i + w) == closed(p, f, i, w)


def test_outside_their_conditions_they_are_off() -> None:
    f, i, w = 6, 9, 7  # t_w > t_f
    longest = {name: simulate(build(name, 4, 9), Costs(f, i, w)).longest_stage_time for name in ("zb-h1", "zb-h2")}
    bubbles = {name: time - 9 * (f + i + w) for name, time in longest.items()}
    assert bubbles == {"zb-h1": 27, "zb-h2": 9}
    assert (formulas.zb_h1_bubble_time(4, f, i, w), formulas.zb_h2_bubble_time(4, f, i, w)) == (24, 3)


def dualpipe_bubbles(half: int, more: int, f: int, i: int, w: int, saved: int) -> tuple[float, float]:
    """The largest idle time of a rank, simulated and by the formula. A pair lasts as long as F and B in turn, less
    `saved`, but no less than the longer of them."""
    p, m, overlap = 2 * half, 2 * (2 * half + more), max(f, i + w, f + i + w - saved)
    predicted = simulate(build("dualpipe", p, m), Costs(f, i, w, overlap=overlap))
    return max(predicted.idle), formulas.dualpipe_bubble_time(p, i + w, w, overlap)


@quick
@given(st.integers(1, 4), st.integers(0, 3), times, times)
def test_the_bubble_of_dualpipe_where_f_i_and_w_last_alike(half: int, more: int, f: int, saved: int) -> None:
    simulated, closed = dualpipe_bubbles(half, more, f, f, f, saved)
    assert simulated == closed


@quick
@given(st.integers(1, 4), st.integers(0, 3), times, times, times, times)
def test_it_is_an_upper_bound_where_neither_f_nor_w_is_longer_than_i(
    half: int, more: int, f: int, i: int, w: int, saved: int
) -> None:
    simulated, closed = dualpipe_bubbles(half, more, min(f, i), i, min(w, i), saved)
    assert simulated <= closed


def test_elsewhere_it_is_neither() -> None:
    too_low, too_high = dualpipe_bubbles(5, 1, 10, 5, 4, 0), dualpipe_bubbles(2, 0, 10, 15, 10, 5)
    assert too_low[0] > too_low[1]
    assert too_high[0] < too_high[1]


@quick
@given(st.integers(2, 6), st.integers(1, 4), st.integers(2, 4), times, times)
def test_the_bubble_of_interleaved_1f1b(p: int, groups: int, v: int, f: int, b: int) -> None:
    m = p * groups
    predicted = simulate(build("interleaved", p, m, v), Costs(f, b, 0))
    assert predicted.idle == (formulas.bubble_time(p, f * v, b * v, v),) * p
    assert predicted.makespan == formulas.step_time(p, m, f * v, b * v, v)
