"""A stage whose backward comes whole or split, recomputed or not: the unsplit model's gradients, on real ranks too."""

import itertools
import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from strategies import random_homes, random_order
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint
from toys import assert_same, by_value, classifier, rows_of, tied

import ppcourse as pp
from ppcourse.runtime.models import gpt
from ppcourse.runtime.stages import stage as stage_module
from ppcourse.runtime.stages.stage import End, Stage

by_value(__name__)

WAYS = list(itertools.product([False, True], [False, True]))
every_way = pytest.mark.parametrize(
    ("split", "recompute"), WAYS, ids=["B", "B, recomputed", "I and W", "I and W, recomputed"]
)


def microbatch(number: int, columns: int = 4) -> Tensor:
    return torch.randn(6, columns, dtype=torch.float64, generator=torch.Generator().manual_seed(number))


def seeded(build: Callable[[], nn.Module]) -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return build().double()


def unsplit(layers: nn.Module, inputs: list[Tensor], before: Callable[[Tensor], Tensor] = torch.sin) -> list[Tensor]:
    """Gradients of the inputs; `before` stands for the stage before, so that they are no leaves, and has no weights."""
    leaves = [x.clone().requires_grad_() for x in inputs]
    for x in leaves:
        y = before(x)
        y.retain_grad()
        layers(y).pow(2).sum().backward()
    return [x.grad for x in leaves]


def staged(layers: nn.Module, inputs: list[Tensor], split: bool, recompute: bool) -> list[Tensor]:
    """The same of a stage: all F first, then B or I in another order, then W in a third."""
    stage = Stage(dict(enumerate(layers)), None, recompute=recompute)
    outputs = []
    for i, x in enumerate(inputs):
        outputs.append(stage.forward(i, x.sin().requires_grad_(), None, split).detach())
    work = stage.input_grad if split else stage.backward
    found = {i: work(i, [2 * outputs[i]])[0] for i in (1, 2, 0)}
    for i in reversed(range(len(inputs))) if split else ():
        stage.weight_grad(i)
    assert stage.held == 0
    return [found[i] * x.cos() for i, x in enumerate(inputs)]


def assert_same_gradients(build: Callable[[], nn.Module], split: bool, recompute: bool) -> tuple[nn.Module, nn.Module]:
    layers, expected, inputs = seeded(build), seeded(build), [microbatch(i) for i in range(3)]
    torch.testing.assert_close(
        staged(layers, inputs, split, recompute), unsplit(expected, inputs), rtol=1e-11, atol=1e-13
    )
    for (name, got), wanted in zip(layers.named_parameters(), expected.parameters(), strict=True):
        assert got.grad is not None, name
        torch.testing.assert_close(got.grad, wanted.grad, rtol=1e-11, atol=1e-13)
    return layers, expected


# in-place operations where a stage begins


class Adds(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.more = nn.Parameter(torch.ones(4))

    def forward(self, x: Tensor) -> Tensor:
        return x.add_(self.more)


class Writes(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        x[:, 0] = x[:, 1] * 2
        return x


class Turns(nn.Module):
    """In place on a view of the input that is not contiguous."""

    def forward(self, x: Tensor) -> Tensor:
        x.t()[1:].mul_(3)
        return x


@pytest.mark.parametrize("first", [lambda: nn.ReLU(inplace=True), Adds, Writes, Turns])
@every_way
def test_case_R38_a_stage_may_begin_in_place(first: Callable[[], nn.Module], split: bool, recompute: bool) -> None:  # noqa: N802
    assert_same_gradients(lambda: nn.Sequential(first(), nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 2)), split, recompute)


def plain() -> nn.Module:
    return nn.Linear(4, 4).double()


def scripted() -> nn.Module:
    return torch.jit.trace(plain(), microbatch(0))


def twice(layer: nn.Module) -> nn.Sequential:
    return nn.Sequential(layer, nn.Tanh(), layer)


@pytest.mark.filterwarnings("ignore:.torch.jit.trace:DeprecationWarning")
@pytest.mark.parametrize("layer", [plain, scripted])
@every_way
def test_a_layer_may_stand_twice_in_a_stage(layer: Callable[[], nn.Module], split: bool, recompute: bool) -> None:
    assert_same_gradients(lambda: twice(layer()), split, recompute)


# running again


class Counts(nn.Module):
    """Counts microbatches in a buffer, in a number and in a list, and tells a function of each run."""

    def __init__(self, tell: Callable[[int], None] = int) -> None:
        super().__init__()
        self.register_buffer("seen", torch.zeros((), dtype=torch.int64))
        self.calls, self.all, self.tell = 0, list[int](), tell

    def forward(self, x: Tensor) -> Tensor:
        self.seen = self.seen + 1  # a new tensor, and not a new value
        self.calls += 1
        self.all.append(self.calls)
        self.tell(self.calls)
        return x


@every_way
def test_statistics_count_each_microbatch_once(split: bool, recompute: bool) -> None:
    runs = dict[int, list[int]]()

    def build() -> nn.Sequential:
        told = runs[len(runs)] = []
        middle = nn.BatchNorm1d(4), Counts(told.append), nn.BatchNorm1d(4)
        return nn.Sequential(nn.Linear(4, 4), *middle, nn.Linear(4, 2))

    layers, expected = assert_same_gradients(build, split, recompute)
    assert layers[2].seen == layers[1].num_batches_tracked == 3
    for got, wanted in zip(layers.buffers(), expected.buffers(), strict=True):
        assert torch.equal(got, wanted)
    assert layers[2].calls == 3
    assert layers[2].all == [1, 2, 3]
    assert sorted(map(sorted, runs.values())) == sorted([[1, 2, 3], [1, 1, 2, 2, 3, 3] if recompute else [1, 2, 3]])


@every_way
def test_a_layer_that_depends_on_its_buffers_runs_again_with_those_it_had(split: bool, recompute: bool) -> None:
    build = lambda: nn.Sequential(nn.utils.parametrizations.spectral_norm(nn.Linear(4, 4)), nn.Tanh())  # noqa: E731
    layers, expected = assert_same_gradients(build, split, recompute)
    for got, wanted in zip(layers.buffers(), expected.buffers(), strict=True):
        assert torch.equal(got, wanted)


class SaysWhatItDraws(nn.Module):
    def __init__(self, draw: Callable[[], float], tell: Callable[[float], None]) -> None:
        super().__init__()
        self.draw, self.tell = draw, tell

    def forward(self, x: Tensor) -> Tensor:
        factor = self.draw()
        self.tell(factor)
        return x * factor


DRAWS = {"torch": lambda: float(torch.rand(())), "Python": random.random, "numpy": lambda: float(np.random.random())}


@pytest.mark.parametrize("kind", DRAWS)
@pytest.mark.parametrize("split", [False, True])
def test_case_R66_running_again_draws_the_same_numbers(split: bool, kind: str) -> None:  # noqa: N802
    drawn = list[float]()
    stage = Stage({3: SaysWhatItDraws(DRAWS[kind], drawn.append)}, None, recompute=True)
    for i in range(2):
        stage.forward(i, torch.ones(2, requires_grad=True), None, split)
    for i in range(2):
        (stage.input_grad if split else stage.backward)(i, [torch.ones(2)])
    stage.forward(2, torch.ones(2))
    assert drawn[2:4] == drawn[:2]
    assert len(set(drawn)) == 3  # and the next microbatch goes on from where the last one ended


# what is kept, and until when


def test_a_microbatch_is_held_from_F_to_W() -> None:  # noqa: N802
    stage = Stage({0: nn.Linear(4, 4)}, None)
    x = torch.ones(2, 4, requires_grad=True)
    output = stage.forward(0, x, None, split=True)
    assert (list(stage.stash), list(stage.owed), stage.held) == ([0], [], 1)
    (grad,) = stage.input_grad(0, [torch.ones_like(output)])
    assert (list(stage.stash), list(stage.owed), stage.held) == ([], [0], 1)
    assert grad is not None
    assert stage.layers[0].weight.grad is None
    stage.weight_grad(0)
    assert stage.held == 0
    torch.testing.assert_close(stage.layers[0].weight.grad, torch.full((4, 4), 2.0))


@pytest.mark.parametrize("layer", [nn.Identity(), nn.ReLU(), nn.Linear(4, 4).requires_grad_(False)])
def test_case_R53_W_of_a_stage_without_weights_does_nothing(layer: nn.Module) -> None:  # noqa: N802
    stage = Stage({0: layer}, None)
    output = stage.forward(0, torch.ones(2, 4, requires_grad=True), None, split=True)
    (grad,) = stage.input_grad(0, [torch.ones_like(output)])
    assert grad is not None
    stage.weight_grad(0)
    assert all(w.grad is None for w in layer.parameters())


def test_the_first_stage_hands_back_nothing_but_owes_as_much() -> None:
    stage = Stage({0: nn.Embedding(3, 4), 1: nn.Linear(4, 4)}, None)
    output = stage.forward(0, torch.tensor([0, 2]), None, split=True)
    assert stage.input_grad(0, [torch.ones_like(output)]) == [None]
    assert stage.layers[0].weight.grad is stage.layers[1].weight.grad is None
    stage.weight_grad(0)
    assert [bool(row.any()) for row in stage.layers[0].weight.grad] == [True, False, True]


def test_a_gradient_that_nobody_needed_is_none() -> None:
    stage = Stage({0: nn.Linear(4, 4)}, None)
    stage.forward(0, torch.ones(2, 4, requires_grad=True), None, split=True)
    assert stage.input_grad(0, [None]) == [None]
    stage.weight_grad(0)
    assert stage.layers[0].weight.grad is None


@pytest.mark.parametrize("recompute", [False, True])
def test_a_whole_backward_pays_nothing_for_the_split(recompute: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    def cut(*arguments: Any) -> Any:
        raise AssertionError("cut")

    monkeypatch.setattr(stage_module, "cutting", cut)
    x, end = torch.ones(2, 4, requires_grad=True), End(torch.zeros(2, 4), 1.0)
    whole, split = (Stage({0: nn.Linear(4, 4)}, F.mse_loss, recompute=recompute) for _ in range(2))
    whole.forward(0, x, end)
    whole.backward(0, None)
    with pytest.raises(AssertionError, match="cut"):  # while a split one does cut: at F, or when F is run again
        [split.forward(0, x, end, split=True), split.input_grad(0, None)]


# plans with I and W on real ranks


def zb_h1(p: int, m: int) -> pp.Schedule:
    """Qi et al. 2024: warm-up as in 1F1B, then F and I by turns; W from when rank 0 would have begun with backward."""
    rows = []
    for rank in range(p):
        warm_up, row, paid = min(p - 1 - rank, m), list[str](), 0
        row += [f"{rank}F{i}" for i in range(warm_up)]
        for i in range(m):
            row += [f"{rank}F{i + warm_up}"] if i + warm_up < m else []
            row += [f"{rank}I{i}"]
            if i >= rank:
                row += [f"{rank}W{paid}"]
                paid += 1
        rows.append([*row, *(f"{rank}W{i}" for i in range(paid, m))])
    return pp.Schedule.from_rows(rows, "zb-h1 by hand")


@pytest.mark.parametrize("recompute", [False, True], ids=["", "recomputed"])
@pytest.mark.parametrize(("p", "m"), [(1, 2), (2, 1), (2, 5), (3, 2), (3, 6)])
def test_zb_h1_gives_the_unsplit_models_gradients(p: int, m: int, recompute: bool) -> None:
    inputs, targets = rows_of(2 * m + 1)
    plan = zb_h1(p, m)
    result = pp.run(plan, classifier(), inputs, targets, loss_fn=F.cross_entropy, recompute=recompute)
    assert_same(result, pp.reference_step(classifier(), inputs, targets, loss_fn=F.cross_entropy))
    assert result.peak_in_flight == pp.in_flight(plan)
    assert result.messages == 2 * (p - 1) * m


ROWS = {
    "two stages a rank": [
        "0F0 0F1 2F0 2F1 2I1 2I0 2W0 0I0 2W1 0I1 0W0 0W1",
        "1F1 1F0 3F0 3F1 3I0 3I1 3W1 1I1 1I0 3W0 1W1 1W0",
    ],
    "there and back": [
        "0F0 0F1 3F0 3I0 3F1 3I1 0I0 3W1 0I1 0W0 3W0 0W1",
        "1F0 2F0 1F1 2F1 2I0 1I0 2I1 1I1 1W0 2W0 1W1 2W1",
    ],
    "there and back, three ranks": [
        "0F0 0F1 5F0 5I0 5W0 5F1 5I1 0B0 0I1 0W1 5W1",
        "1F0 1F1 4F0 4F1 4I0 4I1 1B0 1I1 1W1 4W1 4W0",
        "2F0 3F0 2F1 3F1 3I0 2B0 3B1 2I1 2W1 3W0",
    ],
    "all on one rank": ["0F0 1F0 2F0 0F1 1F1 2F1 2I1 1I1 0I1 2B0 1I0 0B0 1W1 1W0 0W1 2W1"],
    "B for one microbatch, I and W for the other": ["0F0 0F1 0B0 0I1 0W1", "1F0 1F1 1I0 1B1 1W0"],
}


@pytest.mark.parametrize("order", ROWS)
def test_plans_with_several_stages_a_rank(order: str) -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU(inplace=True), *classifier())
    inputs, targets = rows_of(5)
    plan = pp.Schedule.from_rows(ROWS[order])
    for recompute in (False, True):
        result = pp.run(plan, model.double(), inputs, targets, loss_fn=F.cross_entropy, recompute=recompute)
        assert_same(result, pp.reference_step(model, inputs, targets, loss_fn=F.cross_entropy))


@pytest.mark.parametrize("name", pp.SCHEDULES)
def test_every_schedule_runs(name: str) -> None:
    model = nn.Sequential(*classifier(), nn.Tanh())
    inputs, targets = rows_of(9)
    plan = pp.build(name, p=2, m=4, v=2 if name in ("interleaved", "breadth-first") else None)
    result = pp.run(plan, model, inputs, targets, loss_fn=F.cross_entropy)
    assert_same(result, pp.reference_step(model, inputs, targets, loss_fn=F.cross_entropy))
    assert result.peak_in_flight == pp.in_flight(plan)


@pytest.mark.thorough
@pytest.mark.parametrize("seed", range(12))
def test_any_legal_order_of_B_or_I_and_W(seed: int) -> None:  # noqa: N802
    rng = random.Random(seed)
    plan = random_order(rng, random_homes(rng), rng.randint(1, 4))
    model = nn.Sequential(*classifier(), nn.Identity())
    inputs, targets = rows_of(2 * plan.num_microbatches + 1)
    result = pp.run(plan, model, inputs, targets, loss_fn=F.cross_entropy, recompute=seed % 3 == 0)
    assert_same(result, pp.reference_step(model, inputs, targets, loss_fn=F.cross_entropy))


class Both(nn.Module):
    """Tokens and a mask to vectors and the mask."""

    def __init__(self) -> None:
        super().__init__()
        self.rows = nn.Embedding(11, 8)

    def forward(self, given: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor, int]:
        tokens, mask = given
        return self.rows(tokens), mask, 2


class Attends(nn.Module):
    def __init__(self, checkpointed: bool = False) -> None:
        super().__init__()
        self.inner = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True)
        self.checkpointed = checkpointed

    def forward(self, given: tuple[Tensor, Tensor, int]) -> tuple[Tensor, Tensor, int]:
        x, mask, times = given
        for _ in range(times):
            if self.checkpointed:
                x = checkpoint(self.inner, x, None, mask, use_reentrant=False)
            else:
                x = self.inner(x, src_key_padding_mask=mask)
        return x, mask, times


class Recurs(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.LSTM(8, 6, batch_first=True)

    def forward(self, given: tuple[Tensor, Tensor, int]) -> tuple[Tensor, None]:
        return self.inner(given[0])[0], None


class Reads(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.logits, self.unused = nn.Linear(6, 3), nn.Parameter(torch.zeros(2))

    def forward(self, given: tuple[Tensor, None]) -> Tensor:
        return self.logits(given[0].transpose(1, 2)[..., -1])


def all_sorts() -> nn.Sequential:
    return seeded(lambda: nn.Sequential(Both(), Attends(), Attends(checkpointed=True), Recurs(), Reads()))


@pytest.mark.thorough
@pytest.mark.parametrize("p", [1, 2, 3])
def test_tuples_masks_attention_checkpoints_and_recurrent_layers(p: int) -> None:
    generator = torch.Generator().manual_seed(4)
    tokens = torch.randint(11, (7, 5), generator=generator)
    mask, targets = tokens == 0, torch.randint(3, (7,), generator=generator)
    options = {"loss_fn": F.cross_entropy}
    for recompute in (False, True):
        result = pp.run(zb_h1(p, 3), all_sorts(), (tokens, mask), targets, recompute=recompute, **options)
        assert result.grads["4.unused"] is None
        assert_same(result, pp.reference_step(all_sorts(), (tokens, mask), targets, m=3, **options))


@pytest.mark.parametrize("p", [1, 2, 3])
def test_the_small_gpt(p: int) -> None:
    model = gpt(layers=3, width=16, heads=2, vocab=20, context=6).double()
    tokens = torch.randint(20, (6, 7), generator=torch.Generator().manual_seed(4))
    arguments = (model, tokens[:, :-1], tokens[:, 1:].clone())
    result = pp.run(zb_h1(p, 3), *arguments, loss_fn=text_loss)
    assert_same(result, pp.reference_step(*arguments, loss_fn=text_loss))


def text_loss(logits: Tensor, targets: Tensor) -> Tensor:
    return F.cross_entropy(logits.flatten(0, 1), targets.flatten())


@pytest.mark.parametrize("p", [1, 2, 3])
def test_a_weight_tied_between_first_and_last_layer(p: int) -> None:
    targets = rows_of(7)[1]
    inputs = targets.flip(0)
    result = pp.run(zb_h1(p, 3), tied(), inputs, targets, loss_fn=F.cross_entropy)
    assert_same(result, pp.reference_step(tied(), inputs, targets, loss_fn=F.cross_entropy))


@pytest.mark.parametrize("frozen", [(0,), (0, 2), (2, 3, 4), (5,), range(6)], ids=str)
def test_case_R40_frozen_layers(frozen: tuple[int, ...]) -> None:  # noqa: N802
    model, (inputs, targets) = classifier(), rows_of(5)
    for number in frozen:
        model[number].requires_grad_(False)
    for recompute in (False, True):
        result = pp.run(zb_h1(3, 2), model, inputs, targets, loss_fn=F.cross_entropy, recompute=recompute)
        assert_same(result, pp.reference_step(model, inputs, targets, loss_fn=F.cross_entropy))


def test_case_R64_dropout_does_not_depend_on_the_split() -> None:  # noqa: N802
    layers = list(classifier())
    model = nn.Sequential(layers[0], nn.Dropout(0.5), *layers[1:4], nn.Dropout(0.3), *layers[4:])
    inputs, targets = rows_of(8)
    options = {"loss_fn": F.cross_entropy, "seed": 5}
    expected = pp.reference_step(model, inputs, targets, m=4, **options)
    for recompute in (False, True):
        assert_same(pp.run(zb_h1(3, 4), model, inputs, targets, recompute=recompute, **options), expected)


def test_the_gradient_leaves_when_I_is_done() -> None:  # noqa: N802
    inputs, targets = rows_of(2)
    pace = pp.Costs(forward=0.01, input_grad=0.01, weight_grad=0.4)
    plan = ["0F0 0I0 0W0", "1F0 1I0 1W0"]
    result = pp.run(plan, classifier(), inputs, targets, loss_fn=F.cross_entropy, pace=pace)
    spans = {str(span.action): span for span in result.timeline.spans}
    assert spans["0I0"].start < spans["1W0"].end - 0.2


@pytest.mark.thorough
def test_training_with_I_and_W_is_training_with_B() -> None:  # noqa: N802
    batches = [rows_of(6, seed) for seed in range(3)]
    options: dict[str, Any] = {"loss_fn": F.cross_entropy, "optimizer": torch.optim.SGD, "steps": 3, "progress": False}
    ours, theirs = (
        pp.train(plan, classifier(), batches, **options) for plan in (zb_h1(2, 3), pp.build("1f1b", p=2, m=3))
    )
    assert ours.losses == pytest.approx(theirs.losses, rel=1e-12)
    for name, value in theirs.state_dict.items():
        torch.testing.assert_close(ours.state_dict[name], value, rtol=1e-10, atol=1e-13)


# what stages on one rank hand over


LOCAL = ["0F0 1F0 1I0 1W0 0I0 0W0"]
ACROSS = ["0F0 0I0 0W0", "1F0 1I0 1W0"]


def test_a_stage_cannot_write_unnoticed_into_what_the_one_before_it_saved() -> None:
    """Tanh saves what it returns. On one rank the two stages share it, and autograd refuses, as without a pipeline;
    a message is a copy."""
    inputs, targets = rows_of(3)
    model = [nn.Linear(4, 3).double(), nn.Tanh(), nn.ReLU(inplace=True), nn.Linear(3, 3).double()]
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        pp.reference_step(model, inputs, targets, loss_fn=F.cross_entropy)
    with pytest.raises(pp.RankError, match="modified by an inplace operation"):
        pp.run(LOCAL, model, inputs, targets, loss_fn=F.cross_entropy)
    model[2] = nn.ReLU()
    result = pp.run(ACROSS, [*model[:2], nn.ReLU(inplace=True), model[3]], inputs, targets, loss_fn=F.cross_entropy)
    assert_same(result, pp.reference_step(model, inputs, targets, loss_fn=F.cross_entropy))


def test_what_is_handed_over_on_a_rank_is_not_kept() -> None:
    """So a second microbatch, after the first, needs no more room, but for its loss and its input."""
    x = torch.ones(4, 50, dtype=torch.float64)
    model = [nn.Linear(50, 50).double(), nn.Tanh()]
    rows = "0F0 1F0 1I0 0I0 1W0 0W0 0F1 1F1 1I1 0I1 1W1 0W1", "0F0 1F0 1I0 0I0 1W0 0W0"
    two, one = (
        pp.run([row], model, x[:m], x[:m], loss_fn=F.mse_loss, memory=True) for row, m in zip(rows, (2, 1), strict=True)
    )
    assert two.held_bytes == (one.held_bytes[0] + 8,)


def test_what_is_kept_from_I_to_W_is_the_input_and_the_gradient_of_each_product() -> None:  # noqa: N802
    """However much the stage kept for I: here what four layers returned. And a number: the loss."""
    model = [nn.Linear(50, 50).double(), nn.Sequential(nn.Linear(50, 50), *[nn.Tanh()] * 4).double()]
    held = []
    for m in (3, 4):
        x = torch.ones(m, 50, dtype=torch.float64)
        first = [f"0{op}{i}" for op in "FIW" for i in range(m)]
        last = [f"1{op}{i}" for i in range(m) for op in "FI"] + [f"1W{i}" for i in range(m)]
        held.append(pp.run([first, last], model, x, x, loss_fn=F.mse_loss, memory=True).held_bytes)
    assert held[1][1] - held[0][1] == 8 * (50 + 50 + 1)


class FailsAtBackward(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        raise ValueError("boom")


class Fails(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return FailsAtBackward.apply(x)


def test_a_failure_in_I_names_it() -> None:  # noqa: N802
    inputs, targets = rows_of(2)
    with pytest.raises(pp.RankError, match="boom") as caught:
        pp.run(ACROSS, [nn.Linear(4, 3).double(), Fails()], inputs, targets, loss_fn=F.cross_entropy)
    assert str(caught.value.action) == "1I0"


class Slope(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(3, 3)

    def forward(self, x: Tensor) -> Tensor:
        with torch.enable_grad():
            (grad,) = torch.autograd.grad(self.inner(x).pow(2).sum(), x, create_graph=True)
        return grad


def test_a_layer_that_cannot_be_split_is_named_and_runs_with_B() -> None:  # noqa: N802
    inputs, targets = rows_of(4)
    model = [nn.Linear(4, 3).double(), Slope().double()]
    with pytest.raises(pp.RankError, match=r"Layer 1 \(Slope\) differentiates inside its forward"):
        pp.run(ACROSS, model, inputs, targets, loss_fn=F.cross_entropy)
    result = pp.run("1f1b", model, inputs, targets, loss_fn=F.cross_entropy, p=2, m=2)
    assert_same(result, pp.reference_step(model, inputs, targets, loss_fn=F.cross_entropy))
