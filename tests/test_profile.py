"""A profile finds the heavy layer, weighs what a stage keeps, changes nothing, and never stops a run."""

import math
import random
import time
import warnings
from typing import Any

import numpy
import pytest
import torch
import torch.nn.functional as F
from strategies import refused
from toys import assert_same, by_value, classifier, rows_of

import ppcourse as pp
from ppcourse.runtime.models import gpt
from ppcourse.runtime.prepare import sizes_of
from ppcourse.runtime.profile import LayerProfile, Profile, partition_by_profile
from ppcourse.runtime.rounds import Rounds
from ppcourse.runtime.stages.batch import batch_of
from ppcourse.runtime.values import wire

by_value(__name__)
ROWS, WIDTH = 4, 64
ACTIVATION = ROWS * WIDTH * 4


class Work(torch.autograd.Function):
    """Burns CPU time forward, and twice that backward."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, seconds: float) -> torch.Tensor:
        ctx.seconds = seconds
        burn(seconds)
        return x.clone()

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> Any:
        burn(2 * ctx.seconds)
        return grads[0], None


class Heavy(torch.nn.Module):
    def __init__(self, seconds: float) -> None:
        super().__init__()
        self.seconds = seconds

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return Work.apply(x, self.seconds)


class Split(torch.nn.Module):
    """Hands on a tuple: what a skip connection over layers is, in a model that is a chain."""

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return x, 2 * x


class Join(torch.nn.Module):
    def forward(self, pair: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
        return pair[0] + pair[1]


class Skip(torch.nn.Module):
    """Finds what an earlier layer has left for it, but only within a whole model's forward."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        raise KeyError("skip")


def burn(seconds: float) -> None:
    until = time.thread_time() + seconds
    while time.thread_time() < until:
        pass


def linear() -> torch.nn.Linear:
    return torch.nn.Linear(WIDTH, WIDTH)


def rows() -> torch.Tensor:
    return torch.ones(ROWS, WIDTH)


def test_the_time_of_each_layer_and_op() -> None:
    layers = [linear(), Heavy(0.002), Heavy(0.008), linear()]
    found = pp.profile(layers, rows(), budget=0.1)
    small, light, heavy, _ = found.layers
    assert light.forward >= 0.002
    assert light.input_grad >= 0.004  # nothing is left for W: no weights
    assert heavy.forward >= 0.008
    assert heavy.input_grad >= 0.016
    assert heavy.weight_grad < heavy.forward
    assert small.time > 0
    assert found.times[2] == max(found.times) == heavy.time
    assert found.rounds >= 1


def test_the_loss_belongs_to_the_last_layer() -> None:
    def slow_loss(output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        burn(0.005)
        return F.mse_loss(output, target)

    with_loss, without = (pp.profile([linear(), linear()], rows(), rows(), fn, budget=0.0) for fn in (slow_loss, None))
    assert with_loss.layers[1].forward > 0.005
    assert with_loss.layers[0].stashed == without.layers[0].stashed
    assert with_loss.layers[1].stashed > without.layers[1].stashed


def test_weights_and_bytes_of_each_layer_by_hand() -> None:
    layers = [linear(), torch.nn.Tanh(), linear(), torch.nn.ReLU()]
    found = pp.profile(layers, rows(), budget=0.0)
    assert [layer.parameters for layer in found.layers] == [WIDTH * WIDTH + WIDTH, 0, WIDTH * WIDTH + WIDTH, 0]
    assert [layer.boundary for layer in found.layers] == [ACTIVATION] * 4
    # the batch is there anyway; the others keep what they got, tanh and relu also what they make of it
    assert [layer.stashed for layer in found.layers] == [0, 2 * ACTIVATION, ACTIVATION, 2 * ACTIVATION]
    # W of a linear layer needs its input, which the first one has from the batch, and the gradient of its output
    assert [layer.kept_for_w for layer in found.layers] == [ACTIVATION, 0, 2 * ACTIVATION, 0]


def test_what_a_stage_hands_on_inside_it_keeps_once() -> None:
    found = pp.profile([linear(), torch.nn.Tanh(), linear(), torch.nn.ReLU()], rows(), budget=0.0)
    # of one stage: tanh keeps its output, which the linear layer after it keeps too, and relu its own
    assert found.sizes([4]).of("stashed", 1) == (2 * ACTIVATION,)
    assert found.sizes([2, 2]).of("stashed", 2) == (ACTIVATION, 2 * ACTIVATION)
    assert found.sizes([2, 2], recompute=True).of("stashed", 2) == (0, ACTIVATION)
    assert found.sizes([2, 2]).of("boundary", 2) == (ACTIVATION, ACTIVATION)


class Shift(torch.nn.Module):
    """Its input's gradient is its output's: the same tensor, which its own W needs, too."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.zeros(WIDTH))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.weight


@pytest.mark.parametrize("recompute", [False, True])
def test_what_stages_on_one_rank_keep_together_is_known(recompute: bool) -> None:
    """Linear hands its output to a stage that keeps nothing of it but the gradient, which W of both needs; tanh keeps
    what it hands on, whether the next stage keeps it for its I, or for its W, too."""
    layers = [linear(), Shift(), linear(), torch.nn.Tanh(), torch.nn.Tanh(), linear()]
    turns = pp.profile(layers, rows(), budget=0.0).sizes([1] * 6, recompute=recompute).turns
    kept = 0 if recompute else ACTIVATION  # of what is computed again, nobody keeps what it hands on
    assert [turn.shared for turn in turns] == [0, 0, 0, 0, kept, kept]
    assert [turn.owed for turn in turns] == [0, ACTIVATION, 0, 0, 0, 0]
    # what is handed over waits, unless it is kept anyway; so does the gradient that is handed back
    assert [turn.waits for turn in turns] == [0, *[ACTIVATION] * 3, *[ACTIVATION - kept] * 2]
    assert [turn.returned for turn in turns] == [0, *[ACTIVATION] * 5]


def test_what_a_message_has_beside_its_tensors_is_known() -> None:
    """To the byte, as it is packed; the last stage sends none."""
    layers = [linear(), Split(), Join(), linear()]
    sizes = pp.profile(layers, rows(), budget=0.0).sizes([2, 1, 1])
    x = torch.zeros(ROWS, WIDTH)
    pair, one = wire.pack((x, x)).numel() - 2 * ACTIVATION, wire.pack(x).numel() - ACTIVATION
    assert sizes.of("envelope", 3) == (pair, one, 0)
    back = wire.pack([x, x]).numel(), wire.pack([x]).numel()
    assert sizes.of("back", 3) == (*back, 0)


def test_a_gradient_that_nobody_wants_is_a_small_message() -> None:
    """Frozen layers come first: what goes back to them is None."""
    layers = [linear().requires_grad_(False), linear(), linear()]
    sizes = pp.profile(layers, rows(), budget=0.0).sizes([1, 1, 1])
    x = torch.zeros(ROWS, WIDTH)
    assert sizes.of("back", 3) == (wire.pack([None]).numel(), wire.pack([x]).numel(), 0)
    weights = WIDTH * WIDTH + WIDTH
    assert (sizes.of("parameters", 3), sizes.of("trainable", 3)) == ((weights,) * 3, (0, weights, weights))


def test_statistics_count_with_the_weights_and_shared_weights_once() -> None:
    same = linear()
    sizes = pp.profile([same, torch.nn.BatchNorm1d(WIDTH), same], rows(), budget=0.0).sizes([3])
    assert sizes.of("parameters", 1) == (WIDTH * WIDTH + WIDTH + 2 * WIDTH,)
    assert sizes.of("buffers", 1) == (2 * 4 * WIDTH + 8,)  # mean, variance, and how many batches there were
    plan = pp.build("1f1b", 1, 1)
    assert pp.ledger(plan, sizes).of("parameters") == (4 * sizes.of("parameters", 1)[0] + 2 * 4 * WIDTH + 8,)


def test_costs_of_stages_are_those_of_their_layers() -> None:
    found = pp.profile([linear(), linear(), linear()], rows(), budget=0.0)
    costs = found.costs([1, 2], comm=0.5)
    a, b, c = found.layers
    assert costs.forward == (a.forward, b.forward + c.forward)
    assert costs.weight_grad == (a.weight_grad, b.weight_grad + c.weight_grad)
    assert costs.comm == 0.5
    again = found.costs([1, 2], recompute=True)
    assert again.input_grad == (a.input_grad + a.forward, b.input_grad + c.input_grad + b.forward + c.forward)
    for wrong in ([1, 1], [], [0, 3], [1.0, 2.0], "12", None):
        for sizes in (found.costs, found.sizes):
            with refused(f"The partition {wrong!r} does not cut 3 layers into stages of at least one."):
                sizes(wrong)


def test_it_prints_as_a_table() -> None:
    found = pp.profile([linear(), torch.nn.Tanh()], rows(), budget=0.0)
    first, head, one, two = str(found).splitlines()
    assert first == "one microbatch; times in ms, medians of 1; sizes in bytes"
    assert head.split() == ["layer", "F", "I", "W", "parameters", "stashed", "kept", "for", "W", "boundary"]
    assert one.split()[:2] == ["0", "Linear"]
    assert two.split()[-4:] == ["0", "2,048", "0", "1,024"]


def test_model_random_state_and_threads_stay_as_they_are() -> None:
    model = torch.nn.Sequential(linear(), torch.nn.BatchNorm1d(WIDTH), torch.nn.Dropout())
    before = {name: value.clone() for name, value in model.state_dict().items()}
    state, threads = torch.get_rng_state(), torch.get_num_threads()
    pp.profile(model, torch.randn(ROWS, WIDTH, generator=torch.Generator().manual_seed(0)), budget=0.0)
    assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())
    assert all(weight.grad is None for weight in model.parameters())
    assert torch.equal(state, torch.get_rng_state())
    assert torch.get_num_threads() == threads


class Meddler(torch.nn.Module):
    """Sets what everybody shares, and says so."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        print("meddling")
        random.seed(1)
        numpy.random.seed(1)
        torch.manual_seed(1)
        torch.set_default_dtype(torch.float64)
        torch.set_num_threads(2)
        return x * x.new_tensor(random.random())


def test_a_layer_that_meddles_leaves_no_trace(capsys: pytest.CaptureFixture[str]) -> None:
    def shared() -> list[Any]:
        numbers = str(random.getstate()), str(numpy.random.get_state()), torch.get_rng_state().tolist()
        return [numbers, torch.get_default_dtype(), torch.get_num_threads(), torch.is_grad_enabled()]

    layers, before = [linear(), Meddler(), linear()], shared()
    found = pp.profile(layers, rows(), budget=0.0)
    found.sizes([1, 2])
    assert shared() == before
    assert found.rounds == 1
    assert capsys.readouterr().out == ""


def test_layers_that_work_in_place_are_measured_and_nobody_elses_tensors_change() -> None:
    class Double(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x.mul_(2)

    inputs = rows()
    found = pp.profile([Double(), linear(), Double(), torch.nn.ReLU(inplace=True), linear()], inputs, budget=0.0)
    assert found.rounds == 1
    assert torch.equal(inputs, rows())
    # beside the batch, one tensor that was doubled and cut off in its place
    assert found.sizes([5]).of("stashed", 1) == (ACTIVATION,)


def test_frozen_layers_keep_nothing_for_w() -> None:
    layers = [linear(), torch.nn.Tanh(), linear().requires_grad_(False), linear().requires_grad_(False)]
    found = pp.profile(layers, rows(), budget=0.0)
    assert [layer.stashed for layer in found.layers] == [0, 2 * ACTIVATION, ACTIVATION, ACTIVATION]
    assert [layer.kept_for_w for layer in found.layers] == [ACTIVATION, 0, 0, 0]
    nothing = pp.profile([layer.requires_grad_(False) for layer in layers], rows(), budget=0.0)
    assert [layer.stashed for layer in nothing.layers] == [0] * 4


def test_the_budget_ends_it() -> None:
    began = time.thread_time()
    found = pp.profile([linear(), Heavy(0.01)], rows(), budget=0.2)
    spent = time.thread_time() - began
    assert found.rounds < 10
    assert spent < 1.0  # a round is 0.03 s, and weighing two
    assert pp.profile([linear()], rows(), budget=0.0).rounds == 1


def test_the_round_that_warms_up_takes_nothing_off_the_budget(monkeypatch: pytest.MonkeyPatch) -> None:
    """A clock that the rounds put on: 9 s for the first, 1 s for each other one. A budget of 3 s is for three."""
    now, round_of = 0.0, Rounds._round

    def timed(rounds: Rounds, stages: Any) -> Any:
        nonlocal now
        now += 1.0 if now else 9.0
        return round_of(rounds, stages)

    monkeypatch.setattr(Rounds, "_round", timed)
    monkeypatch.setattr("ppcourse.runtime.rounds.time.perf_counter", lambda: now)
    assert [pp.profile([linear()], rows(), budget=budget).rounds for budget in (3.0, 2.5, 0, -1)] == [3, 3, 1, 1]
    assert pp.profile([linear()], rows(), budget=math.inf).rounds == 50


def test_recomputing_keeps_no_copy_of_a_buffer_that_nobody_changes() -> None:
    class Scaled(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("scale", torch.ones(1000, WIDTH))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x * self.scale[0]

    sizes = pp.profile([linear(), Scaled(), linear()], rows(), budget=0.0).sizes([1, 1, 1], recompute=True)
    assert sizes.of("stashed", 3) == (0, ACTIVATION, ACTIVATION)


def test_weights_count_by_their_own_size() -> None:
    """Of all kinds the same: exactly as many as there are; half as large: half a weight."""
    layers = [linear().double(), linear().double()]
    sizes = pp.profile(layers, rows().double(), budget=0.0).sizes([1, 1])
    weights = WIDTH * WIDTH + WIDTH
    assert (sizes.weight_bytes, sizes.gradient_bytes, sizes.of("parameters", 2)) == (8, 8, (weights,) * 2)
    mixed = torch.nn.Sequential(linear(), linear().bfloat16().requires_grad_(False))
    sizes = pp.profile([Casts(mixed)], rows(), budget=0.0).sizes([1], optimizer_bytes=8)
    assert (sizes.weight_bytes, sizes.of("parameters", 1)) == (4, (1.5 * weights,))
    assert sizes.of("trainable", 1) == (weights,)
    assert pp.profile([torch.nn.Tanh()], rows(), budget=0.0).sizes([1]).weight_bytes == 4


class Casts(torch.nn.Module):
    """Each layer gets its input as it wants it."""

    def __init__(self, layers: torch.nn.Sequential) -> None:
        super().__init__()
        self.layers = layers

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = layer(x.to(layer.weight.dtype))
        return x


def test_what_several_stages_have_is_told() -> None:
    same, norm = linear(), torch.nn.BatchNorm1d(WIDTH)
    sizes = pp.profile([same, norm, same, norm], rows(), budget=0.0).sizes([1, 2, 1])
    weights = WIDTH * WIDTH + WIDTH
    assert sizes.tied == [((0, 1), weights, weights, 0), ((1, 2), 2 * WIDTH, 2 * WIDTH, 2 * 4 * WIDTH + 8)]
    assert pp.profile([same, linear()], rows(), budget=0.0).sizes([1, 1]).tied == []


def test_tuples_are_handed_on() -> None:
    found = pp.profile([linear(), Split(), Join()], rows(), budget=0.0)
    assert found.rounds == 1
    assert found.layers[1].boundary == 2 * ACTIVATION


def test_case_R87_a_layer_that_raises_leaves_weights_to_go_by() -> None:  # noqa: N802
    layers = [linear(), torch.nn.Linear(WIDTH, 3 * WIDTH), Skip()]
    with pytest.warns(
        UserWarning, match=r"could not be profiled, so weights are counted instead \(KeyError: 'skip'\)\."
    ):
        found = pp.profile(layers, rows())
    assert found.rounds == 0
    assert found.times == tuple(3.0 * n for n in (WIDTH * WIDTH + WIDTH, 3 * (WIDTH * WIDTH + WIDTH), 0))
    assert "not measured: in proportion to weights" in str(found)
    with refused("This profile could not run the model, so it knows no bytes."):
        found.sizes([1, 2])


def test_what_is_no_loss_function_or_budget_is_refused() -> None:
    with pytest.raises(ValueError, match="loss_fn is 3, but it must be a function"):
        pp.profile([linear()], rows(), rows(), 3)
    for budget in ("1", math.nan, None):
        with refused(f"budget is {budget!r}; it must be a number of seconds, 2.0 for example."):
            pp.profile([linear()], rows(), budget=budget)


def test_what_is_no_model_is_refused() -> None:
    with pytest.raises(ValueError, match=r"must be an nn\.Sequential"):
        pp.profile(linear(), rows())


# partitions by profile


@pytest.mark.thorough
def test_a_run_can_be_cut_by_a_profile() -> None:
    layers = [linear(), *[Heavy(0.0005) for _ in range(4)], Heavy(0.004)]
    inputs = torch.ones(2 * ROWS, WIDTH)
    plan = pp.build("1f1b", 2, 2)
    batch = batch_of(inputs, inputs, {}, 2, "mean", None)
    assert partition_by_profile("profiled", plan, layers, batch, F.mse_loss) == (5, 1)
    assert partition_by_profile("uniform", plan, layers, batch, F.mse_loss) == "uniform"
    result = pp.run(plan, layers, inputs, inputs, loss_fn=F.mse_loss, partition="profiled")
    spans = [span for span in result.timeline.spans if str(span.action)[1] == "F" and span.action.stage == 1]
    alone = pp.run(plan, layers, inputs, inputs, loss_fn=F.mse_loss, partition=(5, 1))
    assert_same(result, alone)
    assert len(spans) == 2


def test_an_evaluation_is_cut_by_what_forwards_take(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first layer is light forward and heavy backward."""
    layers = tuple(
        LayerProfile(name, f, i, i, 1) for name, f, i in (("a", 1, 9), ("b", 1, 1), ("c", 1, 1), ("d", 3, 1))
    )
    monkeypatch.setattr("ppcourse.runtime.profile.profile", lambda *_, **__: Profile(layers, rounds=1))
    model, batch = [linear()] * 4, batch_of(rows(), rows(), {}, 1, "mean", None)
    plan = pp.build("1f1b", 2, 1)
    assert partition_by_profile("profiled", plan, model, batch, F.mse_loss) == (1, 3)
    assert partition_by_profile("profiled", pp.forward_only(plan), model, batch, F.mse_loss) == (3, 1)


def test_a_profiled_cut_adds_up_what_a_rank_has(monkeypatch: pytest.MonkeyPatch) -> None:
    """A vee, whose rank 0 has both ends: the light layers belong on rank 1. By stages alone it would be 2, 2, 2, 1."""
    layers = tuple(LayerProfile("layer", f, 0, 0, 1) for f in (1, 1, 1, 1, 1, 1, 8))
    monkeypatch.setattr("ppcourse.runtime.profile.profile", lambda *_, **__: Profile(layers, rounds=1))
    plan, batch = pp.build("v-half", 2, 4), batch_of(rows(), rows(), {}, 4, "mean", None)
    assert partition_by_profile("profiled", plan, [linear()] * 7, batch, F.mse_loss) == (1, 4, 1, 1)


class Costly(torch.nn.Module):
    """As heavy as its extra says: it cannot be profiled without."""

    def __init__(self) -> None:
        super().__init__()
        self.body = linear()

    def forward(self, x: torch.Tensor, times: int) -> torch.Tensor:
        for _ in range(times):
            x = self.body(x)
        return x


def test_extras_reach_the_layers_that_are_profiled() -> None:
    inputs = torch.ones(2 * ROWS, WIDTH)
    few, many = (pp.profile([Costly()], inputs, extras={"times": times}, budget=0) for times in (1, 9))
    assert many.layers[0].stashed > few.layers[0].stashed
    with pytest.raises(ValueError, match="No layer takes the extra 'time' by that name"):
        pp.profile([Costly()], inputs, extras={"time": 3})
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # that weights were counted instead
        given = {"loss_fn": F.mse_loss, "p": 2, "m": 2, "partition": "profiled", "extras": {"times": 2}}
        result = pp.run("1f1b", [Costly(), Costly(), linear()], inputs, inputs, **given)
    assert result.grads["0.body.weight"] is not None


@pytest.mark.thorough
def test_ranks_with_several_stages_are_balanced_together() -> None:
    """Stages 0 and 3 of v-half share a rank, so its first stage is small where the last one is heavy."""
    layers = [*[Heavy(0.002) for _ in range(6)], Heavy(0.006)]
    inputs = torch.ones(ROWS, WIDTH, requires_grad=True)
    plan = pp.build("v-half", 2, 4)
    sizes = partition_by_profile("profiled", plan, layers, batch_of(inputs, inputs, {}, 4, "mean", None), F.mse_loss)
    busy = [0.0, 0.0]
    costs = iter([2.0] * 6 + [6.0])
    for stage, size in enumerate(sizes):
        busy[plan.rank_of(stage, 0)] += sum(next(costs) for _ in range(size))
    assert max(busy) == 10  # of 18, in pieces of 2


@pytest.mark.thorough
def test_a_model_that_cannot_be_profiled_still_runs_and_one_that_fails_says_so_itself() -> None:
    inputs, targets = rows_of(8)
    task = {"p": 2, "m": 2, "loss_fn": F.cross_entropy, "partition": "profiled"}
    with pytest.warns(UserWarning, match="weights are counted instead"), pytest.raises(pp.RankError, match="skip"):
        pp.run("1f1b", [*classifier(), Skip()], inputs, targets, **task)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        done = pp.train(
            "1f1b", classifier(), [(inputs, targets)], steps=1, optimizer=torch.optim.SGD, progress=False, **task
        )
        seen = pp.evaluate("1f1b", classifier(), inputs, targets, **task)
    assert done.losses[0] == pytest.approx(seen.loss)


def test_a_learner_may_split_a_layer_finer() -> None:
    """The head has three linear layers in one, and is what a stage waits for. Its parts as layers of their own are the
    same modules: the cut gets more even, and nothing else changes."""
    head = torch.nn.Sequential(linear(), linear(), linear())
    layers = [linear(), linear(), head]
    finer = [*layers[:-1], *head]
    counts = [sum(w.numel() for w in layer.parameters()) for layer in layers]
    parts = [layer.parameters for layer in pp.profile(finer, rows(), budget=0.0).layers]
    assert parts == [*counts[:-1], *[counts[-1] // 3] * 3]
    assert (pp.partition(counts, 2), pp.partition(parts, 2)) == ((2, 1), (3, 2))
    assert (sizes_of("parameters", layers, 2), sizes_of("parameters", finer, 2)) == ((2, 1), (3, 2))
    inputs = torch.randn(2 * ROWS, WIDTH, generator=torch.Generator().manual_seed(0))
    task = {"p": 2, "m": 2, "loss_fn": F.mse_loss, "partition": "parameters"}
    coarse, fine = (pp.run("1f1b", model, inputs, inputs, **task) for model in (layers, finer))
    assert coarse.loss == fine.loss
    names = zip(coarse.grads, fine.grads, strict=True)  # 2.0.weight is 2.weight now, and so on
    assert all(torch.equal(coarse.grads[a], fine.grads[b]) for a, b in names)


def test_too_many_stages_are_refused_as_ever() -> None:
    inputs, targets = rows_of(8)
    with pytest.raises(ValueError, match="The plan has 8 stages, but the model has 6 layers"):
        pp.run("1f1b", classifier(), inputs, targets, p=8, m=2, loss_fn=F.cross_entropy, partition="profiled")


@pytest.mark.thorough
def test_the_heavy_head_of_a_gpt_is_found() -> None:
    model = gpt(layers=4, width=32, vocab=2**16, context=16)
    tokens = torch.randint(2**16, (4, 16), generator=torch.Generator().manual_seed(0))
    found = pp.profile(model, tokens, budget=0.3)
    assert found.times[-1] == max(found.times)
    assert pp.partition(found.times, 2) == (5, 1)
