"""Lesson 07's exercises: what right answers, plausible wrong ones, and stubs are told; the numbers in its prose."""

from itertools import product

import pytest
from verdicts import told

import ppcourse as pp
from ppcourse.lab.graders import lesson_07

pytestmark = pytest.mark.usefixtures("own_progress")


# 7.1


def test_a_v_is_solved() -> None:
    assert pp.grade("7.1", lambda stage, p: min(stage, 2 * p - 1 - stage))
    assert pp.grade("7.1", lambda stage, p: stage if stage < p else 2 * p - 1 - stage)
    assert pp.grade("7.1", lambda stage, p: p - 0.5 - abs(stage - p + 0.5))  # a whole number, too


WRONG_HOMES = {
    "round": (
        lambda stage, p: stage % p,
        "home(2, 2) is 0, but rank 1 holds stages 1 2:"
        " that deals the stages round the ranks; a V turns at the last rank.",
    ),
    "neighbours": (
        lambda stage, p: stage // 2,
        "home(1, 2) is 0, but rank 1 holds stages 1 2:"
        " that puts neighbouring stages on a rank; on a V they are on neighbouring ranks.",
    ),
    "2p": (
        lambda stage, p: stage if stage < p else 2 * p - stage,
        "home(2, 2) is 2, but rank 1 holds stages 1 2:"
        " that is one rank too far: stages begin at 0, so the last one is 2p − 1.",
    ),
    "from the last rank": (
        lambda stage, p: p - 1 - stage if stage < p else stage - p,
        "home(0, 2) is 1, but rank 0 holds stages 0 3: that begins at the last rank.",
    ),
    "down only": (lambda stage, p: stage, "home(2, 2) is 2, but rank 1 holds stages 1 2: ranks are 0 to 1."),
    "for four ranks": (
        lambda stage, p: min(stage, 7 - stage) % p,
        "home(2, 2) is 0, but rank 1 holds stages 1 2: down the ranks and up again.",
    ),
    "text": (lambda stage, p: "rank 0", "home(0, 2) is 'rank 0'; return the number of a rank."),
    "a half": (lambda stage, p: stage / 2, "home(1, 2) is 0.5; return the number of a rank."),
}


@pytest.mark.parametrize("case", WRONG_HOMES)
def test_a_wrong_home_gets_the_smallest_case(case: str) -> None:
    answer, sentence = WRONG_HOMES[case]
    assert told("7.1", answer) == sentence


# 7.2

COMPUTE, NETWORK = ["0F1", "2B0", "2F1", "0B0"], ["3B0", "1F1", "1B0", "3F1"]


def test_the_crossing_is_solved_in_any_form() -> None:
    for answer in ([COMPUTE, NETWORK], (tuple(COMPUTE), tuple(NETWORK))):
        assert pp.grade("7.2", answer)


def test_of_all_crossings_it_is_the_only_one() -> None:
    """By every order that keeps a microbatch's own, not by the grader's own search."""

    def merges(a: list[str], b: list[str]) -> list[list[str]]:
        if not a or not b:
            return [a + b]
        return [[a[0], *m] for m in merges(a[1:], b)] + [[b[0], *m] for m in merges(a, b[1:])]

    every = product(merges(["0F1", "2F1"], ["2B0", "0B0"]), merges(["1F1", "3F1"], ["3B0", "1B0"]))
    solved = [list(rows) for rows in every if pp.grade("7.2", list(rows))]
    assert solved == [[COMPUTE, NETWORK]]


WRONG_CROSSINGS = {
    "in turn": (
        [["2B0", "0B0", "0F1", "2F1"], ["3B0", "1B0", "1F1", "3F1"]],
        "all is done at 20, but it can be at 15.",
    ),
    "forward first": (
        [["0F1", "2F1", "2B0", "0B0"], ["1F1", "3F1", "3B0", "1B0"]],
        "all is done at 18, but it can be at 15.",
    ),
    "only the network takes turns": (
        [["0F1", "2F1", "2B0", "0B0"], NETWORK],
        "all is done at 17, but it can be at 15.",
    ),
    "deadlock": ([["2B0", "0B0", "0F1", "2F1"], ["1F1", "3B0", "1B0", "3F1"]], "this never ends."),
    "its own order": (
        [["2F1", "2B0", "0F1", "0B0"], NETWORK],
        "compute runs 2F1 before 0F1; a microbatch keeps its own order.",
    ),
    "backward upside down": (
        [COMPUTE, ["1B0", "1F1", "3B0", "3F1"]],
        "network runs 1B0 before 3B0; a microbatch keeps its own order.",
    ),
    "not all": ([COMPUTE[:3], NETWORK], "compute is ['0F1', '2B0', '2F1']; order these four: 0F1 2F1 2B0 0B0."),
    "in one string": (
        [" ".join(COMPUTE), NETWORK],
        "compute is '0F1 2B0 2F1 0B0'; give a list of actions, as in ['2B0', '0B0', '0F1', '2F1'].",
    ),
    "changed places": ([NETWORK, COMPUTE], f"compute is {NETWORK}; order these four: 0F1 2F1 2B0 0B0."),
    "one row": (COMPUTE, f"{COMPUTE} is not two rows, [compute, network]."),
    "a number": (3, "3 is not two rows, [compute, network]."),
}


@pytest.mark.parametrize("case", WRONG_CROSSINGS)
def test_a_wrong_crossing_is_shown(case: str) -> None:
    answer, sentence = WRONG_CROSSINGS[case]
    assert told("7.2", answer) == sentence
    if "all is done" in sentence:
        assert "\nrank 1  " in pp.grade("7.2", answer).message
    if "never" in sentence:
        assert "\nDeadlock: " in pp.grade("7.2", answer).message


def test_rows_that_are_not_there_are_unsolved() -> None:
    for answer in ([..., ...], [COMPUTE, ...], ...):
        assert pp.grade("7.2", answer).state == "unsolved"


# 7.3


def test_the_published_formula_is_solved() -> None:
    assert pp.grade("7.3", lambda p, t_i, t_w, pair: (p / 2 - 1) * (pair + t_i + t_w - 3 * t_w))


WRONG_BUBBLES = {
    "B read as I": (
        lambda p, t_i, t_w, pair: (p / 2 - 1) * (pair + t_i - 3 * t_w),
        "bubble(4, 1, 1, 3) is 1, but should be 2; the simulator has 2 too:"
        " your B is the input gradient, but the report's is the full backward, t_i + t_w.",
    ),
    "p − 1": (
        lambda p, t_i, t_w, pair: (p - 1) * (pair + t_i - 2 * t_w),
        "bubble(2, 1, 1, 3) is 2, but should be 0; the simulator has 0 too:"
        " it is PP ÷ 2 − 1: both streams meet in the middle.",
    ),
    "half of p − 1": (
        lambda p, t_i, t_w, pair: (p - 1) / 2 * (pair + t_i - 2 * t_w),
        "bubble(2, 1, 1, 3) is 1, but should be 0; the simulator has 0 too: it is PP ÷ 2 − 1, not (PP − 1) ÷ 2.",
    ),
    "one W short": (
        lambda p, t_i, t_w, pair: (p / 2 - 1) * (pair + t_i - t_w),
        "bubble(4, 1, 1, 3) is 3, but should be 2; the simulator has 2 too: B is t_i + t_w, so of 3 W only 2 are left.",
    ),
    "no F&B": (
        lambda p, t_i, t_w, pair: (p / 2 - 1) * (t_i - 2 * t_w),
        "bubble(4, 1, 1, 3) is -1, but should be 2; the simulator has 2 too: it counts F&B as well.",
    ),
    "right where all are alike": (
        lambda p, t_i, t_w, pair: (p / 2 - 1) * (pair - t_w),
        "bubble(8, 4, 2, 6) is 12, but should be 18.",
    ),
    "text": (lambda p, t_i, t_w, pair: "2", "bubble(2, 1, 1, 3) is '2'; return one number."),
}


@pytest.mark.parametrize("case", WRONG_BUBBLES)
def test_a_wrong_bubble_gets_the_smallest_case(case: str) -> None:
    answer, sentence = WRONG_BUBBLES[case]
    assert told("7.3", answer) == sentence


# 7.4


def step(name: str, p: int, m: int, pair: float | None = None) -> float:
    part = 0.5 if name == "zb-v" else 1.0
    return pp.simulate(pp.build(name, p, m), pp.Costs(part, part, part, overlap=pair)).makespan


def searched(p: int, m: int, rival: str = "zb-v", by: float = 0.01) -> float:
    pair = 3.0
    while step("dualpipe", p, m, pair) > step(rival, p, m):
        pair -= by
    return pair


@pytest.mark.thorough
@pytest.mark.parametrize("by", [0.01, 0.001])
def test_a_search_is_solved(by: float) -> None:
    assert pp.grade("7.4", lambda p, m: searched(p, m, by=by))


WRONG_BREAK_EVENS = {
    "too coarse": (
        lambda p, m: searched(p, m, by=0.1),
        "break_even(4, 8) is 2.8, but with 2.811 DualPipe still takes only 25.244, ZB-V 25.5.",
    ),
    "nothing hidden": (
        lambda p, m: 3.0,
        "break_even(4, 8) is 3, where DualPipe takes 26 and ZB-V 25.5:"
        " F&B must be shorter (at F&B = 3 nothing is hidden).",
    ),
    "against 1F1B": (
        lambda p, m: searched(p, m, rival="1f1b"),
        "break_even(4, 8) is 3, where DualPipe takes 26 and ZB-V 25.5:"
        " F&B must be shorter (at F&B = 3 nothing is hidden).",
    ),
    "the bubbles set equal": (
        lambda p, m: 1.0,
        "break_even(4, 8) is 1, but with 1.011 DualPipe still takes only 20.022, ZB-V 25.5.",
    ),
    "a share": (
        lambda p, m: searched(p, m) / 3,
        "break_even(4, 8) is 0.956667; give F&B in the unit in which F + B is 3, not as a share.",
    ),
    "one size only": (
        lambda p, m: 2.87,
        "break_even(6, 12) is 2.87, where DualPipe takes 39.09 and ZB-V 38.5: F&B must be shorter.",
    ),
    "text": (lambda p, m: "2.87", "break_even(4, 8) is '2.87'; return one number, F&B where F + B is 3."),
}


@pytest.mark.parametrize("case", WRONG_BREAK_EVENS)
def test_a_wrong_break_even_gets_the_smallest_case(case: str) -> None:
    answer, sentence = WRONG_BREAK_EVENS[case]
    assert told("7.4", answer) == sentence


# all


@pytest.mark.parametrize("number", ["7.1", "7.3", "7.4"])
def test_what_a_stub_returns_is_not_solved_yet(number: str) -> None:
    def stub(*args: object) -> None: ...

    assert [pp.grade(number, answer).state for answer in (..., None, stub)] == ["unsolved"] * 3


@pytest.mark.parametrize("number", ["7.1", "7.2", "7.3", "7.4"])
@pytest.mark.parametrize("answer", [float("nan"), {}, object(), [[1], [2]], lambda *args: args[9], "0F1"])
def test_no_answer_raises(number: str, answer: object) -> None:
    assert pp.grade(number, answer).state == "wrong"


def test_an_endless_search_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    import dataclasses

    from ppcourse.lab import graders

    quick = dataclasses.replace(graders.exercises(7)["7.4"], limit=0.3)
    monkeypatch.setitem(graders.registered, "7.4", quick)

    def endless(p: int, m: int) -> float:
        while True:
            pass

    assert told("7.4", endless).startswith("endless(4, 8) still runs after 0.3 s")


# the numbers in the prose


def test_a_v_sends_nothing_at_its_tip() -> None:
    """2p − 2 hops in each direction instead of 2p − 1."""
    from ppcourse.schedules.channels import channels

    for name, hops in (("zb-v", 6), ("interleaved", 7)):
        assert sum(len(c.sent) for c in channels(pp.build(name, 4, 8)).values()) == 2 * hops * 8


def test_crossed_a_pair_takes_what_compute_takes_alone() -> None:
    assert lesson_07.fastest_crossing() == 15
    forward, backward = (lesson_07.PARTS.durations(4)[op] for op in (pp.Op.F, pp.Op.B))
    assert (sum(forward), sum(backward), forward[0] + forward[2] + backward[0] + backward[2]) == (4, 6, 6)


def test_who_holds_the_embedding() -> None:
    """The exit question: 1F1B on rank 0, a V on rank 0 with the head, DualPipe on both ends with the head."""
    held = {n: [r for r in range(8) if 0 in pp.build(n, 8, 16).placement.stages_of(r)] for n in ("1f1b", "dualpipe")}
    assert held == {"1f1b": [0], "dualpipe": [0, 7]}
    assert pp.build("zb-v", 8, 16).placement.stages_of(0) == (0, 15)


def test_each_stream_of_dualpipe_holds_what_1f1b_would() -> None:
    """p − r of one and r + 1 of the other."""
    for p in (4, 6, 8):
        for rank, row in enumerate(pp.build("dualpipe", p, 2 * p).rows):
            most = [0, 0]
            now = [0, 0]
            for _, op, i in row:
                now[i >= p] += {"F": 1, "I": 0}.get(op, -1)
                most = [max(pair) for pair in zip(most, now, strict=True)]
            assert most == [p - rank, rank + 1]


@pytest.mark.parametrize(("p", "m"), [(4, 8), (8, 16), (8, 32)])
def test_with_nothing_to_hide_dualpipe_ties_with_zb_v_and_only_with_its_pairs_apart(p: int, m: int) -> None:
    plan = pp.build("dualpipe", p, m)
    apart = pp.simulate(pp.Schedule.from_rows(plan.rows)).makespan
    assert 0.97 * step("zb-v", p, m) < apart <= step("zb-v", p, m) < pp.simulate(plan).makespan < step("1f1b", p, m)


def test_splits_at_the_end_save_2w_and_those_at_the_start_up_to_1w() -> None:
    """As the lesson undoes them, by text; here by actions."""
    saved = {}
    for p in (4, 8, 12):
        plan = pp.build("dualpipe", p, 2 * p)
        idle = {end: max(pp.simulate(unsplit(plan, end)).idle) - max(pp.simulate(plan).idle) for end in (False, True)}
        saved[p] = [idle[end] / (p / 2 - 1) for end in (False, True)]
    assert [at_end for _, at_end in saved.values()] == [2, 2, 2]
    assert saved[4][0] < saved[8][0] < saved[12][0] <= 1


def unsplit(plan: pp.Schedule, at_end: bool) -> pp.Schedule:
    """Each I and its W as one B, after the last forward of a rank or before it."""
    rows = []
    for rank, row in enumerate(plan.rows):
        last = max(n for n, action in enumerate(row) if action.op == "F")
        chosen = {a[::2] for n, a in enumerate(row) if a.op == "I" and (n > last) == at_end}
        cells: list[str] = []
        for n, action in enumerate(row):
            whole = action[::2] in chosen
            if not (whole and action.op == "W"):
                text = str(action._replace(op=pp.Op.B) if whole and action.op == "I" else action)
                joined = (rank, n - 1) in plan.overlapped
                cells[-1:] = [f"{cells[-1]}+{text}"] if joined else [*cells[-1:], text]
        rows.append(cells)
    return pp.Schedule.from_rows(rows)
