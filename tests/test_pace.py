"""A paced run takes the time its costs say, on any machine: real work and messages, and the rest slept."""

import time
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from toys import assert_same, by_value, classifier, rows_of

import ppcourse as pp
from ppcourse.runtime import clock
from ppcourse.runtime.clock import Clock, Pace

by_value(__name__)
pytestmark = pytest.mark.thorough
F0, F1, B0 = (pp.Action.parse(text) for text in ("0F0", "0F1", "0B0"))
COSTS = pp.Costs(forward=10.0, input_grad=12.0, weight_grad=8.0)


TICK = 2.0**-20


class FakeTime:
    """A clock that moves when somebody sleeps, a little too long each time, or works."""

    def __init__(self, now: float = 100.0, late: float = 0.0) -> None:
        self.now, self.late = now, late

    def perf_counter(self) -> float:
        self.now += TICK  # who looks at a clock long enough sees it move
        return self.now - TICK

    def sleep(self, seconds: float) -> None:
        assert seconds > 0
        self.now += seconds + self.late

    def work(self, seconds: float) -> None:
        self.now += seconds


def end(clock: Clock, action: pp.Action) -> float:
    clock.worked()
    return clock.end(action)


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> FakeTime:
    fake = FakeTime()
    monkeypatch.setattr(clock, "time", fake)
    return fake


def test_an_action_lasts_its_nominal_time(fake: FakeTime) -> None:
    pace = Pace(COSTS, 1)
    assert pace.start(0.0) == pytest.approx(100, abs=0.01)
    fake.work(3)
    assert end(pace, F0) == pytest.approx(110, abs=0.01)
    assert pace.start(0.0) == pytest.approx(110, abs=0.01)
    assert end(pace, B0) == pytest.approx(130, abs=0.01)
    assert fake.now == pytest.approx(130, abs=0.01)


def test_sleeping_too_long_is_not_carried_on(fake: FakeTime) -> None:
    fake.late = 0.5
    pace = Pace(COSTS, 1)
    starts = []
    for _ in range(20):
        starts.append(pace.start(0.0))
        end(pace, F0)
    assert starts == pytest.approx([100 + 10 * n for n in range(20)], abs=0.01)
    assert fake.now == pytest.approx(300.5, abs=0.01)


def test_work_longer_than_its_time_is_never_made_up(fake: FakeTime) -> None:
    pace = Pace(COSTS, 1)
    pace.start(0.0)
    fake.work(25)
    assert end(pace, F0) == pytest.approx(125, abs=0.01)
    assert pace.start(0.0) == pytest.approx(125, abs=0.01)
    assert end(pace, F1) == pytest.approx(135, abs=0.01)


def test_an_action_waits_for_what_arrives_later(fake: FakeTime) -> None:
    pace = Pace(COSTS, 1)
    pace.start(0.0)
    end(pace, F0)
    assert pace.start(117.0) == pytest.approx(117, abs=0.01)
    assert end(pace, B0) == pytest.approx(137, abs=0.01)


def test_an_action_starts_at_its_predecessors_deadline_if_its_inputs_came_before(fake: FakeTime) -> None:
    fake.late = 0.5
    pace = Pace(COSTS, 1)
    pace.start(0.0)
    end(pace, F0)
    assert fake.now == pytest.approx(110.5, abs=0.01)
    assert pace.start(104.0) == pytest.approx(110, abs=0.01)


def test_the_first_action_starts_when_the_rank_is_ready(fake: FakeTime) -> None:
    assert Pace(COSTS, 1).start(90.0) == pytest.approx(100, abs=0.01)
    assert Pace(COSTS, 1).start(107.0) == pytest.approx(107, abs=0.01)


def test_who_has_something_to_send_goes_before_who_begins_to_work(
    fake: FakeTime, monkeypatch: pytest.MonkeyPatch
) -> None:
    gave_way: list[float] = []
    monkeypatch.setattr(clock.os, "sched_yield", lambda: gave_way.append(fake.now))
    pace = Pace(COSTS, 1)
    pace.start(0.0)
    end(pace, F0)
    pace.start(117.0)
    end(pace, B0)
    assert gave_way == pytest.approx([100, 117], abs=0.01)  # once an action has begun, and not where it is sent


def test_costs_are_those_of_the_stage(fake: FakeTime) -> None:
    pace = Pace(pp.Costs(forward=[1.0, 5.0], input_grad=1, weight_grad=1), 2)
    pace.start(0.0)
    assert end(pace, pp.Action.parse("1F0")) == pytest.approx(105, abs=0.01)


def test_without_a_pace_spans_are_as_they_come(fake: FakeTime) -> None:
    plain = Clock()
    assert plain.start(0.0) == pytest.approx(100, abs=0.01)
    fake.work(3)
    assert end(plain, F0) == pytest.approx(103, abs=0.01)
    assert plain.start(50.0) == pytest.approx(103, abs=0.01)


# on ranks

REAL = pp.Costs(forward=0.02, input_grad=0.02, weight_grad=0.02, comm=0.015)


@pytest.fixture(scope="module")
def paced() -> tuple[pp.Timeline, pp.Timeline]:
    """What the simulator predicts, and the best of three paced runs."""
    plan = pp.build("1f1b", 3, 4)
    inputs, targets = rows_of(8)
    pp.run(plan, classifier(), inputs, targets, loss_fn=F.cross_entropy)
    runs = [pp.run(plan, classifier(), inputs, targets, loss_fn=F.cross_entropy, pace=REAL) for _ in range(3)]
    return pp.simulate(plan, REAL), min((run.timeline for run in runs), key=lambda timeline: timeline.makespan)


def test_a_paced_run_takes_as_long_as_the_simulator_says(paced: tuple[pp.Timeline, pp.Timeline]) -> None:
    predicted, measured = paced
    assert measured.source == "paced"
    assert predicted.makespan <= measured.makespan < 1.5 * predicted.makespan


def test_paced_spans_last_their_nominal_time(paced: tuple[pp.Timeline, pp.Timeline]) -> None:
    _, measured = paced
    for span in measured.spans:
        nominal = 0.02 if span.action.op is pp.Op.F else 0.04
        assert span.end - span.start >= nominal - 1e-9
    exact = [s for s in measured.spans if s.end - s.start == pytest.approx(0.02 if s.action.op is pp.Op.F else 0.04)]
    assert len(exact) > len(measured.spans) // 2  # the others were kept from their rank by a busy machine


def test_a_hop_takes_its_latency_at_least(paced: tuple[pp.Timeline, pp.Timeline]) -> None:
    _, measured = paced
    ends = {span.action: span.end for span in measured.spans}
    for span in measured.spans:
        stage, op, microbatch = span.action
        before = pp.Action(stage - 1 if op is pp.Op.F else stage + 1, op, microbatch)
        if before in ends:
            assert span.start >= ends[before] + 0.015


class Slow(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        time.sleep(0.06)
        return x


def test_work_that_takes_longer_than_its_cost_shows() -> None:
    inputs, targets = rows_of(2)
    result = pp.run(
        "naive", [classifier(), Slow()], inputs, targets, p=2, m=1, loss_fn=F.cross_entropy, pace=pp.Costs(0.01, 0, 0)
    )
    spans = {str(span.action): span.end - span.start for span in result.timeline.spans}
    assert spans["1F0"] >= 0.06
    assert spans["0F0"] < 0.06


def test_every_step_of_a_paced_training_takes_the_same_time_whatever_lies_between() -> None:
    """The clock of a step starts with the step."""

    def batches() -> list[tuple[Tensor, Tensor]]:
        for _ in range(3):
            yield rows_of(4)
            time.sleep(0.2)  # a slow loader of data

    plan = pp.build("gpipe", 2, 2)
    training = pp.train(
        plan,
        classifier(),
        batches(),
        steps=3,
        loss_fn=F.cross_entropy,
        optimizer=torch.optim.SGD,
        pace=REAL,
        progress=False,
    )
    predicted = pp.simulate(plan, REAL).makespan
    assert training.step_times == pytest.approx([predicted] * 3, rel=0.3)
    assert min(training.step_times) >= predicted
    first = {span.action: span.end - span.start for span in training.timeline.spans}
    assert first[F0] == pytest.approx(0.02, rel=0.5)


def test_a_paced_result_says_so_and_an_unpaced_one_does_not() -> None:
    inputs, targets = rows_of(2)
    plain = pp.run("gpipe", classifier(), inputs, targets, p=1, m=1, loss_fn=F.cross_entropy)
    paced = pp.run("gpipe", classifier(), inputs, targets, p=1, m=1, loss_fn=F.cross_entropy, pace=pp.Costs(0, 0, 0))
    assert (plain.timeline.source, paced.timeline.source) == ("measured", "paced")
    assert "paced" in str(paced.timeline)


# Overlapped pairs.


def test_a_pair_starts_when_both_may_and_both_end_together() -> None:
    """As the simulator has it, on real ranks: F&B lasts `overlap`, whatever F and B would take one by one."""
    plan = pp.build("dualpipe", 4, 8)
    costs = pp.Costs(0.02, 0.02, 0.02, overlap=0.045)
    model, (inputs, targets) = classifier(), rows_of(16)
    result = pp.run(plan, model, inputs, targets, loss_fn=F.cross_entropy, pace=costs)
    assert_same(result, pp.reference_step(model, inputs, targets, loss_fn=F.cross_entropy))
    spans = {(s.rank, s.action): s for s in result.timeline.spans}
    for rank, position in plan.overlapped:
        forward, backward = (spans[rank, action] for action in plan.rows[rank][position : position + 2])
        assert (forward.start, forward.end) == (backward.start, backward.end)
        assert forward.end - forward.start >= 0.045 - 1e-9
    assert result.peak_in_flight == pp.in_flight(plan)  # between the two of a pair both are held
    predicted = pp.simulate(plan, costs)
    apart = pp.simulate(plan, replace(costs, overlap=None))
    assert predicted.makespan < apart.makespan
    assert result.timeline.makespan >= predicted.makespan - 1e-6
