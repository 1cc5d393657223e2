"""Charts of timelines, drawn and in letters: the same content, nothing hidden, nothing left behind."""

import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.colors import to_rgb
from strategies import microbatches, quick, ranks, refused

from ppcourse.analysis.simulate import simulate
from ppcourse.analysis.timeline import Span, Timeline
from ppcourse.lab.boxes import boxes
from ppcourse.lab.colours import COLOURS, IDLE
from ppcourse.lab.gantt import gantt
from ppcourse.lab.gantt_text import gantt_text
from ppcourse.schedules import build
from ppcourse.schedules.costs import Costs
from ppcourse.schedules.schedule import Schedule

SECONDS = Costs(forward=0.01, input_grad=0.01, weight_grad=0.01)
TWO_STAGES_A_RANK = "0F0 2F0 0F1 2F1 2B0 0B0 2B1 0B1\n1F0 3F0 1F1 3F1 3B0 1B0 3B1 1B1"
PAIRED = "0F0 0F1 2F0 0F2+2B0 2F1 0B0 2F2+2B1 0B1 2B2 0B2\n1F0 1F1 1B0 1F2 1B1 1B2"


def predicted(name: str = "1f1b", p: int = 4, m: int = 8, costs: Costs | None = None) -> Timeline:
    return simulate(build(name, p, m), costs)


def as_measured(timeline: Timeline, source: str = "measured", late: float = 5.0, slow: float = 1.1) -> Timeline:
    """As if real ranks had run it: from another start on, and slower."""
    spans = (Span(s.rank, s.action, late + slow * s.start, late + slow * s.end) for s in timeline.spans)
    return Timeline.of(timeline.name, timeline.num_ranks, tuple(spans), source)  # type: ignore[arg-type]


def bars(axes, n=0):
    """Left, right, top and bottom of each bar of the n-th timeline of an axis; its idle bands come first."""
    collection = [c for c in axes.collections if c.get_paths()[0].vertices.shape == (5, 2)][n]
    corners = np.array([path.vertices[:4] for path in collection.get_paths()])
    return corners[:, :, 0].min(1), corners[:, :, 0].max(1), corners[:, :, 1].min(1), corners[:, :, 1].max(1)


# in letters


def test_a_column_is_the_common_unit_of_all_times() -> None:
    assert gantt_text(predicted("1f1b", 2, 3)).splitlines() == [
        "1f1b · simulated · makespan 12 · bubble rate 25.0%, overhead 33.3%",
        "each column is 1",
        "rank 0  F0 F1 .. .. B0--- F2 B1--- .. B2---",
        "rank 1  .. F0 B0--- F1 B1--- F2 B2--- .. ..",
    ]


def test_a_measured_one_counts_from_its_own_start_and_in_ms() -> None:
    text = gantt_text(as_measured(predicted("gpipe", 2, 2, SECONDS), "paced", slow=1.0))
    assert text.splitlines() == [
        "gpipe · paced · makespan 90 ms · bubble rate 33.3%, overhead 50.0%",
        "each column is 10 ms",
        "rank 0  F0 F1 .. .. .. B0--- B1---",
        "rank 1  .. F0 F1 B0--- B1--- .. ..",
    ]


def test_what_has_no_common_unit_is_to_scale() -> None:
    assert gantt_text(predicted("1f1b", 2, 3, Costs(comm=0.1234)), columns=48).splitlines()[1:] == [
        "to scale: each character is 0.3123",
        "rank 0  F0 F1 ........B0--- F2 B1---- ....B2---",
        "rank 1  ....F0 B0--- F1 B1---- .F2 B2--- .......",
    ]


def test_a_name_without_room_is_cut_to_its_letter() -> None:
    text = gantt_text(predicted("gpipe", 2, 8), columns=35)
    assert text.splitlines()[2:] == ["rank 0  FFFFFFFF...B B B B B B B B", "rank 1  .FFFFFFFFB B B B B B B B .."]


def test_a_stage_is_named_where_a_rank_holds_more_than_one_and_pairs_stay_together() -> None:
    assert "rank 0  0F0 ... 2F0 0F1 ... 2F1 " in gantt_text(simulate(Schedule.from_text(TWO_STAGES_A_RANK)))
    assert " 0F2+2B0---- " in gantt_text(simulate(Schedule.from_text(PAIRED)))


@quick
@given(p=ranks, m=microbatches)
def test_an_exact_chart_reads_back_as_the_timeline(p: int, m: int) -> None:
    timeline = predicted("1f1b", p, m)
    for rank, line in enumerate(gantt_text(timeline, columns=1000).splitlines()[2:]):
        cells = line.partition("  ")[2].split()
        starts, slot = {}, 0
        for cell in cells:
            starts.setdefault(cell.strip("-"), slot)
            slot += 2 if cell.startswith("B") else 1  # B lasts two units
        spans = {f"{s.action.op.value}{s.action.microbatch}": s.start for s in timeline.by_rank[rank]}
        assert {name: start for name, start in starts.items() if not name.startswith(".")} == spans


@quick
@given(p=ranks, m=microbatches)
def test_no_line_of_a_chart_is_longer_than_asked(p: int, m: int) -> None:
    lines = gantt_text(predicted("gpipe", p, m, Costs(comm=0.1)), columns=60).splitlines()[2:]
    assert max(map(len, lines)) <= 60


def test_an_empty_timeline_has_a_headline_only() -> None:
    assert gantt_text(Timeline.of("nothing", 2, ())) == (
        "nothing · simulated · makespan 0 · bubble rate 0.0%, overhead 0.0%"
    )


# drawn


def test_every_span_is_a_bar_in_its_row_on_a_band_that_shows_idle_time() -> None:
    timeline = predicted()
    [axes] = gantt(timeline).axes
    left, right, top, bottom = bars(axes)
    p = timeline.num_ranks
    assert right[:p] == pytest.approx(timeline.makespan, rel=0.01)
    assert len(left) == p + len(timeline.spans)
    for (rank, start, end, _), *bar in zip(boxes(timeline), left[p:], right[p:], top[p:], bottom[p:], strict=True):
        assert bar[:2] == pytest.approx([start, end], abs=0.1)
        assert rank - 0.5 < bar[2] < bar[3] < rank + 0.5


def test_there_is_one_collection_of_bars_and_one_of_letters_and_no_artist_a_bar() -> None:
    [axes] = gantt(predicted("1f1b", 16, 32)).axes
    assert len(axes.collections) == 2
    assert len(axes.patches) == len(axes.texts) == 0


def test_letters_stand_where_they_fit_only() -> None:
    few, many = predicted("gpipe", 2, 3), predicted("gpipe", 2, 300)
    assert len(gantt(few).axes[0].collections[1].get_paths()) == len(few.spans)
    assert len(gantt(many).axes[0].collections) == 1


def test_each_letter_lies_within_its_box() -> None:
    figure = gantt(predicted("1f1b", 4, 24))
    [axes] = figure.axes
    left, right, _, _ = bars(axes)
    letters = axes.collections[1]
    pixels = axes.transData.transform
    for path, (x, _) in zip(letters.get_paths(), letters.get_offsets(), strict=True):
        n = next(i for i in range(4, len(left)) if left[i] < x < right[i])
        box = pixels((right[n], 0))[0] - pixels((left[n], 0))[0]
        assert np.ptp(path.vertices[:, 0]) * figure.dpi / 72 <= box


# How colours look without one kind of cone: Machado, Oliveira and Fernandes 2009, table 1, severity 1.
SIGHTS = {
    "all cones": np.eye(3),
    "protanopia": [[0.152, 1.053, -0.205], [0.115, 0.786, 0.099], [-0.004, -0.048, 1.052]],
    "deuteranopia": [[0.367, 0.861, -0.228], [0.280, 0.673, 0.047], [-0.012, 0.043, 0.969]],
    "tritanopia": [[1.256, -0.077, -0.179], [-0.078, 0.931, 0.148], [0.005, 0.691, 0.304]],
}


@pytest.mark.parametrize("sight", SIGHTS)
def test_colour_blind_people_can_tell_ops_and_idle_time_apart(sight: str) -> None:
    light = np.array([to_rgb(colour) for colour in (*COLOURS.values(), IDLE)]) ** 2.2
    seen = np.clip(light @ np.array(SIGHTS[sight]).T, 0, 1) ** (1 / 2.2)
    apart = [np.linalg.norm(seen[i] - seen[j]) for i in range(len(seen)) for j in range(i)]
    assert min(apart) > 0.15


def test_forward_and_backward_can_be_told_apart_in_a_black_and_white_print() -> None:
    forward, backward = (np.dot(np.array(to_rgb(COLOURS[op])) ** 2.2, [0.213, 0.715, 0.072]) for op in "FB")
    assert forward > 1.5 * backward


def test_later_stages_of_a_rank_are_lighter_and_the_legend_says_so() -> None:
    figure = gantt(simulate(Schedule.from_text(TWO_STAGES_A_RANK)))
    first, second = figure.axes[0].collections[0].get_facecolor()[2:4]  # 0F0 and 2F0, after two idle bands
    assert (second[:3] > first[:3]).all()
    assert "(lighter: the rank's later stages)" in [text.get_text() for text in figure.legends[0].texts]


def test_an_overlapped_pair_shares_the_height_of_its_row() -> None:
    [axes] = gantt(simulate(Schedule.from_text(PAIRED))).axes
    left, _, top, bottom = bars(axes)
    below = [n for n in range(2, len(left)) if left[n] == left[n - 1] and top[n] > top[n - 1]]
    assert len(below) == 2
    assert all(bottom[n - 1] <= top[n] for n in below)


def test_several_timelines_share_one_time_axis_each_from_its_own_start() -> None:
    plan = predicted("1f1b", 4, 8, SECONDS)
    first, second = gantt(plan, as_measured(plan)).axes
    assert first.get_xlim() == second.get_xlim() == pytest.approx((0, 1e3 * 1.1 * plan.makespan))
    assert bars(second)[0].min() == pytest.approx(0, abs=1)
    assert second.get_xlabel() == "time (ms)"


def test_simulated_alone_is_in_the_unit_of_its_costs() -> None:
    [axes] = gantt(predicted()).axes
    assert axes.get_xlabel() == "time (in the unit of the costs)"
    assert axes.get_xlim() == (0, 33)


def test_a_subtitle_has_the_source_the_makespan_and_both_bubbles() -> None:
    plan = predicted("1f1b", 4, 8, SECONDS)
    titles = [axes.get_title(loc="left") for axes in gantt(plan, as_measured(plan, "paced")).axes]
    assert titles == [
        "1f1b · simulated · makespan 330 ms · bubble rate 27.3%, overhead 37.5%",
        "1f1b · paced · makespan 363 ms · bubble rate 27.3%, overhead 37.5%",
    ]


def test_an_overlay_has_predicted_above_measured_in_each_row() -> None:
    plan = predicted("1f1b", 4, 8, SECONDS)
    [axes] = gantt(plan, as_measured(plan, "paced"), overlay=True).axes
    above, below = bars(axes, 0), bars(axes, 1)
    assert (np.ceil(above[3] - 0.5) == np.ceil(below[2] - 0.5)).all()  # the same row
    assert (above[3] <= below[2]).all()
    assert axes.get_title(loc="left").startswith("above: 1f1b · simulated")
    assert "\nbelow: 1f1b · paced" in axes.get_title(loc="left")


def test_what_cannot_be_drawn_is_refused_in_one_sentence() -> None:
    with refused("gantt needs a timeline, as in gantt(simulate(plan))."):
        gantt()
    with refused("An overlay is of two timelines with equally many ranks; these have 4."):
        gantt(predicted(), overlay=True)
    with refused("An overlay is of two timelines with equally many ranks; these have 4 and 2."):
        gantt(predicted(), predicted(p=2), overlay=True)
    sentence = (
        "The simulated timeline lasts 33 and the measured one 0.363 seconds: simulate with costs in seconds, "
        "as in Costs(forward=0.010), to draw both on one time axis."
    )
    with refused(sentence):
        gantt(predicted(), as_measured(predicted(costs=SECONDS)))


@pytest.mark.parametrize("draw", [gantt, gantt_text])
def test_a_plan_is_not_taken_for_its_timeline(draw) -> None:
    sentence = "A chart is of a timeline, and this is a Schedule: give simulate(plan), or result.timeline."
    with refused(sentence):
        draw(build("gpipe", 2, 2))


# as the value of a cell


@pytest.mark.thorough
def test_a_cell_shows_the_picture_with_an_alternative_text_and_the_chart_in_letters() -> None:
    timeline = predicted("1f1b", 2, 3)
    png, metadata = gantt(timeline, title="two")._repr_png_()
    assert png.startswith(b"\x89PNG")
    assert metadata["alt"] == "Gantt chart: 1f1b · simulated · makespan 12 · bubble rate 25.0%, overhead 33.3%"
    assert metadata["width"] == 900
    assert repr(gantt(timeline, timeline)) == f"{gantt_text(timeline)}\n\n{gantt_text(timeline)}"


def test_the_same_timeline_makes_the_same_bytes() -> None:
    assert gantt(predicted())._repr_png_() == gantt(predicted())._repr_png_()


@pytest.mark.thorough
def test_pyplot_is_not_loaded_so_that_nothing_is_kept_or_shown_twice() -> None:
    code = "import sys, ppcourse.lab.gantt; print('matplotlib.pyplot' in sys.modules)"
    answer = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert answer.stdout == "False\n"
    assert isinstance(gantt(predicted()).canvas, FigureCanvasAgg)


def test_a_chart_in_letters_does_not_load_matplotlib() -> None:
    code = "import sys, ppcourse.lab.gantt_text; print({'matplotlib', 'numpy', 'torch'} & set(sys.modules))"
    answer = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert answer.stdout == "set()\n"
