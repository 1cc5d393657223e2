"""Lesson 06's exercises: what right answers, plausible wrong ones, and stubs are told; the published table."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor
from verdicts import told

import ppcourse as pp
from ppcourse.lab.published import zero_bubble_table
from ppcourse.schedules.action import Action, Op

pytestmark = pytest.mark.usefixtures("own_progress")


# 6.1


def input_grad(grad: Tensor, weight: Tensor) -> Tensor:
    return grad @ weight


def weight_grad(grad: Tensor, x: Tensor) -> Tensor:
    return grad.T @ x


def twice(grad: Tensor, weight: Tensor) -> Tensor:
    """Through autograd's whole backward: the weight's gradient is made, too, and thrown away."""
    x = torch.zeros(len(grad), weight.shape[1], dtype=grad.dtype, requires_grad=True)
    weight.requires_grad_()
    return torch.autograd.grad(x @ weight.T, (x, weight), grad)[0]


W_SHAPES = "grad of shape (2, 4) and x of (2, 3)"
WRONG_HALVES = {
    "weight transposed": (
        [lambda grad, weight: grad @ weight.T, weight_grad],
        "input_grad fails (mat1 and mat2 shapes cannot be multiplied (2x4 and 3x4))"
        " for grad of shape (2, 4) and weight of (4, 3).",
    ),
    "input gradient transposed": (
        [lambda grad, weight: weight.T @ grad.T, weight_grad],
        "input_grad has shape (3, 2), as it would be transposed, instead of (2, 3)"
        " for grad of shape (2, 4) and weight of (4, 3).",
    ),
    "weight gradient transposed": (
        [input_grad, lambda grad, x: x.T @ grad],
        f"weight_grad has shape (3, 4), as it would be transposed, instead of (4, 3) for {W_SHAPES}.",
    ),
    "mean over rows": (
        [input_grad, lambda grad, x: grad.T @ x / len(x)],
        f"weight_grad is divided by the rows, but a weight's gradient is the sum over rows, for {W_SHAPES}.",
    ),
    "wrong sign": (
        [input_grad, lambda grad, x: -grad.T @ x],
        f"weight_grad is not the gradient that autograd finds for {W_SHAPES}.",
    ),
    "both products in I": (
        [twice, weight_grad],
        "input_grad takes 144 operations for grad of shape (2, 4) and weight of (4, 3),"
        " but one matrix product of these takes 48.",
    ),
    "no tensor": (
        [lambda grad, weight: 3, weight_grad],
        "input_grad returns 3, but a gradient is a tensor, for grad of shape (2, 4) and weight of (4, 3).",
    ),
    "one function": (input_grad, None),
    "three": ([input_grad, weight_grad, twice], None),
}


def test_the_right_halves_are_solved() -> None:
    assert pp.grade("6.1", [input_grad, weight_grad])
    assert pp.grade("6.1", (lambda g, w: torch.einsum("ro,oi->ri", g, w), lambda g, x: (x.T @ g).T))


@pytest.mark.parametrize("case", WRONG_HALVES)
def test_wrong_halves_are_held_against_autograd(case: str) -> None:
    answer, sentence = WRONG_HALVES[case]
    said = told("6.1", answer)
    assert said == sentence or (
        sentence is None and said.endswith(" is not your two functions, as in [input_grad, weight_grad].")
    )


def test_one_half_is_not_solved_yet() -> None:
    def stub(grad: Tensor, x: Tensor) -> None: ...

    for answer in ([stub, stub], [input_grad, stub], [..., weight_grad]):
        assert pp.grade("6.1", answer).state == "unsolved"
    assert pp.grade("6.1", [input_grad, stub]).message == "not solved yet (weight_grad returns None)"


# 6.2, by the warm-up of a rank and by how many W it owes


def row(rank: int, p: int, m: int, warm_up: int | None = None, owed: int | None = None) -> list[str]:
    w = min(m, p - 1 - rank) if warm_up is None else warm_up
    owed = rank if owed is None else owed
    actions = [f"{rank}F{i}" for i in range(w)]
    for i in range(m):
        actions += [f"{rank}F{w + i}"] * (w + i < m) + [f"{rank}I{i}"]
        actions += [f"{rank}W{i - owed}"] * (i >= owed)
    return actions + [f"{rank}W{i}" for i in range(max(0, m - owed), m)]


WRONG_ORDERS = {
    "W at once": (
        lambda rank, p, m: row(rank, p, m, owed=0),
        "With p = 2 and m = 2, your plan takes 8 slots, but can take 7: on the last rank each W follows its I at once,"
        " while the rank before waits for the next I.",
    ),
    "all W at the end": (
        lambda rank, p, m: row(rank, p, m, owed=m),
        "With p = 2 and m = 2, your plan takes 8 slots, but can take 7:"
        " somewhere a rank waits while it owes a W, or a W keeps an I waiting.",
    ),
    "one W more owed": (
        lambda rank, p, m: row(rank, p, m, owed=rank + 1),
        "With p = 2 and m = 2, your plan takes 8 slots, but can take 7:"
        " somewhere a rank waits while it owes a W, or a W keeps an I waiting.",
    ),
    "one forward too many": (
        lambda rank, p, m: row(rank, p, m, warm_up=min(m, p - rank)),
        "With p = 2 and m = 2, your plan takes 8 slots, but can take 7:"
        " somewhere a rank waits while it owes a W, or a W keeps an I waiting.",
    ),
    "one forward too few": (
        lambda rank, p, m: row(rank, p, m, warm_up=min(m, max(0, p - 2 - rank))),
        "With p = 2 and m = 2, your plan takes 10 slots, but can take 7: the warm-up is too short.",
    ),
    "all W late, but not the last": (
        lambda rank, p, m: row(rank, p, m, owed=rank if m < 4 else m - 1),
        "With p = 2 and m = 4, rank 0 holds 4 microbatches, more than 1F1B's first rank (2):"
        " put W off by fewer microbatches.",
    ),
    "zb-h2": (
        lambda rank, p, m: row(rank, p, m, warm_up=min(m, 2 * (p - 1 - rank)), owed=2 * rank),
        "With p = 2 and m = 3, rank 0 holds 3 microbatches, more than 1F1B's first rank (2): its warm-up is too long.",
    ),
    "s forwards": (
        lambda rank, p, m: row(rank, p, m, warm_up=min(m, rank), owed=p - 1 - rank),
        "With p = 2 and m = 2, your plan does not run.",
    ),
    "W before I": (
        lambda rank, p, m: [t.translate(str.maketrans("IW", "WI")) for t in row(rank, p, m)],
        "order(0, 2, 1) runs 0W0 before 0I0, which it needs.",
    ),
    "I before F": (
        lambda rank, p, m: [t.translate(str.maketrans("IF", "FI")) for t in row(rank, p, m)],
        "order(0, 2, 1) runs 0I0 before 0F0, which it needs.",
    ),
    "1f1b": (
        lambda rank, p, m: [str(a) for a in pp.build("1f1b", p=p, m=m).rows[rank]],
        "order(0, 2, 1) names 0B0, but here a backward is two actions, I and W.",
    ),
    "no W at the end": (
        lambda rank, p, m: row(rank, p, m)[: 3 * m - rank],
        "order(1, 2, 1) never runs 1W0.",
    ),
    "not clamped": (
        lambda rank, p, m: row(rank, p, m, warm_up=p - 1 - rank),
        "order(0, 3, 1) names 0F1, but m is 1: the last microbatch is 0.",
    ),
    "another stage": (
        lambda rank, p, m: row(0, p, m),
        "order(1, 2, 1) names 0F0, but rank 1 holds stage 1 only.",
    ),
    "a number": (
        lambda rank, p, m: 3,
        'order(0, 2, 1) returns 3; return a list of actions, as in ["0F0", "0I0", "0W0"].',
    ),
}


def test_right_orders_are_solved_and_there_is_more_than_one() -> None:
    def package(rank: int, p: int, m: int) -> tuple[Action, ...]:
        return pp.build("zb-h1", p=p, m=m).rows[rank]

    def last_ones_reversed(rank: int, p: int, m: int) -> list[str]:
        mine = row(rank, p, m)
        end = max(n for n, text in enumerate(mine) if "I" in text) + 1
        return mine[:end] + mine[end:][::-1]

    assert [pp.grade("6.2", answer).state for answer in (row, package, last_ones_reversed)] == ["solved"] * 3
    assert last_ones_reversed(3, 4, 8) != row(3, 4, 8)


@pytest.mark.parametrize("case", WRONG_ORDERS)
def test_a_wrong_order_gets_the_smallest_case(case: str) -> None:
    answer, sentence = WRONG_ORDERS[case]

    def order(*counts: int) -> object:
        return answer(*counts)

    assert told("6.2", order) == sentence


def test_below_a_slow_order_is_what_it_does() -> None:
    said = pp.grade("6.2", WRONG_ORDERS["W at once"][0]).message
    assert said.splitlines()[1:] == [
        "yours · simulated · makespan 8 · bubble rate 25.0%, overhead 33.3%",
        "each column is 1",
        "rank 0  F0 F1 .. I0 W0 .. I1 W1",
        "rank 1  .. F0 I0 W0 F1 I1 W1 ..",
    ]
    assert "\nDeadlock: " in pp.grade("6.2", WRONG_ORDERS["s forwards"][0]).message


# 6.3


@pytest.mark.parametrize(
    "case", [(4, 9, 6, 9, 7), [2, 4, 1, 2, 3], (4, 3, 1, 1, 1), (3, 8, 0.5, 2, 1), (2, 4, 1.0, 1.0, 1.5)]
)
def test_a_case_outside_the_conditions_breaks_a_formula(case: object) -> None:
    assert pp.grade("6.3", case)


INSIDE = "by formula and by simulator: all conditions hold, t_w ≤ t_f, t_w ≤ t_i and m ≥ 2p; break one."
WRONG_CASES = {
    "inside": ((4, 8, 1, 1, 1), f"In (4, 8, 1, 1, 1), ZB-H1's bubble is 3 and ZB-H2's 0 {INSIDE}"),
    "inside, longer": ((2, 4, 3, 2, 1.5), f"In (2, 4, 3, 2, 1.5), ZB-H1's bubble is 3.5 and ZB-H2's 2 {INSIDE}"),
    "outside, and yet right": (
        (2, 3, 1, 1, 1),
        "In (2, 3, 1, 1, 1), ZB-H1's bubble is 1 and ZB-H2's 0 by formula and by simulator, although m < 2p:"
        " try another one.",
    ),
    "four": ((4, 8, 1, 1), "(4, 8, 1, 1) is not five numbers p, m, t_f, t_i, t_w, as in (4, 8, 1, 1, 1)."),
    "text": (("p", 8, 1, 1, 1), "('p', 8, 1, 1, 1) is not five numbers p, m, t_f, t_i, t_w, as in (4, 8, 1, 1, 1)."),
    "half a rank": (
        (2.5, 8, 1, 1, 1),
        "In (2.5, 8, 1, 1, 1), take whole numbers from 2 to 16 for p and from 1 to 100 for m.",
    ),
    "one rank": (
        (1, 8, 1, 1, 1),
        "In (1, 8, 1, 1, 1), take whole numbers from 2 to 16 for p and from 1 to 100 for m.",
    ),
    "no time": ((4, 8, 1, 1, 0), "In (4, 8, 1, 1, 0), t_f, t_i and t_w must be above 0."),
    "endless": ((4, 8, 1, float("inf"), 1), "In (4, 8, 1, inf, 1), t_f, t_i and t_w must be above 0."),
}


@pytest.mark.parametrize("case", WRONG_CASES)
def test_a_case_that_breaks_nothing_is_told(case: str) -> None:
    answer, sentence = WRONG_CASES[case]
    assert told("6.3", answer) == sentence


# 6.4

AFTER = "after a step with lr = 0.5 and momentum = 0.5, undo"
WEIGHT, BUFFER = "but before the step it was [0, -4]", "but before the step it was [2, 4]"
WRONG_UNDOS: dict[str, tuple[Callable[..., object], str]] = {
    "nothing": (lambda w, b, g, lr, mu: (w, b), f"{AFTER} gives a weight of [-2, -4.5], {WEIGHT}: nothing is undone."),
    "down again": (
        lambda w, b, g, lr, mu: (w - lr * b, (b - g) / mu),
        f"{AFTER} gives a weight of [-4, -5], {WEIGHT}: the step went down, so undoing goes up.",
    ),
    "with the gradient": (
        lambda w, b, g, lr, mu: (w + lr * g, (b - g) / mu),
        f"{AFTER} gives a weight of [-0.5, -5], {WEIGHT}: the step took lr · buffer away, not lr · grad.",
    ),
    "with the buffer before": (
        lambda w, b, g, lr, mu: (w + lr * (b - g) / mu, (b - g) / mu),
        f"{AFTER} gives a weight of [-1, -2.5], {WEIGHT}: the step used the buffer as it is after it.",
    ),
    "divided first": (
        lambda w, b, g, lr, mu: (w + lr * b, b / mu - g),
        f"{AFTER} gives a buffer of [5, 3], {BUFFER}: take grad away first, then divide by momentum.",
    ),
    "not divided": (
        lambda w, b, g, lr, mu: (w + lr * b, b - g),
        f"{AFTER} gives a buffer of [1, 2], {BUFFER}: divide by momentum, too.",
    ),
    "buffer first": (
        lambda w, b, g, lr, mu: ((b - g) / mu, w + lr * b),
        f"{AFTER} gives a weight of [2, 4], {WEIGHT}: give the weight first, then the buffer.",
    ),
    "weight only": (
        lambda w, b, g, lr, mu: w + lr * b,
        f"{AFTER} returns tensor([ 0., -4.], dtype=torch.float64); return two tensors, weight and buffer.",
    ),
}


def test_the_right_undo_is_solved_in_place_too() -> None:
    def in_place(w: Tensor, b: Tensor, g: Tensor, lr: float, mu: float) -> tuple[Tensor, Tensor]:
        w += lr * b
        b -= g
        b /= mu
        return w, b

    assert pp.grade("6.4", lambda w, b, g, lr, mu: (w + lr * b, (b - g) / mu))
    assert pp.grade("6.4", in_place)  # as an optimizer would


@pytest.mark.parametrize("case", WRONG_UNDOS)
def test_a_wrong_undo_is_told_what_it_did(case: str) -> None:
    answer, sentence = WRONG_UNDOS[case]
    assert told("6.4", answer) == sentence


# all


@pytest.mark.parametrize("number", ["6.1", "6.2", "6.3", "6.4"])
def test_what_a_stub_returns_is_not_solved_yet(number: str) -> None:
    def stub(*args: object) -> None: ...

    answers: list[object] = [..., None]
    answers += {"6.1": [[stub, stub]], "6.3": [(4, 8, ..., 1, 1)]}.get(number, [stub])
    assert [pp.grade(number, answer).state for answer in answers] == ["unsolved"] * 3


@pytest.mark.parametrize("number", ["6.1", "6.2", "6.3", "6.4"])
def test_an_answer_of_another_kind_or_that_fails_is_wrong_and_raises_nothing(number: str) -> None:
    def fails(*args: object) -> object:
        return 1 / 0

    for answer in (3, "0F0", [], lambda: 3, fails, [fails, fails], lambda *args: object(), [3, 4, 5, 6, "7"]):
        assert pp.grade(number, answer).state == "wrong"


@pytest.mark.thorough
def test_a_loop_without_end_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    from ppcourse.lab.graders import exercises

    def endless(*args: object) -> object:
        while True:
            pass

    for number, answer in (("6.1", [endless, weight_grad]), ("6.2", endless), ("6.4", endless)):
        limit = exercises(6)[number].limit
        object.__setattr__(exercises(6)[number], "limit", 0.5)
        try:
            assert " still runs after 0.5 s" in told(number, answer)
        finally:
            object.__setattr__(exercises(6)[number], "limit", limit)


# the published table


def test_the_package_and_the_tests_have_the_same_table() -> None:
    kept = json.loads((Path(__file__).parent / "data" / "zero_bubble.json").read_text())["tables"][0]["rows"]
    assert len(zero_bubble_table()) == len(kept) == 12
    for ours, row in zip(zero_bubble_table(), kept, strict=True):
        assert (ours.model, ours.p, ours.m, ours.v) == (row["model"], row["p"], row["m"], row["v_interleave"])
        assert ours.costs == pp.Costs(row["T_F"], row["T_B"], row["T_W"], comm=row["T_comm"])
        assert row["bubble_rate"].items() <= ours.bubble_rate.items()
        assert ours.interleaved == row["cost"]["1F1B-I"]


def test_the_share_that_stays_for_w() -> None:
    """34 h + 5 a s activations a layer and token, of which 32 h stay; for h = 2304, a = 24, s = 1024."""
    assert zero_bubble_table()[0].kept_for_w == 32 * 2304 / (34 * 2304 + 5 * 24 * 1024)


def interleaved_without_waiting(p: int, m: int, v: int, costs: pp.Costs, hop: float) -> float:
    """1F1B-I as the authors' program has it: a message between last rank and first, either way, is waited for only
    at the first microbatch of each group of p."""
    rows = [list(row) for row in pp.build("interleaved", p, m, v).rows]
    last, done, free = p * v - 1, {}, [0.0] * p
    lasts = {Op.F: costs.forward, Op.B: costs.input_grad + costs.weight_grad}
    while any(rows):
        for rank, row in enumerate(rows):
            while row:
                stage, op, i = row[0]
                source = stage - 1 if op is Op.F else stage + 1
                start = free[rank]
                wraps = abs(source % p - stage % p) == p - 1
                if 0 <= source <= last and not (wraps and i % p):
                    if (source, op, i) not in done:
                        break
                    start = max(start, done[source, op, i] + hop)
                free[rank] = done[row.pop(0)] = start + lasts[op]
    return max(free)


@pytest.mark.parametrize("row", zero_bubble_table()[::2], ids=lambda row: f"{row.model} m={row.m}")
def test_what_the_lesson_says_about_the_interleaved_column(row) -> None:
    c = row.costs
    stage = pp.Costs(c.forward / row.v, c.input_grad / row.v, c.weight_grad / row.v, comm=c.comm)
    theirs = interleaved_without_waiting(row.p, row.m, row.v, stage, c.comm)
    assert theirs == pytest.approx(row.interleaved, rel=1e-12)
    ours = pp.simulate(pp.build("interleaved", row.p, row.m, row.v), stage).makespan
    assert ours - theirs == pytest.approx(row.p * c.comm, rel=1e-6)
