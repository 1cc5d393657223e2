"""Failures that people met in other runtimes, and what holds here instead; each test has its case's id."""

import copy
import functools
import math
from collections.abc import Callable, Iterable
from typing import Any

import psutil
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint
from toys import assert_same, by_value, classifier, counted, loss_sum, no_rank_starts, rows_of, tied

import ppcourse as pp
from ppcourse.runtime.prepare import cut
from ppcourse.runtime.processes import ranks
from ppcourse.runtime.processes import session as session_module
from ppcourse.runtime.processes.job import Job
from ppcourse.runtime.processes.session import Session, session
from ppcourse.runtime.stages.batch import batch_of
from ppcourse.schedules.channels import channels
from ppcourse.schedules.fewer import fewer

by_value(__name__)
pytestmark = pytest.mark.thorough

ADAM = functools.partial(torch.optim.AdamW, lr=0.05)


def longer() -> nn.Sequential:
    return nn.Sequential(*classifier(), nn.Tanh(), nn.LayerNorm(3)).double()


def trained(plan: pp.Schedule, model: nn.Module, batches: Iterable[Any], **options: Any) -> Any:
    given: dict[str, Any] = {"loss_fn": F.cross_entropy, "optimizer": ADAM, "steps": 99, "progress": False}
    return pp.train(plan, model, batches, **(given | options))


def plain_loop(model: nn.Module, batches: Iterable[Any], m: int = 1, **options: Any) -> tuple[nn.Module, list[float]]:
    """What one process does: the trained model and its losses; `m` microbatches, for statistics."""
    model = copy.deepcopy(model)
    made = options.get("optimizer", ADAM)([p for p in model.parameters() if p.requires_grad])
    losses = []
    for inputs, targets in batches:
        model.zero_grad()
        total = 0.0
        for x, y in zip(inputs.tensor_split(m), targets.tensor_split(m), strict=True):
            loss = F.cross_entropy(model(x), y) * len(x) / len(inputs)
            loss.backward()
            total += float(loss.detach())
        made.step()
        losses.append(total)
    return model, losses


def assert_trained_as(training: Any, expected: tuple[nn.Module, list[float]]) -> None:
    model, losses = expected
    assert training.losses == pytest.approx(losses, rel=1e-11)
    for name, value in model.state_dict().items():
        torch.testing.assert_close(training.state_dict[name], value, rtol=1e-9, atol=1e-12, msg=name)


# message order


class Grows(nn.Module):
    """As many columns as the row says: another length for every microbatch."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.tensor(2.0, dtype=torch.float64))

    def forward(self, x: Tensor) -> Tensor:
        return (self.weight * x / x.detach()).repeat(1, int(x[0, 0]))


class Bends(nn.Module):
    """Keeps the length, and depends on it."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.tensor(0.5, dtype=torch.float64))

    def forward(self, x: Tensor) -> Tensor:
        return (x * self.weight).cos() + x.shape[1] / 1e4


class Folds(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x.mean(1, keepdim=True)


LENGTHS = (3, 40_000, 7, 2_500, 1, 90_000, 12, 600)


def assert_lengths_may_vary(plan: pp.Schedule) -> pp.Schedule:
    model = [Grows(), *(Bends() for _ in range(plan.num_stages - 2)), Folds()]
    inputs = torch.tensor(LENGTHS[: plan.num_microbatches], dtype=torch.float64)[:, None]
    targets = torch.zeros_like(inputs)
    for turn in (0, 1):  # and in the other order
        result = pp.run(plan, model, inputs.flip(0) if turn else inputs, targets, loss_fn=F.mse_loss)
        expected = pp.reference_step(model, inputs, targets, loss_fn=F.mse_loss, m=plan.num_microbatches)
        assert_same(result, expected)
    return plan


@pytest.mark.parametrize("p", [2, 3, 4, 5])
def test_case_R02_every_microbatch_may_have_another_length(p: int) -> None:  # noqa: N802
    assert_lengths_may_vary(pp.build("zb-h1" if p % 2 else "1f1b", p, 8))


@pytest.mark.parametrize("name", ["interleaved", "breadth-first", "zb-v", "dualpipe-v"])
def test_case_R03_two_ranks_that_are_each_others_next_and_previous(name: str) -> None:  # noqa: N802
    plan = assert_lengths_may_vary(pp.build(name, 2, 4))
    ways = {(channel.source, channel.destination) for channel in channels(plan)}
    assert ways == {(0, 1), (1, 0)}


@pytest.mark.parametrize("p", [2, 4])
def test_case_R04_several_channels_between_two_ranks_at_once(p: int) -> None:  # noqa: N802
    plan = assert_lengths_may_vary(pp.build("dualpipe", p, 8))
    between = [channel for channel in channels(plan) if {channel.source, channel.destination} == {0, 1}]
    assert len(between) == 4  # both kinds, both ways


# the scale of gradients


def gradients_after(batches: list[tuple[Tensor, Tensor]], plan: pp.Schedule, model: nn.Module) -> dict[str, Any]:
    """The ranks' gradients after so many steps without an optimizer."""
    made = cut(plan, model, "uniform")
    with session(made, lambda rank: Job(plan, made.of_rank(rank), F.cross_entropy), 60.0) as steps:
        for inputs, targets in batches:
            steps.step(batch_of(inputs, targets, {}, min(plan.num_microbatches, len(inputs)), "mean", None))
        return steps.gradients()


def assert_sum_of_steps(got: dict[str, Any], batches: list[tuple[Tensor, Tensor]], model: nn.Module) -> None:
    steps = [pp.reference_step(model, *batch, loss_fn=F.cross_entropy).grads for batch in batches]
    for name, grad in got.items():
        torch.testing.assert_close(grad, sum(step[name] for step in steps), rtol=1e-10, atol=1e-13)


@pytest.mark.parametrize("plan", [("1f1b", 3, 4), ("zb-v", 2, 4), ("dualpipe", 2, 4)], ids=str)
def test_case_R22_three_steps_give_three_times_the_gradient(plan: tuple[str, int, int]) -> None:  # noqa: N802
    batches = [rows_of(9)] * 3
    got = gradients_after(batches, pp.build(*plan), classifier())
    assert_sum_of_steps(got, batches, classifier())
    once = pp.reference_step(classifier(), *batches[0], loss_fn=F.cross_entropy).grads
    for name, grad in got.items():
        torch.testing.assert_close(grad, 3 * once[name], rtol=1e-10, atol=1e-13)


@pytest.mark.parametrize("plan", [("gpipe", 3, 4), ("dualpipe", 2, 4)], ids=str)
def test_case_R25_batches_of_other_sizes_wipe_no_gradient(plan: tuple[str, int, int]) -> None:  # noqa: N802
    batches = [rows_of(rows, seed=rows) for rows in (8, 4, 3, 11)]
    assert_sum_of_steps(gradients_after(batches, pp.build(*plan), classifier()), batches, classifier())


def test_case_R25_an_evaluation_between_two_steps_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:  # noqa: N802
    batches, losses, pools = [rows_of(6, seed=seed) for seed in range(3)], [], list[ranks.Pool]()
    monkeypatch.setattr(session_module, "pool_of", lambda p: pools.append(ranks.pool_of(p)) or pools[-1])

    def evaluating() -> Iterable[Any]:
        for batch in batches:
            losses.append(pp.evaluate("gpipe", longer(), *batch, p=3, m=2, loss_fn=F.cross_entropy).loss)
            losses.append(pp.run("zb-v", longer(), *batch, p=2, m=4, loss_fn=F.cross_entropy).loss)
            yield batch

    for plan in (pp.build("1f1b", 3, 2), pp.build("1f1b", 1, 2)):
        assert_trained_as(trained(plan, longer(), evaluating()), plain_loop(longer(), batches))
    assert losses[::2] == pytest.approx(losses[1::2], rel=1e-12)
    assert {pool for pool in pools if pool.alive} <= set(ranks._pools.values())  # what was started for it has ended


LOSSES: dict[str, dict[str, Any]] = {
    "mean": {"loss_fn": F.cross_entropy},
    "sum": {"loss_fn": loss_sum, "reduction": "sum"},
    "a sum that says so": {"loss_fn": nn.CrossEntropyLoss(reduction="sum")},
    "token-weighted": {"loss_fn": F.cross_entropy, "weight": counted},
}


@pytest.mark.parametrize("plan", [("zb-h1", 3, 4), ("dualpipe", 2, 4), ("v-half", 2, 4)], ids=str)
@pytest.mark.parametrize("loss", LOSSES, ids=lambda loss: f"R23 {loss}")
def test_gradients_are_those_of_the_loss_over_the_batch(loss: str, plan: tuple[str, int, int]) -> None:
    inputs, targets = rows_of(9, ignored=2 if loss == "token-weighted" else 0)
    result = pp.run(pp.build(*plan), classifier(), inputs, targets, **LOSSES[loss])
    assert_same(result, pp.reference_step(classifier(), inputs, targets, **LOSSES[loss]))


@pytest.mark.parametrize("name", ["1f1b", "interleaved", "zb-v", "dualpipe"])
def test_case_R27_labels_travel_with_their_microbatch(name: str) -> None:  # noqa: N802
    """Labels that are rolled by one microbatch are other labels."""
    inputs, targets = rows_of(8)
    losses = set()
    for labels in (targets, targets.roll(2)):
        result = pp.run(pp.build(name, 2, 4), classifier(), inputs, labels, loss_fn=F.cross_entropy)
        assert_same(result, pp.reference_step(classifier(), inputs, labels, loss_fn=F.cross_entropy))
        losses.add(result.loss)
    assert len(losses) == 2


# frozen and unused parameters


@pytest.mark.parametrize("plan", [("1f1b", 4, 3), ("zb-h1", 4, 3), ("zb-v", 2, 4), ("dualpipe", 4, 8)], ids=str)
@pytest.mark.parametrize("frozen", [range(4), (2, 3)], ids=lambda layers: f"R40 layers {list(layers)}")
def test_what_is_frozen_stays_and_the_rest_trains(frozen: Iterable[int], plan: tuple[str, int, int]) -> None:
    model = longer()
    for number in frozen:
        model[number].requires_grad_(False)
    made, batches = pp.build(*plan), [rows_of(9)] * 2
    result = pp.run(made, model, *batches[0], loss_fn=F.cross_entropy)
    assert_same(result, pp.reference_step(model, *batches[0], loss_fn=F.cross_entropy))
    assert all((result.grads[name] is None) == (not p.requires_grad) for name, p in model.named_parameters())
    assert_trained_as(trained(made, model, batches), plain_loop(model, batches))


def test_case_R40_no_gradient_is_sent_to_what_is_frozen() -> None:  # noqa: N802
    """A message still tells the stage that its backward may go on, but has no numbers in it."""
    model = nn.Sequential(nn.Linear(4, 500), nn.Linear(500, 3)).double()
    inputs, targets = rows_of(40)
    whole, frozen = (
        pp.run("1f1b", layers, inputs, targets, p=2, m=1, loss_fn=F.cross_entropy).message_bytes
        for layers in (model, nn.Sequential(copy.deepcopy(model[0]).requires_grad_(False), model[1]))
    )
    assert whole - frozen == pytest.approx(40 * 500 * 8, rel=0.02)


class Checkpoints(nn.Module):
    """Recomputes itself, though its input needs no gradient."""

    def __init__(self, inner: nn.Module, reentrant: bool = False) -> None:
        super().__init__()
        self.inner, self.reentrant = inner, reentrant

    def forward(self, x: Tensor) -> Tensor:
        return checkpoint(self.inner, x, use_reentrant=self.reentrant)


@pytest.mark.parametrize("recompute", [False, True], ids=["R42 checkpoint", "R42 checkpoint and recompute"])
@pytest.mark.parametrize("plan", [("1f1b", 2, 3), ("zb-h1", 2, 3), ("dualpipe", 2, 4)], ids=str)
def test_the_first_stage_trains_under_a_checkpoint(plan: tuple[str, int, int], recompute: bool) -> None:
    targets = rows_of(9)[1]
    model = nn.Sequential(*(Checkpoints(layer) if number in (0, 2) else layer for number, layer in enumerate(tied())))
    result = pp.run(pp.build(*plan), model, targets.flip(0), targets, loss_fn=F.cross_entropy, recompute=recompute)
    assert result.grads["0.inner.weight"] is not None
    assert_same(result, pp.reference_step(model, targets.flip(0), targets, loss_fn=F.cross_entropy))


@pytest.mark.parametrize("recompute", [False, True], ids=["R48 reentrant", "R48 reentrant and recompute"])
@pytest.mark.parametrize("plan", [("1f1b", 3, 4), ("zb-h1", 3, 4), ("zb-v", 1, 2)], ids=str)
def test_stages_after_the_first_may_have_reentrant_checkpoints(plan: tuple[str, int, int], recompute: bool) -> None:
    model = nn.Sequential(*(Checkpoints(layer, True) if number else layer for number, layer in enumerate(longer())))
    inputs, targets = rows_of(9)
    result = pp.run(pp.build(*plan), model, inputs, targets, loss_fn=F.cross_entropy, recompute=recompute)
    assert_same(result, pp.reference_step(model, inputs, targets, loss_fn=F.cross_entropy))


class WithUnused(nn.Linear):
    def __init__(self) -> None:
        super().__init__(4, 4, dtype=torch.float64)
        self.unused = nn.Parameter(torch.ones(3, dtype=torch.float64))


@pytest.mark.parametrize("plan", [("gpipe", 3, 2), ("zb-h2", 3, 4), ("dualpipe-v", 1, 2)], ids=str)
def test_case_R46_what_is_not_used_has_no_gradient_and_no_decay(plan: tuple[str, int, int]) -> None:  # noqa: N802
    model = nn.Sequential(nn.Linear(4, 4), WithUnused(), nn.Linear(4, 3)).double()
    inputs, targets = rows_of(8)
    result = pp.run(pp.build(*plan), model, inputs, targets, loss_fn=F.cross_entropy)
    assert result.grads["1.unused"] is None
    assert_same(result, pp.reference_step(model, inputs, targets, loss_fn=F.cross_entropy))
    decays = functools.partial(torch.optim.SGD, lr=0.1, weight_decay=0.5)
    training = trained(pp.build(*plan), model, [(inputs, targets)], optimizer=decays, clip_norm=0.01)
    assert torch.equal(training.state_dict["1.unused"], model[1].unused)
    norm = math.sqrt(sum(float(grad.pow(2).sum()) for grad in result.grads.values() if grad is not None))
    assert training.norms == pytest.approx([norm], rel=1e-10)


# memory


class Measures(nn.Module):
    """Notes in a buffer the most memory that its process has when it runs."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("most", torch.zeros((), dtype=torch.int64))
        self.register_buffer("least", torch.full((), 2**62))

    def forward(self, x: Tensor) -> Tensor:
        now = psutil.Process().memory_info().rss
        self.most.clamp_(min=now)
        self.least.clamp_(max=now)
        return x


def test_case_R57_what_is_sent_is_freed_once_it_is_sent() -> None:  # noqa: N802
    """A hundred megabytes go each way, two at a time; no rank ever has half of it."""
    m, size = 48, 2 * 2**20
    model = [nn.Sequential(Measures(), Grows()), nn.Sequential(Folds(), Measures())]
    x = torch.full((m, 1), size // 8, dtype=torch.float64)
    training = trained(pp.build("1f1b", 2, m), model, [(x, x)], loss_fn=F.mse_loss)
    assert training.message_bytes > 2 * m * size
    for number in ("0.0", "1.1"):
        grown = training.state_dict[f"{number}.most"] - training.state_dict[f"{number}.least"]
        assert grown < m * size / 2


@pytest.mark.parametrize(("name", "peak"), [("1f1b", [4, 3, 2, 1]), ("zb-h1", None), ("zb-v", None), ("v-min", None)])
def test_case_R57_the_peak_does_not_depend_on_the_number_of_microbatches(name: str, peak: Any) -> None:  # noqa: N802
    wide = [nn.Linear(64, 64).double(), nn.Tanh(), nn.Linear(64, 64).double(), nn.Tanh()] * 2
    held = []
    for m in (10, 14):
        x = torch.ones(4 * m, 64, dtype=torch.float64)
        result = pp.run(name, wide, x, x, p=4, m=m, loss_fn=F.mse_loss, memory=True)
        held.append(result.held_bytes)
        if peak:
            assert result.peak_in_flight == tuple(peak)
    for less, more in zip(*held, strict=True):
        assert more - less <= 4 * 8  # the losses of four microbatches


def test_case_R59_what_is_handed_on_as_a_view_is_freed_too() -> None:  # noqa: N802
    """The view is a tenth of what it is a view of, and neither is needed any more."""
    model = [nn.Sequential(nn.Linear(10, 1000), Slices()).double(), nn.Linear(100, 10).double()]
    held = []
    for m in (3, 6):
        x = torch.ones(m, 10, dtype=torch.float64)
        result = pp.run("gpipe", model, x, x, p=2, m=m, loss_fn=F.mse_loss, memory=True)
        assert_same(result, pp.reference_step(model, x, x, loss_fn=F.mse_loss, m=m))
        held.append(result.held_bytes[0])
    assert held[1] - held[0] < 3 * 8 * 100


class Slices(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x[:, ::10]


def first_number(output: Tensor, target: Tensor) -> Tensor:
    return output[0, 0]  # a view of all of it


@pytest.mark.parametrize("name", ["1f1b", "zb-h1"])
def test_case_R60_losses_and_outputs_are_not_kept(name: str) -> None:  # noqa: N802
    """One microbatch more costs the last rank eight bytes: a loss."""
    model = [nn.Linear(4, 4).double(), nn.Linear(4, 5000).double()]
    held = []
    for m in (4, 5):
        x = torch.ones(m, 4, dtype=torch.float64)
        held.append(pp.run(name, model, x, x, p=2, m=m, loss_fn=first_number, memory=True).held_bytes[1])
    assert held[1] - held[0] == 8


# random numbers and statistics


def forgetful() -> nn.Sequential:
    layers = list(longer())
    return nn.Sequential(nn.Dropout(0.2), *layers[:2], nn.Dropout(0.5), *layers[2:5], nn.Dropout(0.3), *layers[5:])


RANDOM = [("gpipe", 1, 4), ("naive", 2, 4), ("zb-h1", 3, 4), ("interleaved", 2, 4), ("zb-v", 2, 4), ("dualpipe", 2, 4)]


@pytest.mark.parametrize("recompute", [False, True], ids=["R64", "R66 recompute"])
@pytest.mark.parametrize("plan", RANDOM, ids=str)
def test_a_seed_gives_the_same_masks(plan: tuple[str, int, int], recompute: bool) -> None:
    inputs, targets = rows_of(9)
    options: dict[str, Any] = {"loss_fn": F.cross_entropy, "seed": 11}
    result = pp.run(pp.build(*plan), forgetful(), inputs, targets, recompute=recompute, **options)
    expected = pp.reference_step(forgetful(), inputs, targets, m=4, **options)
    assert_same(result, expected)
    assert (
        abs(pp.reference_step(forgetful(), inputs, targets, m=4, loss_fn=F.cross_entropy).loss - expected.loss) > 1e-6
    )


def test_case_R64_without_random_numbers_no_m_changes_anything() -> None:  # noqa: N802
    inputs, targets = rows_of(8)
    expected = pp.reference_step(longer(), inputs, targets, loss_fn=F.cross_entropy)
    for m in (1, 3, 4, 5, 8):
        assert_same(pp.run("zb-h1", longer(), inputs, targets, p=2, m=m, loss_fn=F.cross_entropy), expected)


def with_statistics() -> nn.Sequential:
    layers = list(longer())
    layers.insert(1, nn.BatchNorm1d(5))
    layers.insert(5, nn.BatchNorm1d(7, momentum=None))
    return nn.Sequential(*layers).double()


ONE_HOME = [name for name in pp.SCHEDULES if name != "dualpipe"]


@pytest.mark.parametrize("name", ONE_HOME)
def test_statistics_see_every_microbatch_once_and_nothing_else(name: str) -> None:
    batches = [rows_of(rows, seed=rows) for rows in (8, 11)]
    options: dict[str, Any] = {"optimizer": functools.partial(torch.optim.SGD, lr=0.5)}  # Adam would train on round-off
    expected = plain_loop(with_statistics(), batches, m=4, **options)
    training = trained(pp.build(name, 2, 4), with_statistics(), batches, recompute=len(name) % 2 == 0, **options)
    assert_trained_as(training, expected)
    assert training.state_dict["1.num_batches_tracked"] == 8


LIVES_TWICE: dict[str, tuple[Callable[[], Any], Callable[[], list[nn.Module]], str]] = {
    "a stage": (
        lambda: pp.build("dualpipe", 2, 4),
        lambda: list(with_statistics()),
        r"Layer 1 \(BatchNorm1d\) .* 0 and 1",
    ),
    "a layer that stands twice": (
        lambda: pp.build("gpipe", 2, 2),
        lambda: [norm := nn.BatchNorm1d(4).double(), nn.Linear(4, 4).double(), norm, nn.Linear(4, 3).double()],
        r"Layer 0 \(BatchNorm1d\) .* ranks 0 and 1",
    ),
}


@pytest.mark.parametrize("case", LIVES_TWICE)
def test_statistics_on_two_ranks_are_refused_before_one_starts(case: str, monkeypatch: pytest.MonkeyPatch) -> None:
    plan, model, sentence = LIVES_TWICE[case]
    with no_rank_starts(monkeypatch):
        for step in (
            lambda: pp.run(plan(), model(), *rows_of(8), loss_fn=F.cross_entropy),
            lambda: trained(plan(), model(), [rows_of(8)]),
        ):
            with pytest.raises(ValueError, match=sentence + r", and each copy would see some of the microbatches only"):
                step()


class Counts(nn.Module):
    """Statistics that nobody can know of before it runs."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("seen", torch.zeros(()))

    def forward(self, x: Tensor) -> Tensor:
        if self.training:
            self.seen += len(x)
        return x


@pytest.mark.parametrize("recompute", [False, True])
def test_other_statistics_on_two_ranks_end_the_step(recompute: bool) -> None:
    model = [*classifier(), Counts()]
    with pytest.raises(pp.RankError, match=r"Layer 6 \(Counts\) changes its 'seen' in forward, but another rank has"):
        pp.run(pp.build("dualpipe", 2, 4), model, *rows_of(8), loss_fn=F.cross_entropy, recompute=recompute)


def test_statistics_that_rest_may_live_on_two_ranks() -> None:
    inputs, targets = rows_of(9)
    model, plan = with_statistics(), pp.build("dualpipe", 2, 4)
    model(inputs)
    for module in model.modules():
        module.train(not isinstance(module, nn.BatchNorm1d))
    result = pp.run(plan, model, inputs, targets, loss_fn=F.cross_entropy)
    assert_same(result, pp.reference_step(model, inputs, targets, loss_fn=F.cross_entropy))
    outputs = pp.evaluate(plan, model.train(), inputs).outputs
    torch.testing.assert_close(outputs, model.eval()(inputs).detach(), rtol=1e-12, atol=1e-12)


# training and evaluation in every placement


TRAINS = [("zb-h1", 3, 4), ("zb-v", 2, 4), ("dualpipe", 2, 4), ("dualpipe", 4, 8), ("zb-auto", 2, 4)]


@pytest.mark.parametrize("plan", TRAINS, ids=str)
def test_training_is_a_loop_in_one_process(plan: tuple[str, int, int]) -> None:
    batches = [rows_of(rows, seed=rows) for rows in (9, 12, 8)]
    assert_trained_as(trained(pp.build(*plan), longer(), batches), plain_loop(longer(), batches))


def test_a_tied_weight_trains_where_its_stages_live_twice() -> None:
    targets = [rows_of(rows, seed=rows)[1] for rows in (9, 12)]
    batches = [(target.flip(0), target) for target in targets]
    training = trained(pp.build("dualpipe", 4, 8), tied(), batches)
    assert_trained_as(training, plain_loop(tied(), batches))
    assert torch.equal(training.state_dict["0.weight"], training.state_dict["3.weight"])


def test_the_copies_of_a_stage_stay_equal_to_the_last_bit(monkeypatch: pytest.MonkeyPatch) -> None:
    states, ask = list[dict[str, Tensor]](), Session.ask

    def listening(self: Session, name: str) -> list[Any]:
        answers = ask(self, name)
        states.extend(answers if name == "state" else [])
        return answers

    monkeypatch.setattr(session_module.Session, "ask", listening)
    trained(pp.build("dualpipe", 4, 8), longer(), [rows_of(17, seed=seed) for seed in range(3)], clip_norm=0.3)
    names = set(longer().state_dict())
    for name in names:
        one, other = (state[name] for state in states if name in state)
        assert torch.equal(one, other)
        assert not torch.equal(one, longer().state_dict()[name])
    assert len(states) == 4


@pytest.mark.parametrize("name", pp.SCHEDULES)
def test_evaluation_follows_every_schedule(name: str) -> None:
    inputs, targets = rows_of(9)
    model = with_statistics()
    model(inputs)
    result = pp.evaluate(pp.build(name, 2, 4), model, inputs, targets, loss_fn=F.cross_entropy)
    expected = model.eval()(inputs).detach()
    torch.testing.assert_close(result.outputs, expected, rtol=1e-12, atol=1e-12)
    assert result.loss == pytest.approx(float(F.cross_entropy(expected, targets)), rel=1e-12)


# plans for fewer microbatches


@pytest.mark.parametrize("name", pp.SCHEDULES)
def test_what_is_left_of_a_plan_is_legal(name: str) -> None:
    plan = pp.build(name, 4, 8)
    for m in range(1, 9):
        left = fewer(plan, m)
        pp.check(left)
        assert left.num_microbatches == m
        for old, new in zip(plan.rows, left.rows, strict=True):
            assert [action for action in old if action.microbatch < m] == list(new)
        for rank, at in left.overlapped:
            before = plan.rows[rank].index(left.rows[rank][at])
            assert (rank, before) in plan.overlapped
            assert plan.rows[rank][before + 1] == left.rows[rank][at + 1]
    assert fewer(plan, 8) == plan
