"""The schedules: golden tables, what holds for all counts, and what is said of counts that cannot be."""

import re
from collections import Counter
from itertools import product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from strategies import CHOOSES_V, built_plans, letters, made, microbatches, quick, ranks, refused, unequal_costs

from ppcourse.analysis import formulas
from ppcourse.analysis.in_flight import in_flight
from ppcourse.analysis.simulate import simulate
from ppcourse.schedules import SCHEDULES, TWO_STAGES, build
from ppcourse.schedules.costs import Costs
from ppcourse.schedules.schedule import Schedule
from ppcourse.schedules.validate import validate

# In these tables F and B last one slot each, and a dot is an idle slot.
SLOTS = Costs(forward=1, input_grad=0.5, weight_grad=0.5)

STAIRCASES = {
    ("naive", 3, 2): """
        0F0  .   .   .   .  0B0 0F1  .   .   .   .  0B1
         .  1F0  .   .  1B0  .   .  1F1  .   .  1B1  .
         .   .  2F0 2B0  .   .   .   .  2F1 2B1  .   .
    """,
    ("gpipe", 3, 4): """
        0F0 0F1 0F2 0F3  .   .   .   .  0B0 0B1 0B2 0B3
         .  1F0 1F1 1F2 1F3  .   .  1B0 1B1 1B2 1B3  .
         .   .  2F0 2F1 2F2 2F3 2B0 2B1 2B2 2B3  .   .
    """,
    ("gpipe", 4, 2): """
        0F0 0F1  .   .   .   .   .   .  0B0 0B1
         .  1F0 1F1  .   .   .   .  1B0 1B1  .
         .   .  2F0 2F1  .   .  2B0 2B1  .   .
         .   .   .  3F0 3F1 3B0 3B1  .   .   .
    """,
    ("1f1b", 3, 4): """
        0F0 0F1 0F2  .   .  0B0 0F3 0B1  .  0B2  .  0B3
         .  1F0 1F1  .  1B0 1F2 1B1 1F3 1B2  .  1B3  .
         .   .  2F0 2B0 2F1 2B1 2F2 2B2 2F3 2B3  .   .
    """,
    ("1f1b", 4, 6): """
        0F0 0F1 0F2 0F3  .   .   .  0B0 0F4 0B1 0F5 0B2  .  0B3  .  0B4  .  0B5
         .  1F0 1F1 1F2  .   .  1B0 1F3 1B1 1F4 1B2 1F5 1B3  .  1B4  .  1B5  .
         .   .  2F0 2F1  .  2B0 2F2 2B1 2F3 2B2 2F4 2B3 2F5 2B4  .  2B5  .   .
         .   .   .  3F0 3B0 3F1 3B1 3F2 3B2 3F3 3B3 3F4 3B4 3F5 3B5  .   .   .
    """,
    ("1f1b", 4, 2): """
        0F0 0F1  .   .   .   .   .  0B0  .  0B1
         .  1F0 1F1  .   .   .  1B0  .  1B1  .
         .   .  2F0 2F1  .  2B0  .  2B1  .   .
         .   .   .  3F0 3B0 3F1 3B1  .   .   .
    """,
    ("breadth-first", 2, 2): """
        0F0 0F1 2F0 2F1  .   .  2B0 2B1 0B0 0B1
         .  1F0 1F1 3F0 3F1 3B0 3B1 1B0 1B1  .
    """,
    ("interleaved", 2, 4): """
        0F0 0F1 2F0 2F1 0F2 2B0 0F3 2B1 2F2 0B0 2F3 0B1  .  2B2  .  2B3 0B2 0B3
         .  1F0 1F1 3F0 3B0 3F1 3B1 1F2 1B0 1F3 1B1 3F2 3B2 3F3 3B3 1B2 1B3  .
    """,
    ("interleaved", 2, 1): """
        0F0  .  2F0  .   .  2B0  .  0B0
         .  1F0  .  3F0 3B0  .  1B0  .
    """,
    ("naive", 1, 3): "0F0 0B0 0F1 0B1 0F2 0B2",
    ("gpipe", 1, 3): "0F0 0F1 0F2 0B0 0B1 0B2",
    ("1f1b", 1, 3): "0F0 0B0 0F1 0B1 0F2 0B2",
}


# And in these F, I and W last one slot each.
SPLIT_STAIRCASES = {
    ("zb-h1", 3, 6): """
        0F0 0F1 0F2  .   .  0I0 0W0 0F3 0I1 0W1 0F4 0I2 0W2 0F5 0I3 0W3 0I4 0W4 0I5 0W5
         .  1F0 1F1  .  1I0 1F2 1I1 1W0 1F3 1I2 1W1 1F4 1I3 1W2 1F5 1I4 1W3 1I5 1W4 1W5
         .   .  2F0 2I0 2F1 2I1 2F2 2I2 2W0 2F3 2I3 2W1 2F4 2I4 2W2 2F5 2I5 2W3 2W4 2W5
    """,
    ("zb-h2", 3, 6): """
        0F0 0F1 0F2 0F3 0F4 0I0 0W0 0F5 0I1 0W1 0I2 0W2 0I3 0W3 0I4 0W4 0I5 0W5  .   .
         .  1F0 1F1 1F2 1I0 1F3 1I1 1F4 1I2 1W0 1F5 1I3 1W1 1I4 1W2 1I5 1W3 1W4 1W5  .
         .   .  2F0 2I0 2F1 2I1 2F2 2I2 2F3 2I3 2F4 2I4 2W0 2F5 2I5 2W1 2W2 2W3 2W4 2W5
    """,
    ("zb-h1", 2, 1): """
        0F0  .   .  0I0 0W0
         .  1F0 1I0 1W0  .
    """,
}


def staircase(plan: Schedule, costs: Costs = SLOTS) -> list[list[str]]:
    """When each rank does what, slot by slot."""
    timeline = simulate(plan, costs)
    table = [["."] * int(timeline.makespan) for _ in range(plan.num_ranks)]
    for span in timeline.spans:
        table[span.rank][int(span.start)] = str(span.action)
    return table


@pytest.mark.parametrize(("counts", "drawn"), STAIRCASES.items(), ids=lambda value: str(value)[:20])
def test_golden(counts: tuple[str, int, int], drawn: str) -> None:
    name, p, m = counts
    rows = [line.split() for line in drawn.strip().splitlines()]
    plan = build(name, p, m)
    assert [row.split() for row in plan.to_text().splitlines()] == [
        [word for word in row if word != "."] for row in rows
    ]
    assert staircase(plan) == rows


@pytest.mark.parametrize(("counts", "drawn"), SPLIT_STAIRCASES.items(), ids=lambda value: str(value)[:20])
def test_golden_with_a_split_backward(counts: tuple[str, int, int], drawn: str) -> None:
    rows = [line.split() for line in drawn.strip().splitlines()]
    assert staircase(build(*counts), Costs()) == rows


PICTURED = [name for name, builder in SCHEDULES.items() if "rank 0:" in str(builder.__doc__)]


@pytest.mark.parametrize("name", PICTURED)
def test_the_picture_in_the_docstring_of_a_builder_is_what_it_builds(name: str) -> None:
    text = str(SCHEDULES[name].__doc__)
    [(p, v, m)] = re.findall(r"p = (\d), (?:v = (\d), )?m = (\d)     rank 0:", text)
    rows = [row.split() for row in re.findall(r"rank \d: (.*?)(?: +drawn with .*)?$", text, re.MULTILINE)]
    plan = build(name, int(p), int(m), int(v) if v else None)
    costs = Costs() if "I" in letters(plan) else SLOTS
    chart = plan.to_text().splitlines() if v else [" ".join(row) for row in staircase(plan, costs)]

    def word(action: str) -> str:
        if v or action == ".":
            return action
        return f"{action[1].lower()}{int(action[0]) // plan.num_ranks}" if name == "zb-v" else action[1]

    assert rows == [list(map(word, row.split())) for row in chart]


def test_most_builders_have_a_picture() -> None:
    others = {"zb-auto", "v-half", "v-min", "dualpipe", "dualpipe-v"}  # searched for, or drawn as blocks and as words
    assert {*PICTURED} == SCHEDULES.keys() - others


@pytest.mark.parametrize("name", SCHEDULES)
@quick
@given(data=st.data())
def test_every_schedule_is_legal_and_complete_for_all_counts(name: str, data: st.DataObject) -> None:
    plan = data.draw(built_plans([name]))
    assert validate(plan) == ()
    assert plan.name == name
    stages, m = plan.num_stages, plan.num_microbatches
    whole = name in ("naive", "gpipe", "1f1b", "interleaved", "breadth-first")
    assert letters(plan) == "FB" if whole else set(letters(plan)) <= set("FBIW")
    done = Counter(fact for row in plan.rows for action in row for fact in made(action))
    assert done == Counter(product("FIW", range(stages), range(m)))
    homes = [(a.stage, a.microbatch, rank) for rank, row in enumerate(plan.rows) for a in row]
    assert all(plan.rank_of(stage, i) == rank for stage, i, rank in homes)


@pytest.mark.thorough
@pytest.mark.parametrize("name", SCHEDULES)
@quick
@given(data=st.data())
def test_no_schedule_holds_anything_at_the_end_or_beats_its_work_and_its_longest_way(
    name: str, data: st.DataObject
) -> None:
    plan = data.draw(built_plans([name]))
    costs = data.draw(unequal_costs(plan.num_stages))
    lasts, timeline = costs.durations(plan.num_stages), simulate(plan, costs)
    change = {"F": 1, "B": -1, "I": 0, "W": -1}
    assert [sum(change[action.op] for action in row) for row in plan.rows] == [0] * plan.num_ranks
    work = [sum(lasts[action.op][action.stage] for action in row) for row in plan.rows]
    assert timeline.busy == pytest.approx(work)
    hops = sum(plan.rank_of(s, 0) != plan.rank_of(s + 1, 0) for s in range(plan.num_stages - 1))
    assert timeline.end >= max(*work, sum(lasts["F"]) + sum(lasts["I"]) + 2 * hops * costs.comm) - 1e-9
    assert max(in_flight(plan)) <= plan.num_microbatches


@quick
@given(ranks, microbatches)
def test_what_each_rank_holds_has_a_closed_form(p: int, m: int) -> None:
    assert in_flight(build("naive", p, m)) == (1,) * p
    assert in_flight(build("gpipe", p, m)) == formulas.gpipe_in_flight(p, m)
    assert in_flight(build("1f1b", p, m)) == formulas.one_f_one_b_in_flight(p, m)


@quick
@given(ranks, microbatches, st.integers(1, 4))
def test_interleaved_holds_the_last_ranks_chunks_and_two_more_for_each_rank_before_it(p: int, m: int, v: int) -> None:
    """In chunks, where m allows; 1 + (p - 1) / (p v) of 1F1B's p on rank 0 (Korthikanti et al. 2022, §4.2.3)."""
    held = in_flight(build("interleaved", p, p * m, v))
    assert held == pytest.approx(formulas.interleaved_in_flight(p, p * m, v))
    if m > 1:
        assert held[0] == pytest.approx(p * (1 + (p - 1) / (p * v)))


@quick
@given(ranks, microbatches, st.integers(1, 4))
def test_interleaved_for_any_m_is_no_slower_and_holds_no_more_than_for_the_next_multiple_of_p(
    p: int, m: int, v: int
) -> None:
    plan, whole = build("interleaved", p, m, v), build("interleaved", p, p * -(-m // p), v)
    assert simulate(plan).makespan <= simulate(whole).makespan
    assert all(a <= b for a, b in zip(in_flight(plan), in_flight(whole), strict=True))


@quick
@given(ranks, microbatches)
def test_breadth_first_with_one_stage_a_rank_is_gpipe(p: int, m: int) -> None:
    assert build("breadth-first", p, m, 1).rows == build("gpipe", p, m).rows


@quick
@given(ranks, microbatches)
def test_zero_bubble_holds_what_it_says(p: int, m: int) -> None:
    assert max(in_flight(build("zb-h1", p, m))) == min(m, p)
    assert max(in_flight(build("zb-h2", p, m))) == min(m, 2 * p - 1)
    assert in_flight(build("zb-h1", p, p + m)) == (p,) * p
    assert in_flight(build("zb-h2", p, 2 * p + m)) == (2 * p - 1,) * p


@quick
@given(st.integers(1, 4), microbatches)
def test_dualpipe_holds_one_more_than_there_are_stages(half: int, more: int) -> None:
    p = 2 * half
    assert in_flight(build("dualpipe", p, 2 * (p + more))) == (p + 1,) * p
    assert in_flight(build("dualpipe-v", p, 2 * p + more)) == (p + 0.5,) * p


@quick
@given(st.integers(1, 4), microbatches)
def test_dualpipe_marks_pairs_of_two_streams(half: int, more: int) -> None:
    for plan in (build("dualpipe", 2 * half, 4 * half + 2 * more), build("dualpipe-v", half, 2 * half + more)):
        assert plan.overlapped
        for rank, n in plan.overlapped:
            forward, backward = plan.rows[rank][n : n + 2]
            assert (forward.op, backward.op) == ("F", "B")
            assert forward.stage != backward.stage


@quick
@given(ranks, microbatches)
def test_1f1b_runs_its_first_backward_after_one_forward_for_each_rank_from_it_on(p: int, m: int) -> None:
    for rank, row in enumerate(build("1f1b", p, m).rows):
        first_backward = next(n for n, action in enumerate(row) if action.op == "B")
        assert first_backward == min(m, p - rank)


@pytest.mark.parametrize("name", SCHEDULES)
@pytest.mark.parametrize(
    ("counts", "sentence"),
    [
        ({"p": 0}, "p, the number of ranks, is 0; it must be a whole number of at least 1."),
        ({"p": -1}, "p, the number of ranks, is -1; it must be a whole number of at least 1."),
        ({"p": True}, "p, the number of ranks, is True; it must be a whole number of at least 1."),
        ({"p": 1.5}, "p, the number of ranks, is 1.5; it must be a whole number of at least 1."),
        ({"p": "4"}, "p, the number of ranks, is '4'; it must be a whole number of at least 1."),
        ({"m": 0}, "m, the number of microbatches, is 0; it must be a whole number of at least 1."),
        ({"m": 2.0}, "m, the number of microbatches, is 2.0; it must be a whole number of at least 1."),
        ({"m": None}, "m, the number of microbatches, is None; it must be a whole number of at least 1."),
        ({"v": 0}, "v is 0; it must be a whole number of at least 1."),
        ({"v": True}, "v is True; it must be a whole number of at least 1."),
    ],
    ids=str,
)
def test_counts_that_are_no_counts_get_a_sentence(name: str, counts: dict[str, int], sentence: str) -> None:
    with refused(sentence):
        build(name, **{"p": 4, "m": 8} | counts)


@pytest.mark.parametrize("name", ["naive", "gpipe", "1f1b", "zb-h1", "zb-h2"])
def test_two_stages_a_rank_are_refused_where_there_is_only_one(name: str) -> None:
    assert build(name, 4, 8, v=1) == build(name, 4, 8)
    with refused(f"v is 2, but {name} has one stage a rank; leave v out, or give v=1."):
        build(name, 4, 8, v=2)


@pytest.mark.parametrize("name", TWO_STAGES)
def test_one_stage_a_rank_is_refused_where_there_are_two(name: str) -> None:
    assert build(name, 4, 8, v=2) == build(name, 4, 8)
    assert build(name, 4, 8).stages_per_rank == 2
    with refused(f"v is 1, but {name} has two stages a rank; leave v out, or give v=2."):
        build(name, 4, 8, v=1)


@pytest.mark.parametrize("name", CHOOSES_V)
@pytest.mark.parametrize("v", [1, 2, 3])
def test_v_is_chosen_where_it_can_be(name: str, v: int) -> None:
    assert build(name, 4, 8, v).stages_per_rank == v
    assert build(name, 4, 8) == build(name, 4, 8, v=2)


@pytest.mark.parametrize(
    ("name", "p", "m", "sentence"),
    [
        ("dualpipe", 3, 8, "p is 3, but dualpipe pairs the ranks from both ends: p is even, for example 4."),
        ("dualpipe", 4, 7, "m is 7, but dualpipe on p = 4 ranks needs at least 2p = 8 and even; the nearest {} 8."),
        ("dualpipe", 4, 9, "m is 9, but dualpipe on p = 4 ranks needs at least 2p = 8 and even; the nearest {} 10."),
        ("dualpipe-v", 4, 3, "m is 3, but dualpipe-v on p = 4 ranks needs at least 2p = 8; the nearest {} 8."),
    ],
)
def test_counts_that_a_schedule_cannot_have_get_the_nearest_that_it_can(
    name: str, p: int, m: int, sentence: str
) -> None:
    with refused(sentence.format("valid m is")):
        build(name, p, m)
    p, m = (p + 1, 8) if p == 3 else (p, int(sentence.split()[-1].rstrip(".")))
    assert validate(build(name, p, m)) == ()


@pytest.mark.parametrize("word", ["costs", "memory_limit", "kept_for_w"])
def test_what_a_schedule_is_not_planned_for_is_refused(word: str) -> None:
    with refused(f"zb-h1 is not planned for {word}; leave it out, or take zb-auto, which is."):
        build("zb-h1", 4, 8, **{word: 1.0})


def test_counts_may_be_numpy_integers() -> None:
    plan = build("1f1b", np.int64(2), np.int32(3))
    assert plan == build("1f1b", 2, 3)
    assert type(plan.num_microbatches) is int


@pytest.mark.parametrize(("typed", "meant"), [("gpip", "gpipe"), ("GPipe", "gpipe"), ("1F1B", "1f1b"), ("1f1", "1f1b")])
def test_an_unknown_name_gets_the_names_there_are_and_the_nearest(typed: str, meant: str) -> None:
    known = f"the schedules are {', '.join(SCHEDULES)}"
    with refused(f"There is no schedule {typed!r}; {known}. Did you mean {meant!r}?"):
        build(typed, 4, 8)


def test_a_name_like_no_other_gets_no_suggestion() -> None:
    with refused(f"There is no schedule 'xyz'; the schedules are {', '.join(SCHEDULES)}."):
        build("xyz", 4, 8)


@pytest.mark.parametrize("wrong", [None, 3, [], {}])
def test_a_name_that_is_no_text_gets_the_names_there_are(wrong: object) -> None:
    with refused(f"There is no schedule {wrong!r}; the schedules are {', '.join(SCHEDULES)}."):
        build(wrong, 4, 8)
