"""Cases that people met elsewhere: counts that a schedule is not made for, and formulas that do not seem to agree."""

import pytest
import torch.nn.functional as F
from strategies import made, needed
from torch import nn
from toys import assert_same, classifier, rows_of

import ppcourse as pp
from ppcourse.analysis import formulas

NO_MULTIPLE = [(4, 10), (4, 3), (2, 5)]  # p, m: m is no multiple of p


def deep(layers: int) -> list[nn.Module]:
    """The classifier, and layers without weights, so that there are as many as stages."""
    return [*classifier(), *(nn.Identity() if n % 2 else nn.Tanh() for n in range(layers - 6))]


def slots(plan: pp.Schedule) -> int:
    """The makespan in slots, F lasting one and B two, found by going from slot to slot."""
    todo, known, now = [list(row) for row in plan.rows], {}, 0
    free = [0] * plan.num_ranks
    while any(todo):
        for rank, row in enumerate(todo):
            ready = row and all(known.get(fact, now + 1) <= now for fact in needed(row[0], plan.num_stages))
            if ready and free[rank] <= now:
                free[rank] = now + (1 if row[0].op == "F" else 2)
                known |= dict.fromkeys(made(row.pop(0)), free[rank])
        now += 1
    return max(free)


@pytest.mark.parametrize(("p", "m"), NO_MULTIPLE)
@pytest.mark.parametrize("v", [2, 3])
def test_case_R13_any_m_is_the_plan_for_the_next_multiple_without_what_is_not_there(  # noqa: N802
    p: int, m: int, v: int
) -> None:
    plan, whole = pp.build("interleaved", p, m, v), pp.build("interleaved", p, -(-m // p) * p, v)
    assert pp.validate(plan) == ()
    assert plan.rows == tuple(tuple(action for action in row if action.microbatch < m) for row in whole.rows)
    timeline, busy = pp.simulate(plan), 3 * m * v
    assert timeline.makespan == slots(plan)
    assert timeline.busy == (busy,) * p
    assert timeline.bubble_overhead == (slots(plan) - busy) / busy


@pytest.mark.parametrize(("p", "m"), NO_MULTIPLE)
def test_case_R13_any_m_runs_to_the_reference_gradients(p: int, m: int) -> None:  # noqa: N802
    model = deep(2 * p)
    inputs, targets = rows_of(2 * m + 1)
    result = pp.run("interleaved", model, inputs, targets, p=p, m=m, v=2, loss_fn=F.cross_entropy)
    assert_same(result, pp.reference_step(model, inputs, targets, loss_fn=F.cross_entropy))
    assert result.messages == 2 * (2 * p - 1) * m


def test_case_R14_fewer_microbatches_than_ranks_run_interleaved() -> None:  # noqa: N802
    model = deep(12)
    inputs, targets = rows_of(7)
    result = pp.run("interleaved", model, inputs, targets, p=6, m=3, v=2, loss_fn=F.cross_entropy)
    assert_same(result, pp.reference_step(model, inputs, targets, loss_fn=F.cross_entropy))
    assert max(result.peak_in_flight) == 3


@pytest.mark.parametrize(("p", "m"), [(4, 8), (4, 3), (2, 5)])
def test_case_R16_one_stage_a_rank_is_1f1b_with_a_longer_warm_up(p: int, m: int) -> None:  # noqa: N802
    plan, plain = pp.build("interleaved", p, m, 1), pp.build("1f1b", p, m)
    assert pp.validate(plan) == ()
    assert pp.simulate(plan).makespan == pp.simulate(plain).makespan == slots(plan)
    assert pp.in_flight(plain) == tuple(min(m, p - rank) for rank in range(p))
    assert pp.in_flight(plan) == tuple(min(m, 2 * (p - rank) - 1) for rank in range(p))


@pytest.mark.parametrize(("p", "m"), [(4, 8), (2, 5)])
def test_case_R16_one_stage_a_rank_runs_to_the_gradients_of_1f1b(p: int, m: int) -> None:  # noqa: N802
    inputs, targets = rows_of(2 * m + 1)
    result, plain = (
        pp.run(pp.build(name, p, m, 1), classifier(), inputs, targets, loss_fn=F.cross_entropy)
        for name in ("interleaved", "1f1b")
    )
    assert_same(result, plain)
    assert_same(result, pp.reference_step(classifier(), inputs, targets, loss_fn=F.cross_entropy))
    assert result.peak_in_flight == tuple(min(m, 2 * (p - rank) - 1) for rank in range(p))


@pytest.mark.parametrize(("forward", "input_grad", "weight_grad"), [(1, 1, 1), (4, 3, 2), (3, 5, 1), (7, 7, 0)])
@pytest.mark.parametrize("p", [2, 4, 7])
def test_case_R56_both_forms_of_the_bubble_of_zb1p_are_the_one_that_is_simulated(  # noqa: N802
    p: int, forward: int, input_grad: int, weight_grad: int
) -> None:
    timeline = pp.simulate(pp.build("zb-h1", p, 3 * p), pp.Costs(forward, input_grad, weight_grad))
    backward = input_grad + weight_grad  # DeepSeek's B is the full backward, that of the Zero Bubble paper is I
    assert max(timeline.idle) == (p - 1) * (forward + backward - 2 * weight_grad)
    assert max(timeline.idle) == formulas.zb_h1_bubble_time(p, forward, input_grad, weight_grad)


def test_case_R56_a_full_backward_lasts_as_long_as_its_two_parts() -> None:  # noqa: N802
    timeline = pp.simulate(pp.build("1f1b", 2, 3), pp.Costs(4, 3, 2))
    assert {span.end - span.start for span in timeline.spans if span.action.op == "B"} == {5}
