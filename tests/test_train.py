"""Training on ranks is training: the same losses, norms and weights as a loop in one process."""

import copy
import functools
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from toys import by_value, classifier, counted, no_rank_starts, rows_of, tied

import ppcourse as pp

by_value(__name__)
pytestmark = pytest.mark.thorough

OPTIMIZERS = {
    "SGD": functools.partial(torch.optim.SGD, lr=0.5, momentum=0.9, weight_decay=0.01),
    "Adam": functools.partial(torch.optim.Adam, lr=0.05),
    "AdamW": functools.partial(torch.optim.AdamW, lr=0.05),
}
Batches = list[tuple[Tensor, Tensor]]


def tokens(*sizes: int) -> Batches:
    """Batches of so many rows for `tied`."""
    targets = [rows_of(size, seed=size)[1] for size in sizes]
    return [(target.flip(0), target) for target in targets]


def plain_loop(
    model: nn.Sequential,
    batches: Batches,
    optimizer: Callable[[Iterable[nn.Parameter]], torch.optim.Optimizer],
    clip_norm: float | None = None,
) -> tuple[nn.Sequential, list[float], list[float]]:
    """What a textbook does: the trained model, the losses, the norms before clipping."""
    model = copy.deepcopy(model)
    made = optimizer(parameter for parameter in model.parameters() if parameter.requires_grad)
    losses, norms = [], []
    for inputs, targets in batches:
        model.zero_grad()
        loss = F.cross_entropy(model(inputs), targets)
        loss.backward()
        grads = [parameter.grad for parameter in model.parameters() if parameter.grad is not None]
        norm = torch.sqrt(sum((grad.pow(2).sum() for grad in grads), start=torch.zeros(())))
        if clip_norm is not None and norm > clip_norm:
            for grad in grads:
                grad.mul_(clip_norm / norm)
        made.step()
        losses.append(loss.item())
        norms.append(norm.item())
    return model, losses, norms


def assert_trained_as(training: Any, expected: tuple[nn.Sequential, list[float], list[float]]) -> None:
    model, losses, norms = expected
    assert training.losses == pytest.approx(losses, rel=1e-10)
    assert training.norms == pytest.approx(norms, rel=1e-10)
    assert set(training.state_dict) == set(model.state_dict())
    for name, value in model.state_dict().items():
        torch.testing.assert_close(training.state_dict[name], value, rtol=1e-9, atol=1e-12)


def train(plan: str, model: nn.Module, batches: Any, **options: Any) -> Any:
    given: dict[str, Any] = {"loss_fn": F.cross_entropy, "optimizer": OPTIMIZERS["SGD"], "progress": False}
    return pp.train(plan, model, batches, **(given | options))


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize(("plan", "p", "m"), [("gpipe", 4, 3), ("1f1b", 3, 4)])
def test_equals_a_loop_in_one_process(plan: str, p: int, m: int, optimizer: str) -> None:
    batches = [rows_of(size, seed=size) for size in (7, 4, 9, 12, 5)]  # of different sizes step to step
    made = OPTIMIZERS[optimizer]
    training = train(plan, classifier(), batches, p=p, m=m, steps=5, optimizer=made)
    assert_trained_as(training, plain_loop(classifier(), batches, made))


@pytest.mark.parametrize("clip_norm", [0.05, 0.4, 100.0])
def test_clips_by_the_norm_of_all_ranks_together(clip_norm: float) -> None:
    batches = [rows_of(size, seed=size) for size in (7, 4, 9)]
    training = train("1f1b", classifier(), batches, p=4, m=3, steps=3, clip_norm=clip_norm)
    assert_trained_as(training, plain_loop(classifier(), batches, OPTIMIZERS["SGD"], clip_norm))


@pytest.mark.parametrize("clip_norm", [None, 0.1])
@pytest.mark.parametrize("p", [1, 2, 4])
def test_keeps_the_copies_of_a_tied_weight_equal_and_counts_them_once(p: int, clip_norm: float | None) -> None:
    batches = tokens(6, 5, 8)
    adam = OPTIMIZERS["Adam"]
    training = train("1f1b", tied(), batches, p=p, m=3, steps=3, optimizer=adam, clip_norm=clip_norm)
    assert_trained_as(training, plain_loop(tied(), batches, adam, clip_norm))
    assert torch.equal(training.state_dict["0.weight"], training.state_dict["3.weight"])


def test_a_rank_without_weights_takes_part() -> None:
    model = nn.Sequential(nn.Linear(4, 3), nn.Tanh(), nn.Linear(3, 3)).double()
    batches = [rows_of(4, seed=seed) for seed in range(3)]
    training = train("gpipe", model, batches, p=3, m=2, steps=3, clip_norm=0.2)
    assert_trained_as(training, plain_loop(model, batches, OPTIMIZERS["SGD"], 0.2))


def test_a_model_without_weights_stays_as_it_is() -> None:
    training = train("gpipe", nn.Sequential(nn.Tanh(), nn.Identity()), [rows_of(4)], p=2, m=2, steps=1)
    assert training.norms == (0.0,)
    assert not training.state_dict


def test_frozen_layers_stay_as_they_are() -> None:
    model = classifier()
    model[0].requires_grad_(False)
    batches = [rows_of(6, seed=seed) for seed in range(3)]
    training = train("1f1b", model, batches, p=2, m=2, steps=3)
    assert torch.equal(training.state_dict["0.weight"], model[0].weight)
    assert_trained_as(training, plain_loop(model, batches, OPTIMIZERS["SGD"]))


def only_the_first(parameters: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
    return torch.optim.SGD(list(parameters)[:1], lr=0.5)


def test_gradients_of_weights_that_the_optimizer_leaves_out_do_not_add_up() -> None:
    batches = [rows_of(6)] * 3
    training = train("gpipe", classifier(), batches, p=1, m=2, steps=3, optimizer=only_the_first)
    assert training.norms == pytest.approx(plain_loop(classifier(), batches, only_the_first)[2], rel=1e-10)


def test_the_state_dict_loads_back_into_the_model() -> None:
    model = nn.Sequential(*classifier(), nn.BatchNorm1d(3).double())
    batches = [rows_of(8, seed=seed) for seed in range(2)]
    training = train("1f1b", model, batches, p=3, m=2, steps=2)
    fresh = copy.deepcopy(model)
    fresh.load_state_dict(training.state_dict)
    inputs, targets = rows_of(8)
    loss = F.cross_entropy(fresh.eval()(inputs), targets)
    assert pp.evaluate("gpipe", fresh, inputs, targets, p=2, m=2, loss_fn=F.cross_entropy).loss == pytest.approx(
        loss.item()
    )
    assert training.state_dict["6.num_batches_tracked"] == 4  # two steps of two microbatches


def test_the_callers_model_stays_as_it_is() -> None:
    model = classifier()
    before = copy.deepcopy(model.state_dict())
    train("gpipe", model, [rows_of(6)] * 2, p=2, m=2, steps=2)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert all(parameter.grad is None for parameter in model.parameters())


def test_every_step_draws_new_random_numbers_that_no_plan_changes() -> None:
    layers = list(classifier())
    model = nn.Sequential(*layers[:2], nn.Dropout(0.5), *layers[2:])
    still = functools.partial(torch.optim.SGD, lr=0.0)
    runs = [
        train(plan, model, [rows_of(6)] * 3, p=p, m=3, steps=3, optimizer=still).losses
        for plan, p in (("gpipe", 2), ("1f1b", 3))
    ]
    assert runs[0] == pytest.approx(runs[1], rel=1e-12)
    assert len({round(loss, 9) for loss in runs[0]}) == 3


def test_the_same_options_as_run_hold() -> None:
    inputs, targets = rows_of(7, ignored=1)
    options: dict[str, Any] = {"loss_fn": F.cross_entropy, "weight": counted, "recompute": True, "memory": True}
    training = train("1f1b", classifier(), [(inputs, targets)], p=2, m=3, steps=1, **options)
    expected = pp.reference_step(classifier(), inputs, targets, loss_fn=F.cross_entropy, weight=counted)
    assert training.losses == pytest.approx([expected.loss], rel=1e-12)
    assert len(training.peak_bytes) == len(training.held_bytes) == 2
    assert training.peak_in_flight == (2, 1)
    assert training.messages == 6


# how many steps


def test_ends_early_when_there_are_fewer_batches_than_steps() -> None:
    training = train("gpipe", classifier(), [rows_of(4)] * 2, p=2, m=2, steps=5)
    assert len(training.losses) == len(training.norms) == len(training.step_times) == 2


def test_takes_no_more_batches_than_steps() -> None:
    taken = []

    def endless() -> Iterator[tuple[Tensor, Tensor]]:
        while True:
            taken.append(len(taken))
            yield rows_of(4)

    training = train("gpipe", classifier(), endless(), p=2, m=2, steps=3)
    assert len(training.losses) == 3
    assert len(taken) == 3


def test_shows_its_progress_only_if_asked(capsys: pytest.CaptureFixture[str]) -> None:
    train("gpipe", classifier(), [rows_of(4)], p=2, m=2, steps=1)
    assert capsys.readouterr() == ("", "")
    train("gpipe", classifier(), [rows_of(4)], p=2, m=2, steps=1, progress=True)
    assert "loss" in capsys.readouterr().err


# what is refused, in a sentence, before a rank starts

REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "an optimizer that is already made": (
        {"optimizer": torch.optim.SGD(classifier().parameters(), lr=0.1)},
        r"optimizer is [^\n]*SGD[^\n]*torch\.optim\.SGD or functools\.partial",
    ),
    "no step": ({"steps": 0}, r"steps is 0; .* at least 1"),
    "half a step": ({"steps": 2.5}, r"steps is 2\.5; "),
    "no batch": ({"batches": []}, r"batches .* \(inputs, targets\)|no batch"),
    "a batch that is no pair": ({"batches": [rows_of(4)[0]]}, r"\(inputs, targets\)"),
    "a batch with too few rows": ({"batches": [rows_of(1)]}, r"The batch has 1 rows?, too few for 2 microbatches"),
    "a norm below zero": ({"clip_norm": -1.0}, r"clip_norm is -1\.0; .* above 0"),
    "no batches, but a number": ({"batches": 3}, r"batches is 3, but it must be pairs \(inputs, targets\)"),
    "a norm that is a word": ({"clip_norm": "one"}, r"clip_norm is 'one'; .* above 0"),
    "a norm of zero": ({"clip_norm": 0.0}, r"clip_norm is 0\.0; .* above 0"),
    "a plan without backward": ({"plan": pp.forward_only(pp.build("gpipe", 2, 2))}, r"has no backward"),
    "no ranks": ({"p": 0}, r"p, the number of ranks, is 0; .* at least 1"),
    "more ranks than layers": ({"p": 9}, r"9 stages, but the model has 6 layers"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_refuses_in_one_sentence(case: str, monkeypatch: pytest.MonkeyPatch) -> None:
    wrong, sentence = REFUSED[case]
    options: dict[str, Any] = {
        "plan": "gpipe",
        "model": classifier(),
        "batches": [rows_of(4)],
        "p": 2,
        "m": 2,
        "steps": 1,
    } | wrong
    if isinstance(options["plan"], pp.Schedule):
        del options["p"], options["m"]
    with no_rank_starts(monkeypatch), pytest.raises(ValueError, match=sentence) as caught:
        train(**options)
    assert str(caught.value).count("\n") == 0


def makes_nothing(parameters: Iterable[nn.Parameter]) -> None:
    torch.optim.SGD(parameters, lr=0.1)  # and forgets to return it


def test_an_optimizer_function_that_returns_nothing_is_an_error_and_not_silence() -> None:
    with pytest.raises((ValueError, pp.RankError), match=r"optimizer"):
        train("gpipe", classifier(), [rows_of(4)], p=1, m=2, steps=1, optimizer=makes_nothing)
