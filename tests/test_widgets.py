"""Widgets, driven by their controls as a learner would: what they show, how fast, and what stands in for them."""

import asyncio
import base64
import importlib
import re
import statistics
import time
from collections.abc import Callable
from typing import Any

import ipywidgets
import nbformat
import pytest
from hypothesis import given
from hypothesis import strategies as st
from matplotlib.figure import Figure
from nbconvert import HTMLExporter
from strategies import quick, refused

import ppcourse as pp
from ppcourse.lab import over_m, pairs
from ppcourse.lab.draft import draft
from ppcourse.lab.execute import execute
from ppcourse.lab.explorer import QUICKLY
from ppcourse.lab.panel import Panel, sentence
from ppcourse.lab.svg import svg
from ppcourse.schedules.placement import loop
from ppcourse.schedules.zb_auto import zb_auto

WIDGETS: dict[str, Callable[[], Any]] = {
    "explore": pp.explore,
    "explore_m": pp.explore_m,
    "explore_overlap": pp.explore_overlap,
    "draw_schedule": pp.draw_schedule,
}
every_widget = pytest.mark.parametrize("make", WIDGETS.values(), ids=WIDGETS)
PNG = b"\x89PNG\r\n\x1a\n"


def charts(panel: Any) -> list[str]:
    """The first lines of the charts on the page."""
    return re.findall(r">([^<>]+ · makespan [^<>]+)<", panel.shown.value)


def boxes_named(panel: Any, name: str) -> int:
    return panel.shown.value.count(f">{name}</text>")


def cells(panel: Any) -> dict[str, list[str]]:
    """The table on the page, by the heads of its rows."""
    rows = re.findall(r"<tr>(.*?)</tr>", panel.shown.value)
    texts = [[re.sub("<.*?>", "", cell) for cell in re.findall(r"<t[hd][^>]*>(.*?)</t[hd]>", row)] for row in rows]
    return {row[0].strip(): row[1:] for row in texts}


# what all share


@every_widget
def test_every_control_has_a_label_and_works_by_keyboard(make: Callable[[], Any]) -> None:
    panel = make()
    assert panel.problem == ""
    for name, control in panel.controls.items():
        assert control.description, name
        # browsers' own elements, and noUiSlider, which the arrow keys move; nothing of ours listens to a mouse
        assert control._view_module == "@jupyter-widgets/controls"
    assert not re.search(r"\bon\w+=|<script", panel.shown.value)


@every_widget
def test_a_picture_stands_in_where_no_widget_can_run(make: Callable[[], Any]) -> None:
    data, metadata = make()._repr_mimebundle_()
    assert base64.b64decode(data["image/png"]).startswith(PNG)
    assert metadata["image/png"]["width"] == 900
    assert data["application/vnd.jupyter.widget-view+json"]["model_id"]


@every_widget
def test_a_picture_says_in_words_what_it_shows(make: Callable[[], Any]) -> None:
    panel = make()
    for picture in re.findall(r"<svg [^>]*>", panel.shown.value):
        assert 'aria-label="' in picture or 'aria-hidden="true"' in picture


class Broken(Panel):
    """Fails at 3 in a way that nobody foresaw."""

    def draw(self) -> Any:
        if self.at.value == 3:
            raise KeyError("lost")
        return "fine", ""

    def figure(self) -> Figure:
        raise ZeroDivisionError("no picture")


def test_an_error_in_a_callback_is_a_sentence_and_goes_away() -> None:
    panel = Broken({"at": ipywidgets.IntSlider(description="at"), "go": ipywidgets.Button(description="go")})

    def work() -> None:
        raise ValueError("m is 7, but it must be even.")

    panel.on_press("go", work)
    panel.at.value = 3
    assert panel.problem == "KeyError: 'lost'."
    assert "KeyError: &#x27;lost&#x27;." in panel.line.value
    assert panel.shown.value == ""
    panel.at.value = 4
    assert (panel.problem, panel.line.value, panel.shown.value) == ("", "", "fine")
    panel.controls["go"].click()
    assert panel.problem == "m is 7, but it must be even."
    assert base64.b64decode(panel._repr_mimebundle_()[0]["image/png"]).startswith(PNG)
    with pytest.raises(AttributeError, match="Broken has no 'bt'; its controls are at, go"):
        _ = panel.bt


@pytest.mark.parametrize(
    ("error", "said"),
    [(ValueError("so.\nmore"), "so."), (TypeError("x"), "TypeError: x."), (KeyboardInterrupt(), "KeyboardInterrupt.")],
)
def test_an_error_is_one_sentence(error: BaseException, said: str) -> None:
    assert sentence(error) == said


def test_two_widgets_share_nothing() -> None:
    one, two = pp.explore(), pp.explore()
    before = two.shown.value
    one.schedule.value = "gpipe"
    assert (two.schedule.value, two.shown.value) == ("1f1b", before)


# the SVG


def test_a_chart_has_a_box_an_action_and_names_it() -> None:
    timeline = pp.simulate(pp.build("zb-h1", 3, 4))
    drawn = svg(timeline)
    tips = re.findall(r"<title>rank (\d): (\S+), (\S+) to (\S+)</title>", drawn)
    there = [(str(s.rank), str(s.action), f"{s.start:.4g}", f"{s.end:.4g}") for s in timeline.spans]
    assert sorted(tips) == sorted(there)


def test_boxes_lie_where_their_times_are() -> None:
    timeline = pp.simulate(pp.build("1f1b", 2, 2), pp.Costs(1, 2, 1))
    found = re.findall(
        r'<rect x="([\d.]+)" y="[\d.]+" width="([\d.]+)" height="18.0"><title>[^,]+, (\S+?) to (\S+?)</title>',
        svg(timeline),
    )
    assert len(found) == 8
    scale = 788 / timeline.makespan
    for x, wide, start, end in found:
        assert float(x) == pytest.approx(56 + float(start) * scale, abs=0.6)
        assert float(wide) == pytest.approx((float(end) - float(start)) * scale, abs=1.1)


def test_a_name_of_a_plan_cannot_break_the_page() -> None:
    rows = ["0F0 0B0"]
    assert "<b>" not in svg(pp.simulate(pp.Schedule.from_rows(rows, name='<b>"')))


def test_a_chart_is_of_timelines() -> None:
    with refused("A chart needs a timeline, as in svg(simulate(plan))."):
        svg()
    with refused("A chart is of a timeline, and this is a Schedule: give simulate(plan), or result.timeline."):
        svg(pp.build("1f1b", 2, 2))  # type: ignore[arg-type]


# two schedules side by side


def test_the_explorer_shows_what_the_simulator_says() -> None:
    panel = pp.explore("1f1b", "zb-h1", p=4, m=8)
    assert charts(panel) == [
        "1f1b · simulated · makespan 33 · bubble rate 27.3%, overhead 37.5%",
        "zb-h1 · simulated · makespan 27 · bubble rate 11.1%, overhead 12.5%",
    ]
    assert cells(panel)["1f1b"] == ["33", "33", "27.3%", "37.5%", "4"]
    assert boxes_named(panel, "holds") == 2
    assert boxes_named(panel, "I7") == 4


@pytest.mark.thorough
@quick
@given(st.sampled_from(list(pp.SCHEDULES)), st.integers(1, 6), st.integers(1, 12), st.floats(0, 4), st.floats(0, 2))
def test_the_explorer_follows_its_controls(name: str, p: int, m: int, forward: float, hop: float) -> None:
    panel = pp.explore()
    panel.p.value, panel.m.value, panel.forward.value, panel.hop.value = p, m, forward, hop
    panel.schedule.value = name
    costs = pp.Costs(forward, comm=hop)
    plan, refusal = None, ""
    try:
        plan = zb_auto(p, m, costs, work=QUICKLY) if name == "zb-auto" else pp.build(name, p, m)
    except ValueError as error:
        refusal = str(error)
    assert panel.problem == refusal
    assert (panel.shown.value == "") is (plan is None)
    if plan is None:
        return
    share = p / plan.num_stages  # the costs are a rank's, and it may hold two stages
    timeline = pp.simulate(plan, pp.Costs(share * forward, share, share, comm=hop))
    assert cells(panel)[name][:2] == [f"{timeline.makespan:.4g}", f"{timeline.longest_stage_time:.4g}"]


def test_where_one_of_two_cannot_be_had_the_other_stays() -> None:
    panel = pp.explore("1f1b", "dualpipe", p=4, m=8)
    panel.m.value = 7
    assert panel.problem == (
        "m is 7, but dualpipe on p = 4 ranks needs at least 2p = 8 and even; the nearest valid m is 8."
    )
    assert [line.partition(" ")[0] for line in charts(panel)] == ["1f1b"]
    panel.m.value = 8
    assert (panel.problem, len(charts(panel))) == ("", 2)


def test_the_same_in_letters() -> None:
    panel = pp.explore("1f1b", p=2, m=3)
    assert "rank 0  F0 F1 .. .. B0--- F2 B1--- .. B2---" in panel._repr_mimebundle_()[0]["text/plain"]
    panel.letters.value = True
    assert "rank 0  F0 F1 .. .. B0--- F2 B1--- .. B2---" in panel.shown.value
    assert "ranks hold 2 1" in panel.shown.value


def test_v_is_for_schedules_with_a_choice() -> None:
    panel = pp.explore("1f1b")
    assert panel.v.disabled
    panel.schedule.value = "interleaved"
    assert not panel.v.disabled
    panel.v.value = 4
    assert panel.predicted[0].plan.stages_per_rank == 4


def test_the_explorer_refuses_what_it_has_no_control_for() -> None:
    with pytest.raises(ValueError, match=r"^schedule is '2f2b'; it must be one of naive, gpipe, "):
        pp.explore("2f2b")
    for make in (pp.explore, pp.explore_m, pp.explore_overlap):
        with refused("Costs.forward is a list; a slider needs one number, for all stages."):
            make(costs=pp.Costs(forward=[1.0, 2.0]))
        least = 4 if make is pp.explore_overlap else 1
        with refused(f"m, microbatches is 2.5; it must be a whole number of at least {least}."):
            make(m=2.5)


def process_time(change: Callable[[], None]) -> float:
    began = time.process_time()
    change()
    return time.process_time() - began


def median_redraw(panel: Any, control: str, values: list[Any]) -> float:
    """Process time of a redraw: other programs may have the cores."""
    slider = panel.controls[control]
    return statistics.median(process_time(lambda value=value: setattr(slider, "value", value)) for value in values)


LIMIT = 0.2  # seconds, in which a redraw seems to follow the hand


@pytest.mark.thorough
@pytest.mark.parametrize("name", [*pp.SCHEDULES])
def test_the_explorer_follows_a_slider_at_its_largest(name: str) -> None:
    panel = pp.explore(name, "zb-h1", p=8, m=32)
    assert median_redraw(panel, "hop", [0.1, 0.2, 0.3]) < LIMIT
    assert median_redraw(panel, "m", [30, 32, 28]) < LIMIT


@pytest.mark.thorough
def test_the_other_widgets_follow_a_slider_at_their_largest() -> None:
    curves = pp.explore_m(p=7, m=32)
    assert process_time(lambda: setattr(curves.p, "value", 8)) < LIMIT
    assert median_redraw(curves, "hop", [0.1, 0.2, 0.3]) < LIMIT
    overlap = pp.explore_overlap("dualpipe-v", "zb-v", p=8, m=32)
    assert median_redraw(overlap, "pair", [2.5, 2.0, 1.5]) < LIMIT
    grid = pp.draw_schedule(8, 32)
    grid.controls["start"].value = "1f1b"
    grid.fill()
    assert median_redraw(grid, "row_0", ["", "0F0", "0F0 0F1"]) < LIMIT


@pytest.mark.thorough
def test_all_curves_together_follow_a_slider_in_a_kernel() -> None:
    async def move() -> (
        None
    ):  # a kernel has a loop that runs, and so a redraw may leave the rest of its curves for later
        panel = pp.explore_m([*pp.SCHEDULES], p=7, m=32)
        assert median_redraw(panel, "p", [8, 6, 8, 7]) < LIMIT
        assert median_redraw(panel, "hop", [0.1, 0.2, 0.3]) < LIMIT

    asyncio.run(move())


def test_a_slider_does_not_wait_for_the_last_repair_of_zb_auto(monkeypatch: pytest.MonkeyPatch) -> None:
    module = importlib.import_module("ppcourse.schedules.zb_auto")  # of which the package shows the function only
    repair, timed = module.repair, []

    def counted(problem: Any, best: Any, tries: int, good_enough: float) -> Any:
        timed.append(tries * 3 * problem.p * problem.m)
        return repair(problem, best, tries, good_enough)

    monkeypatch.setattr(module, "repair", counted)
    for p, m in ((4, 8), (8, 32)):
        pp.explore("zb-auto", p=p, m=m, costs=pp.Costs(comm=1))
        pp.build("zb-auto", p, m, costs=pp.Costs(comm=1))
    quick, usual = timed[::2], timed[1::2]
    assert max(quick) <= 100_000
    assert all(3 * few < many for few, many in zip(quick, usual, strict=True))


# over m


def test_the_curves_are_the_closed_forms() -> None:
    panel = pp.explore_m(p=4, m=8)
    for name, held in (("gpipe", lambda m: m), ("1f1b", lambda m: min(m, 4))):
        points = panel.curves[name]
        assert {1, 4, 8, 32} <= {point.m for point in points}
        for point in points:
            assert point.rate == pytest.approx(pp.formulas.bubble_rate(4, point.m))
            assert point.held == held(point.m)
    assert cells(panel)["gpipe"] == ["27.3%", "37.5%", "33", "8"]


def test_a_curve_leaves_out_what_cannot_be_had() -> None:
    panel = pp.explore_m(["dualpipe"], p=4, m=6)
    assert [point.m for point in panel.curves["dualpipe"]] == [8, 12, 16, 24, 32]
    assert panel.problem.startswith("m is 6, but dualpipe on p = 4 ranks needs at least 2p = 8")
    assert cells(panel)["dualpipe"] == ["–"] * 4
    panel.m.value = 16
    assert panel.problem == ""


def test_curves_follow_costs_and_ticks() -> None:
    panel = pp.explore_m()
    free = panel.curves["1f1b"][-1].rate
    panel.hop.value = 1.0
    assert panel.curves["1f1b"][-1].rate > free
    panel.hop.value = 0.0
    assert panel.curves["1f1b"][-1].rate == free
    panel.gpipe.value = panel.controls["1f1b"].value = panel.controls["zb-h1"].value = False
    assert panel.problem == "Tick a schedule to see its curves."


def test_what_a_redraw_has_no_time_for_follows_from_the_kernels_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(over_m, "PATIENCE", -1.0)  # it is late from the start: one point a redraw
    monkeypatch.setattr(over_m, "PAUSE", 0.0)
    known: list[int] = []

    async def move(rest: bool) -> Any:
        panel = pp.explore_m(["gpipe", "v-half"], p=4, m=8)
        panel.p.value = 5
        panel.p.value = 6
        assert len(cells(panel)["v-half"]) == 4  # the chosen m is there at once
        assert len(panel.curves["v-half"]) < len(at_once.curves["v-half"])
        while rest and sum(map(len, panel.curves.values())) < points:
            known.append(sum(map(len, panel.curves.values())))
            await asyncio.sleep(0)
        return panel

    at_once = pp.explore_m(["gpipe", "v-half"], p=6, m=8)
    points = sum(map(len, at_once.curves.values()))
    assert asyncio.run(move(rest=True)).curves == at_once.curves
    assert known == sorted(known)
    assert len({*known}) > 10
    moved = asyncio.run(move(rest=False))
    assert moved.figure() is not None  # a still picture, for which nobody comes back
    assert moved.curves == at_once.curves


# F&B


def test_the_formula_and_the_simulator_agree_where_the_formula_is_exact() -> None:
    panel = pp.explore_overlap(p=8, m=20)
    panel.pair.value = 2.5
    # (8/2 − 1)(2.5 + 2 − 3)
    assert "(PP/2 − 1)(F&amp;B + B − 3W) = 4.5; the simulator's largest bubble of a rank: 4.5." in panel.shown.value


def test_up_to_the_break_even_dualpipe_wins_and_behind_it_it_does_not() -> None:
    panel = pp.explore_overlap("dualpipe", "zb-h1", p=4, m=16)
    at = panel.break_even
    assert at is not None
    for pair, wins in ((at - 0.01, True), (at + 0.01, False)):
        ours = pp.simulate(pp.build("dualpipe", 4, 16), pp.Costs(overlap=pair)).makespan
        assert (ours <= pp.simulate(pp.build("zb-h1", 4, 16)).makespan) is wins


def test_the_slider_of_a_pair_looks_for_no_break_even_again(monkeypatch: pytest.MonkeyPatch) -> None:
    looked: list[int] = []
    find = pairs._break_even

    def counted(*given: Any) -> float | None:
        looked.append(1)
        return find(*given)

    monkeypatch.setattr(pairs, "_break_even", counted)
    panel = pp.explore_overlap()
    before = panel.break_even
    for pair in (2.9, 2.5, 2.0):
        panel.pair.value = pair
    assert (len(looked), panel.break_even) == (1, before)
    panel.m.value = 18
    assert len(looked) == 2
    panel.m.value = 6  # too few: there is none
    assert panel.break_even is None
    panel.m.value = 16
    assert (len(looked), panel.break_even) == (3, before)


def test_a_pair_shorter_than_its_longer_half_is_called_impossible() -> None:
    panel = pp.explore_overlap()
    assert "No overlap makes" not in panel.shown.value
    panel.pair.value = 1.5
    assert "No overlap makes a pair shorter than the longer of its two." in panel.shown.value
    panel.m.value = 6
    assert panel.problem.startswith("m is 6, but dualpipe on p = 4 ranks needs at least 2p = 8")


# a schedule of one's own


def typed(*rows: str, m: int = 2) -> Any:
    return pp.draw_schedule(len(rows), m, rows=rows)


def test_a_legal_plan_is_measured_against_par() -> None:
    panel = typed("0F0 0F1 0B0 0B1", "F0 B0 F1 B1")  # the stage may be left out
    assert panel.looked.done
    assert str(panel.plan) == "0F0 0F1 0B0 0B1\n1F0 1B0 1F1 1B1"
    table = cells(panel)
    assert list(table) == ["", "mine", "1f1b", "zb-h1"]
    assert table["mine"] == table["1f1b"] == ["9", "9", "33.3%", "50.0%", "2"]
    assert not panel.controls["run"].disabled


WRONG = [
    (("0F0 0F0", ""), "Rank 0 runs 0F0 at position 1, but did that at position 0.", "rank 0"),
    (("0F0", "1F0 0B0"), "Rank 1 runs 0B0, but stage 0 lives on rank 0.", "rank 1"),
    (("0F7", ""), "Rank 0 runs 0F7, but the plan has stages 0 to 1 and microbatches 0 to 1.", "rank 0"),
    (("0F0 0B0 0F1", "1F1 1B1 1F0"), "Deadlock: rank 0 stands at 0B0 and waits for 1B0", "rank 0"),
    (("0F0 0F1", "1B0"), "Rank 1 runs 1B0 at position 0, but needs 1F0 for it, at position", "rank 1"),
]


@pytest.mark.parametrize(("rows", "said", "rank"), WRONG)
def test_what_is_wrong_is_told_at_its_place(rows: tuple[str, ...], said: str, rank: str) -> None:
    panel = typed(*rows)
    assert panel.problem.startswith(said)
    assert panel.controls["run"].disabled
    before_mark = panel.shown.value.partition("✗1")[0]
    assert re.findall(r"rank \d(?=<)", before_mark)[-1] == rank
    panel.write(["0F0 0F1", "1F0"])
    assert panel.problem == ""


def test_a_word_that_is_no_action_is_told_with_its_place() -> None:
    panel = typed("0F0 0G0", "")
    assert panel.problem.startswith("rank 0, position 1: '0G0' is not an action; ")
    panel.controls["run"].click()
    assert panel.problem == "This plan cannot run yet: place what is missing, and mend what is marked."


def test_actions_are_placed_and_taken_back_by_buttons() -> None:
    panel = pp.draw_schedule(2, 2)
    panel.controls["place"].click()
    panel.controls["place"].click()
    assert panel.rows[0].value == "0F0 0F1"
    assert panel.controls["action"].options == ("0B0", "0I0", "0W0")
    panel.controls["undo"].click()
    assert panel.rows[0].value == "0F0"
    panel.controls["rank"].value = 1
    panel.controls["place"].click()
    assert panel.rows[1].value == "1F0"
    assert "Legal so far. Still to place: rank 0: 3, rank 1: 3." in panel.shown.value


def test_the_grid_can_begin_with_any_schedule_that_fits_it() -> None:
    panel = pp.draw_schedule(3, 6)
    for name in panel.controls["start"].options[1:]:
        panel.controls["start"].value = name
        panel.controls["fill"].click()
        assert panel.plan.rows == pp.build(name, 3, 6, 1).rows
        assert panel.looked.done
    assert "zb-v" not in panel.controls["start"].options  # stage 3 would be on rank 2


@quick
@given(st.data(), st.sampled_from(["1f1b", "gpipe", "zb-h1", "zb-h2"]), st.integers(1, 4), st.integers(1, 5))
def test_whatever_is_the_beginning_of_a_legal_plan_is_legal_so_far(data: Any, name: str, p: int, m: int) -> None:
    rows = pp.build(name, p, m).rows
    begun = tuple(row[: data.draw(st.integers(0, len(row)))] for row in rows)
    looked = draft(pp.Schedule("mine", loop(p), m, begun))
    assert looked.violations == ()
    assert pp.validate(looked.whole) == ()
    assert all(whole[: len(row)] == row for whole, row in zip(looked.whole.rows, begun, strict=True))
    assert sum(map(len, looked.whole.rows)) == sum(map(len, begun)) + sum(map(len, looked.left))


@pytest.mark.thorough
def test_a_plan_of_ones_own_runs_on_real_ranks_at_the_press_of_a_button() -> None:
    panel = typed("0F0 0F1 0B0 0B1", "F0 I0 F1 I1 W1 W0")
    panel.controls["run"].click()
    assert panel.problem == ""
    assert panel.trial.result.timeline.source == "paced"
    assert panel.trial.off < 1e-9
    assert [(s.rank, s.action) for s in panel.trial.result.timeline.by_rank[1]] == [(1, a) for a in panel.plan.rows[1]]
    assert "the gradients are those of one process" in panel.shown.value
    assert [line.split(" · ")[1] for line in charts(panel)] == ["simulated", "paced"]
    assert (panel.controls["run"].description, panel.controls["run"].disabled) == ("run on real ranks", False)


def test_a_run_that_fails_is_a_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: object) -> None:
        raise pp.RankError(1, pp.Action.parse("1F0"), "no progress for 20 s", "a long traceback")

    monkeypatch.setattr("ppcourse.lab.draw.trial", fails)
    panel = typed("0F0 0B0", "F0 B0", m=1)
    panel.controls["run"].click()
    assert panel.problem == "Rank 1 failed in 1F0 (stage 1, forward of microbatch 0): no progress for 20 s."
    assert not panel.controls["run"].disabled


def test_what_cannot_be_drawn_is_refused() -> None:
    with refused("p is 9; to be drawn it must be a whole number from 1 to 8."):
        pp.draw_schedule(9)
    with refused("There are 1 rows for 3 ranks; write one a rank."):
        pp.draw_schedule(3, 2, rows=["0F0"])


# in a notebook


@pytest.mark.thorough
def test_a_notebook_with_widgets_runs_and_keeps_their_pictures() -> None:
    made = nbformat.v4.new_notebook(
        metadata={"kernelspec": {"name": "python3", "display_name": "Python 3", "language": "python"}},
        cells=[nbformat.v4.new_code_cell("import ppcourse as pp\npp.explore('zb-h1', p=2, m=4)")],
    )
    execute(made)
    [output] = made.cells[0].outputs
    assert set(output.data) == {"text/plain", "image/png"}
    page, _ = HTMLExporter().from_notebook_node(made)
    assert "data:image/png;base64," in page


def test_the_break_even_is_not_told_where_finding_it_is_the_exercise() -> None:
    told, untold = (pp.explore_overlap(beside="zb-v", p=4, m=8, break_even=tell).shown.value for tell in (True, False))
    assert "or faster, up to F&amp;B" in told
    assert "or faster" not in untold
    assert "largest bubble of a rank" in untold
