"""Loss and gradients of every schedule are those of the unsplit model, whatever the cut, the batch or the order."""

import contextlib
import itertools

import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from toys import SCHEDULES, assert_same, by_value, classifier, counted, loss_sum, rows_of, tied

import ppcourse as pp
from ppcourse.schedules.channels import channels

by_value(__name__)

UNEVEN = {1: (6,), 2: (5, 1), 3: (1, 2, 3), 4: (2, 1, 1, 2)}
LOSSES = {
    "mean": {"loss_fn": F.cross_entropy},
    "sum": {"loss_fn": loss_sum, "reduction": "sum"},
    "weighted": {"loss_fn": F.cross_entropy, "weight": counted},
}
GRID = list(itertools.product(("gpipe", "1f1b"), range(1, 5), range(1, 9)))


# the model's sizes are the test's own; each case draws a loss, a number of rows and a partition


@pytest.mark.thorough
@pytest.mark.parametrize(("name", "p", "m"), GRID)
def test_equal_the_unsplit_models(name: str, p: int, m: int) -> None:
    case = p + m
    kind = list(LOSSES)[case % 3]
    rows = m if case % 4 == 0 else 2 * m + 1
    inputs, targets = rows_of(rows, ignored=1 if kind == "weighted" and rows > m else 0)
    partition = UNEVEN[p] if case % 2 else "uniform"
    result = pp.run(name, classifier(), inputs, targets, p=p, m=m, partition=partition, **LOSSES[kind])
    assert_same(result, pp.reference_step(classifier(), inputs, targets, **LOSSES[kind]))


@pytest.mark.parametrize(("p", "m"), [(1, 3), (2, 1), (3, 4), (4, 2)])
def test_equal_the_unsplit_models_for_naive_too(p: int, m: int) -> None:
    inputs, targets = rows_of(2 * m + 1)
    result = pp.run("naive", classifier(), inputs, targets, p=p, m=m, loss_fn=F.cross_entropy)
    assert_same(result, pp.reference_step(classifier(), inputs, targets, loss_fn=F.cross_entropy))


def legal(name: str, p: int) -> list[int]:
    """The numbers of microbatches, up to 8, that a schedule can have."""
    found = []
    for m in range(1, 9):
        with contextlib.suppress(ValueError):
            found.append(pp.build(name, p, m).num_microbatches)
    return found


SIZES = {(name, p): ms for name, p in itertools.product(pp.SCHEDULES, (2, 3, 4)) if (ms := legal(name, p))}
SAMPLE = [(name, p, ms[(5 * case + 2 * p) % len(ms)]) for case, ((name, p), ms) in enumerate(SIZES.items())]


def longer() -> nn.Sequential:
    """Eight layers, enough for two stages on each of four ranks."""
    return nn.Sequential(*classifier(), nn.Tanh(), nn.LayerNorm(3)).double()


def assert_as_unsplit(name: str, p: int, m: int, rows: int, kind: str, recompute: bool) -> None:
    inputs, targets = rows_of(rows, seed=m, ignored=1 if kind == "weighted" and rows > m else 0)
    plan = pp.build(name, p, m)
    result = pp.run(plan, longer(), inputs, targets, recompute=recompute, **LOSSES[kind])
    assert_same(result, pp.reference_step(longer(), inputs, targets, **LOSSES[kind]))
    assert result.peak_in_flight == pytest.approx(pp.in_flight(plan))


@pytest.mark.parametrize(("name", "p", "m"), SAMPLE)
def test_those_of_every_schedule_are_the_unsplit_models(name: str, p: int, m: int) -> None:
    rows = m if m % 3 == 0 else 2 * m + 1
    assert_as_unsplit(name, p, m, rows, list(LOSSES)[(p + m) % 3], recompute=(p * m) % 4 == 0)


def test_no_schedule_is_missing_from_the_sample() -> None:
    assert {name for name, _, _ in SAMPLE} == set(pp.SCHEDULES)
    assert len(SAMPLE) >= 3 * len(pp.SCHEDULES) - 1  # dualpipe has no plan for three ranks


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize(("name", "p"), SIZES)
def test_those_of_every_schedule_for_every_size(name: str, p: int) -> None:
    for m, kind, recompute in itertools.product(SIZES[name, p], LOSSES, (False, True)):
        assert_as_unsplit(name, p, m, 2 * m + 1, kind, recompute)


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize(("name", "p"), list(itertools.product(SCHEDULES, range(1, 5))))
def test_equal_the_unsplit_models_for_every_loss_and_number_of_rows(name: str, p: int) -> None:
    for m, kind, partition in itertools.product(range(1, 9), LOSSES, ("uniform", UNEVEN[p])):
        for rows in sorted({m, 2 * m, 3 * m - 1, 3 * m + 1}):
            inputs, targets = rows_of(rows, ignored=1 if kind == "weighted" and rows > m else 0)
            result = pp.run(name, classifier(), inputs, targets, p=p, m=m, partition=partition, **LOSSES[kind])
            assert_same(result, pp.reference_step(classifier(), inputs, targets, **LOSSES[kind]))


@pytest.mark.parametrize(("p", "m"), [(2, 1), (3, 2), (4, 1), (4, 3), (8, 1)])
def test_case_R11_fewer_microbatches_than_ranks_run(p: int, m: int) -> None:  # noqa: N802
    model = [*classifier(), nn.Identity(), nn.Tanh()]
    inputs, targets = rows_of(5)
    result = pp.run("1f1b", model, inputs, targets, p=p, m=m, loss_fn=F.cross_entropy)
    assert_same(result, pp.reference_step(model, inputs, targets, loss_fn=F.cross_entropy))


def alone_loss(logits: Tensor, targets: Tensor) -> Tensor:
    if dist.is_initialized():
        raise AssertionError("one rank needs no process group")
    return F.cross_entropy(logits, targets)


@pytest.mark.parametrize("name", SCHEDULES)
def test_case_R15_one_rank_runs_without_a_process_group(name: str) -> None:  # noqa: N802
    inputs, targets = rows_of(6)
    result = pp.run(name, classifier(), inputs, targets, p=1, m=3, loss_fn=alone_loss)
    assert_same(result, pp.reference_step(classifier(), inputs, targets, loss_fn=F.cross_entropy))
    assert result.messages == 0


@pytest.mark.parametrize("p", [1, 2])
def test_case_R18_a_mean_over_uneven_microbatches_is_the_mean_over_the_batch(p: int) -> None:  # noqa: N802
    inputs, targets = rows_of(7)  # microbatches of 2, 2, 2 and 1
    result = pp.run("gpipe", classifier(), inputs, targets, p=p, m=4, loss_fn=F.cross_entropy)
    assert_same(result, pp.reference_step(classifier(), inputs, targets, loss_fn=F.cross_entropy))


def test_a_microbatch_whose_targets_all_count_nothing_adds_nothing() -> None:
    inputs, targets = rows_of(6, ignored=3)  # the last of three microbatches has no target that counts
    options = {"loss_fn": F.cross_entropy, "weight": counted}
    result = pp.run("1f1b", classifier(), inputs, targets, p=2, m=3, **options)
    assert_same(result, pp.reference_step(classifier(), inputs, targets, **options))


# what crosses a cut


class Spread(nn.Module):
    """A tensor to a tuple in which two places have no gradient and one is a plain number."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(4, 6).double()

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor, int]:
        return self.inner(x), torch.arange(6).expand(len(x), 6), x[:, :1] > 0, 3


class Between(nn.Module):
    """Uses every place, hands on a dictionary inside a tuple, and one tensor twice."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.linspace(1, 2, 6, dtype=torch.float64))

    def forward(self, given: tuple[Tensor, Tensor, Tensor, int]) -> tuple[Tensor, dict[str, Tensor], Tensor]:
        x, places, mask, number = given
        x = torch.where(mask, x * self.scale, x / number) + places
        return x, {"mask": mask, "half": x / 2}, x


class Gather(nn.Module):
    def forward(self, given: tuple[Tensor, dict[str, Tensor], Tensor]) -> Tensor:
        x, more, again = given
        return (x + more["half"] * more["mask"])[:, :3] * again[:, 3:]


def test_tuples_with_integers_and_masks_cross_a_cut() -> None:
    inputs, targets = rows_of(7)
    model = [Spread(), Between(), Gather(), nn.Identity()]
    for name, p in (("gpipe", 3), ("1f1b", 4)):
        result = pp.run(name, model, inputs, targets, p=p, m=3, loss_fn=F.cross_entropy)
        assert_same(result, pp.reference_step(model, inputs, targets, loss_fn=F.cross_entropy))


class Turned(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(4, 4).double()

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        x = self.inner(x)
        return x.unsqueeze(2).expand(-1, -1, 2).transpose(1, 2), x[:, ::2]


class TurnedBack(nn.Module):
    def forward(self, given: tuple[Tensor, Tensor]) -> Tensor:
        turned, slice_ = given
        return turned.sum(1)[:, :3] * slice_.sum(1, keepdim=True)


def test_views_that_are_not_contiguous_cross_a_cut() -> None:
    inputs, targets = rows_of(5)
    model = [Turned(), TurnedBack()]
    result = pp.run("1f1b", model, inputs, targets, p=2, m=2, loss_fn=F.cross_entropy)
    assert_same(result, pp.reference_step(model, inputs, targets, loss_fn=F.cross_entropy))


class Grow(nn.Module):
    """Hands on as many columns as the row says."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.tensor(2.0, dtype=torch.float64))

    def forward(self, x: Tensor) -> Tensor:
        return (self.weight * x / x.detach()).repeat(1, int(x[0, 0]))


class Fold(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x.mean(1, keepdim=True)


@pytest.mark.parametrize("name", ["gpipe", "1f1b"])
@pytest.mark.parametrize(
    "columns",
    [
        [1, 3_000, 3_000, 8_000, 5, 20_000],  # from smaller than what the first receives make room for
        [600_000, 1, 1, 2, 500_000, 1],  # 4.8 MB, then almost nothing
    ],
    ids=["growing", "shrinking"],
)
def test_messages_of_any_size_follow_each_other(name: str, columns: list[int]) -> None:
    inputs = torch.tensor(columns, dtype=torch.float64).unsqueeze(1)
    model, targets = [Grow(), nn.Identity(), Fold()], torch.zeros(6, 1, dtype=torch.float64)
    result = pp.run(name, model, inputs, targets, p=3, m=6, loss_fn=F.mse_loss)
    expected = pp.reference_step(model, inputs, targets, loss_fn=F.mse_loss, m=6)
    assert_same(result, expected)
    assert result.message_bytes > 4 * 8 * sum(columns)  # two cuts, there and back


# who has a gradient


class WithUnused(nn.Linear):
    def __init__(self) -> None:
        super().__init__(4, 4)
        self.unused = nn.Parameter(torch.zeros(3))


def test_a_parameter_that_is_not_used_has_no_gradient() -> None:
    inputs, targets = rows_of(4)
    model = nn.Sequential(nn.Linear(4, 4), WithUnused(), nn.Linear(4, 3)).double()
    result = pp.run("gpipe", model, inputs, targets, p=3, m=2, loss_fn=F.cross_entropy)
    assert result.grads["1.unused"] is None
    assert_same(result, pp.reference_step(model, inputs, targets, loss_fn=F.cross_entropy))


@pytest.mark.parametrize("frozen", [(0,), (0, 2), (2, 3, 4), (5,)], ids=str)
def test_frozen_layers_have_no_gradient_and_the_others_do(frozen: tuple[int, ...]) -> None:
    inputs, targets = rows_of(5)
    model = classifier()
    for number in frozen:
        model[number].requires_grad_(False)
    for recompute in (False, True):
        result = pp.run("1f1b", model, inputs, targets, p=4, m=2, loss_fn=F.cross_entropy, recompute=recompute)
        assert all(result.grads[f"{number}.weight"] is None for number in frozen if number != 4)
        assert_same(result, pp.reference_step(model, inputs, targets, loss_fn=F.cross_entropy))


def test_a_model_in_which_nothing_needs_a_gradient_runs() -> None:
    inputs, targets = rows_of(4)
    model = classifier().requires_grad_(False)
    result = pp.run("1f1b", model, inputs, targets, p=3, m=2, loss_fn=F.cross_entropy)
    assert not any(result.grads.values())
    assert_same(result, pp.reference_step(model, inputs, targets, loss_fn=F.cross_entropy))


@pytest.mark.parametrize("p", [1, 2, 4])
def test_a_weight_tied_between_first_and_last_layer_has_the_sum_of_its_copies(p: int) -> None:
    targets = rows_of(7)[1]
    inputs = targets.flip(0)
    result = pp.run("1f1b", tied(), inputs, targets, p=p, m=3, loss_fn=F.cross_entropy)
    assert list(result.grads) == ["0.weight", "1.weight", "1.bias"]
    assert_same(result, pp.reference_step(tied(), inputs, targets, loss_fn=F.cross_entropy))


def test_one_layer_may_stand_in_two_places() -> None:
    inputs, targets = rows_of(5)
    shared = nn.Linear(4, 4).double()
    model = [shared, nn.Tanh(), shared, nn.Linear(4, 3).double(), nn.Tanh()]
    result = pp.run("gpipe", model, inputs, targets, p=3, m=2, loss_fn=F.cross_entropy)
    assert_same(result, pp.reference_step(model, inputs, targets, loss_fn=F.cross_entropy))


@pytest.mark.parametrize("place", [0, 1, 2])
def test_a_stage_without_weights_hands_gradients_back(place: int) -> None:
    inputs, targets = rows_of(4)
    model: list[nn.Module] = [nn.Linear(4, 3).double(), nn.Linear(3, 3).double()]
    model.insert(place, nn.Identity())
    result = pp.run("1f1b", model, inputs, targets, p=3, m=2, loss_fn=F.cross_entropy)
    assert_same(result, pp.reference_step(model, inputs, targets, loss_fn=F.cross_entropy))


# random numbers, and recomputing


def forgetful() -> nn.Sequential:
    layers = list(classifier())
    return nn.Sequential(layers[0], nn.Dropout(0.5), *layers[1:4], nn.Dropout(0.3), *layers[4:])


def test_dropout_depends_on_the_seed_and_not_on_the_plan() -> None:
    inputs, targets = rows_of(8)
    expected = pp.reference_step(forgetful(), inputs, targets, loss_fn=F.cross_entropy, m=4, seed=5)
    for name, p, recompute in (("naive", 1, False), ("gpipe", 2, True), ("1f1b", 4, False), ("1f1b", 3, True)):
        result = pp.run(
            name,
            forgetful(),
            inputs,
            targets,
            p=p,
            m=4,
            loss_fn=F.cross_entropy,
            seed=5,
            recompute=recompute,
        )
        assert_same(result, expected)
    other = pp.run("gpipe", forgetful(), inputs, targets, p=2, m=4, loss_fn=F.cross_entropy, seed=6)
    assert abs(other.loss - expected.loss) > 1e-6


def test_each_microbatch_draws_its_own_random_numbers() -> None:
    inputs, targets = torch.ones(4, 4, dtype=torch.float64), torch.zeros(4, dtype=torch.int64)
    outputs: list[float] = [
        pp.run("gpipe", forgetful(), inputs, targets, p=2, m=m, loss_fn=F.cross_entropy).loss for m in (1, 4)
    ]
    assert abs(outputs[0] - outputs[1]) > 1e-6


@pytest.mark.parametrize("name", ["gpipe", "1f1b"])
def test_recomputing_changes_no_gradient(name: str) -> None:
    inputs, targets = rows_of(7)
    result = pp.run(name, classifier(), inputs, targets, p=3, m=3, loss_fn=F.cross_entropy, recompute=True)
    assert_same(result, pp.reference_step(classifier(), inputs, targets, loss_fn=F.cross_entropy))


# what stays as it was


def test_the_callers_model_and_random_numbers_stay_as_they_were() -> None:
    inputs, targets = rows_of(6)
    model = forgetful().eval()
    model[0].requires_grad_(False)
    for parameter in model[2:].parameters():
        parameter.grad = torch.ones_like(parameter)
    model.append(nn.BatchNorm1d(3).double())
    before = {name: value.clone() for name, value in model.state_dict().items()}
    wanted = [parameter.requires_grad for parameter in model.parameters()]
    state = torch.get_rng_state()

    pp.run("1f1b", model, inputs, targets, p=3, m=2, loss_fn=F.cross_entropy)
    pp.reference_step(model, inputs, targets, loss_fn=F.cross_entropy, m=2)

    assert torch.equal(torch.get_rng_state(), state)
    assert [parameter.requires_grad for parameter in model.parameters()] == wanted
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert model[0].weight.grad is None
    assert all(torch.equal(p.grad, torch.ones_like(p)) for p in model[3:7].parameters())
    assert not any(module.training for module in model[:7])


def test_gradients_of_the_caller_do_not_leak_into_the_result() -> None:
    inputs, targets = rows_of(4)
    model = classifier()
    expected = pp.reference_step(model, inputs, targets, loss_fn=F.cross_entropy)
    for parameter in model.parameters():
        parameter.grad = torch.full_like(parameter, 100)
    assert_same(pp.run("gpipe", model, inputs, targets, p=2, m=2, loss_fn=F.cross_entropy), expected)
    assert_same(pp.reference_step(model, inputs, targets, loss_fn=F.cross_entropy), expected)


# orders and placements that nobody would write down

ORDERS = {
    "last microbatch first": [
        "0F0 0F1 0F2 0F3 0B0 0B1 0B2 0B3",
        "1F3 1F2 1F1 1F0 1B0 1B3 1B1 1B2",
    ],
    "backward in reverse": [
        "0F0 0F1 0F2 0B0 0B1 0B2",
        "1F0 1F1 1F2 1B2 1B0 1B1",
        "2F2 2F0 2F1 2B1 2B2 2B0",
    ],
    "two stages a rank": [
        "0F0 0F1 2F0 2F1 2B1 2B0 0B0 0B1",
        "1F1 1F0 3F0 3F1 3B0 3B1 1B1 1B0",
    ],
    "there and back": [
        "0F0 0F1 3F0 3B0 3F1 3B1 0B0 0B1",
        "1F0 2F0 1F1 2F1 2B0 1B0 2B1 1B1",
    ],
    "all on one rank": ["0F0 1F0 0F1 1F1 1B1 1B0 0B0 0B1"],
}


@pytest.mark.parametrize("order", ORDERS)
def test_every_legal_order_gives_the_same_gradients(order: str) -> None:
    plan = pp.Schedule.from_rows(ORDERS[order])
    inputs, targets = rows_of(2 * plan.num_microbatches + 1)
    result = pp.run(plan, classifier(), inputs, targets, loss_fn=F.cross_entropy)
    assert_same(result, pp.reference_step(classifier(), inputs, targets, loss_fn=F.cross_entropy))


def test_large_messages_may_be_used_in_another_order_than_they_are_sent() -> None:
    plan = pp.Schedule.from_rows(ORDERS["last microbatch first"])
    assert max(traffic.window for traffic in channels(plan).values()) == 4
    inputs = torch.tensor([[3.0], [40_000], [9_000], [70_000]], dtype=torch.float64)
    model, targets = [Grow(), Fold()], torch.zeros(4, 1, dtype=torch.float64)
    result = pp.run(plan, model, inputs, targets, loss_fn=F.mse_loss)
    assert_same(result, pp.reference_step(model, inputs, targets, loss_fn=F.mse_loss, m=4))


def test_the_messages_of_a_run_are_counted() -> None:
    inputs, targets = rows_of(8)
    result = pp.run("1f1b", classifier(), inputs, targets, p=4, m=8, loss_fn=F.cross_entropy)
    assert result.messages == 2 * 3 * 8


def test_the_peak_of_a_run_is_what_the_plan_says() -> None:
    inputs, targets = rows_of(8)
    for name, peak in (("gpipe", (8, 8, 8, 8)), ("1f1b", (4, 3, 2, 1)), ("naive", (1, 1, 1, 1))):
        plan = pp.build(name, 4, 8)
        result = pp.run(plan, classifier(), inputs, targets, loss_fn=F.cross_entropy)
        assert result.peak_in_flight == peak == pp.in_flight(plan)
