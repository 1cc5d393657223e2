"""The F&B slider: its numbers are the simulator's, it redraws at once, and without a kernel it is a picture."""

import base64
import re
import time
from statistics import median
from xml.etree import ElementTree

import pytest

import ppcourse as pp
from ppcourse.lab.colours import COLOURS
from ppcourse.lab.execute import WIDGET, _make_portable
from ppcourse.lab.gantt_svg import LEFT, gantt_svg
from ppcourse.lab.overlap import OverlapSlider

SVG = "{http://www.w3.org/2000/svg}"


def boxes_of(svg: str) -> list[ElementTree.Element]:
    colours = set(COLOURS.values())
    return [box for box in ElementTree.fromstring(svg).iter(f"{SVG}rect") if box.get("fill") in colours]


def sliders_of(slider: OverlapSlider) -> dict[str, object]:
    return {child.description: child for child in slider.panel.children if getattr(child, "description", "")}


def test_its_numbers_are_the_simulators_and_the_formulas() -> None:
    slider = OverlapSlider(p=4, m=8, f=2, i=1, w=1, percent=70)
    assert slider.pair == pytest.approx(2.8)
    timeline = pp.simulate(pp.build("dualpipe", 4, 8), pp.Costs(2, 1, 1, overlap=slider.pair))
    assert slider.timeline.spans == timeline.spans
    closed = pp.formulas.dualpipe_bubble_time(4, 2, 1, slider.pair)
    assert f"formula {closed:g}, simulated {max(timeline.idle):g}" in str(slider)
    assert "1f1b 44, zb-v 36" in str(slider)  # (8 + 3) · 4; and by the V's own simulation, with halved costs
    assert pp.simulate(pp.build("zb-v", 4, 8), pp.Costs(1, 0.5, 0.5)).makespan == 36


@pytest.mark.parametrize(("f", "i", "w", "least"), [(4, 1, 1, 4), (1, 3, 3, 6)])
def test_a_pair_never_lasts_less_than_the_longer_of_its_two(f: float, i: float, w: float, least: float) -> None:
    assert OverlapSlider(f=f, i=i, w=w, percent=50).pair == least


def test_moving_a_slider_redraws_chart_and_numbers() -> None:
    slider = OverlapSlider()
    moved, (picture, numbers) = sliders_of(slider), slider.panel.children[-2:]
    for name, value in (("F", 2.0), ("I", 3.0), ("W", 0.5), ("F&B, % of F + B", 80.0)):
        before = picture.value, numbers.value
        moved[name].value = value
        assert (picture.value, numbers.value) != before
    assert slider.costs == {"F": 2.0, "I": 3.0, "W": 0.5}
    assert slider.percent == 80
    assert numbers.value == f"<pre>{slider}</pre>".replace("&B", "&amp;B")


def test_it_redraws_in_under_a_fifth_of_a_second() -> None:
    """Also for eight ranks."""
    slider = OverlapSlider(p=8, m=16)
    share, took = sliders_of(slider)["F&B, % of F + B"], []
    for percent in (90, 80, 70, 60, 55):
        began = time.process_time()
        share.value = percent
        took.append(time.process_time() - began)
    assert median(took) < 0.2


def test_without_a_widget_it_is_a_picture_with_its_numbers() -> None:
    data, metadata = OverlapSlider()._repr_mimebundle_()
    assert base64.b64decode(data["image/png"]).startswith(b"\x89PNG")
    assert "rank 0  0F0" in data["text/plain"]
    assert "formula 2, simulated 2" in data["text/plain"]
    assert metadata["image/png"]["alt"].startswith("Gantt chart: dualpipe")
    assert WIDGET in data


def test_a_stored_notebook_keeps_the_picture_only() -> None:
    from nbformat.v4 import new_output

    both = new_output("display_data", {WIDGET: {"model_id": "1"}, "image/png": "", "text/plain": "a chart"})
    alone = new_output("display_data", {WIDGET: {"model_id": "1"}, "text/plain": "a widget without a picture"})
    _make_portable(both)
    _make_portable(alone)
    assert set(both.data) == {"image/png", "text/plain"}
    assert WIDGET in alone.data


# the chart itself


def test_each_action_is_a_box_of_its_length() -> None:
    timeline = pp.simulate(pp.build("1f1b", 3, 4))
    boxes = boxes_of(gantt_svg(timeline, width=900))
    scale = (900 - LEFT - 10) / timeline.makespan
    wanted = sorted((LEFT + s.start * scale + 0.5, (s.end - s.start) * scale - 1) for s in timeline.spans)
    drawn = sorted((float(box.get("x")), float(box.get("width"))) for box in boxes)
    assert drawn == [pytest.approx(one, abs=0.06) for one in wanted]


def test_a_pair_is_two_halves_one_above_the_other() -> None:
    plan = pp.build("dualpipe", 4, 8)
    boxes = boxes_of(gantt_svg(pp.simulate(plan)))
    assert len(boxes) == sum(map(len, plan.rows))
    halves = [box for box in boxes if float(box.get("height")) < 15]
    assert len(halves) == 2 * len(plan.overlapped)


def test_a_longer_axis_makes_boxes_shorter() -> None:
    timeline = pp.simulate(pp.build("gpipe", 2, 2))
    usual, longer = (float(boxes_of(gantt_svg(timeline, until=until))[0].get("width")) for until in (0, 18))
    assert longer == pytest.approx((usual + 1) / 2 - 1, abs=0.1)  # 9 is the makespan, and 1 pixel the gap


def test_names_stand_on_boxes_that_have_room_and_all_of_it_is_in_the_label() -> None:
    timeline = pp.simulate(pp.build("gpipe", 2, 2))
    assert ">F0<" in gantt_svg(timeline)
    assert ">F0<" not in gantt_svg(timeline, width=120)
    [label] = re.findall(r'aria-label="([^"]*)"', gantt_svg(timeline))
    assert label.startswith("Gantt chart: gpipe · simulated · makespan 9")


def test_a_plan_is_refused() -> None:
    with pytest.raises(ValueError, match="A chart is of a timeline"):
        gantt_svg(pp.build("gpipe", 2, 2))
