"""Layers whose weights are computed from others (torch.nn.utils.parametrizations) travel, run and train as any."""

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from test_shipping import sent
from torch import Tensor, nn
from torch.nn.utils import parametrizations, parametrize
from toys import assert_as_plain, by_value, linear, no_rank_starts, rows_of

import ppcourse as pp

by_value(__name__)


class Symmetric(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x.triu() + x.triu(1).transpose(-1, -2)


class Squares(nn.Module):
    """A layer of the learner's own that uses its weight twice."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(linear(4, 4).weight.detach())

    def forward(self, x: Tensor) -> Tensor:
        return (x @ self.weight).tanh() @ self.weight


KINDS: dict[str, Callable[[], nn.Module]] = {
    "weight_norm": lambda: parametrizations.weight_norm(linear(4, 4)),
    "orthogonal": lambda: parametrizations.orthogonal(linear(4, 4)),
    "of a layer of one's own": lambda: parametrize.register_parametrization(Squares(), "weight", Symmetric()),
    "spectral_norm": lambda: parametrizations.spectral_norm(linear(4, 4)),
}


def model(kind: str) -> nn.Sequential:
    return nn.Sequential(linear(4, 4), KINDS[kind](), nn.Tanh(), linear(4, 3))


@pytest.mark.parametrize("kind", KINDS)
def test_what_arrives_computes_its_weight_too(kind: str) -> None:
    layer = KINDS[kind]()
    (came,) = sent(layer)
    assert type(came).__name__ == type(layer).__name__
    assert list(came.state_dict()) == list(layer.state_dict())
    assert torch.equal(came.eval().weight, layer.eval().weight)
    with torch.no_grad():
        first = next(came.parametrizations.weight.parameters())
        first += torch.arange(first.numel()).view_as(first)
    assert not torch.equal(came.weight, layer.weight)
    assert "weight" not in dict(came.named_parameters(recurse=False))


PLANS = [("1f1b", 2, 4), ("zb-h1", 2, 4), ("zb-v", 2, 4), ("dualpipe", 2, 4)]


@pytest.mark.parametrize(("kind", "plan"), list(zip(KINDS, (*PLANS[1:], PLANS[0]), strict=True)), ids=str)
def test_runs_are_as_in_one_process(kind: str, plan: tuple[str, int, int]) -> None:
    for recompute in (False, True):
        assert_as_plain(pp.build(*plan), list(model(kind)), 4, recompute=recompute)


@pytest.mark.thorough
def test_training_goes_on_from_a_checkpoint(tmp_path: Any) -> None:
    batches = [rows_of(8, seed=seed) for seed in range(3)]
    options: dict[str, Any] = {"loss_fn": F.cross_entropy, "optimizer": torch.optim.SGD, "progress": False, "p": 2}
    given = model("weight_norm")
    before = copy.deepcopy(given.state_dict())
    pp.train("zb-h1", given, batches, m=4, steps=2, checkpoint_dir=tmp_path, **options)
    training = pp.train("1f1b", given, batches, m=4, steps=3, checkpoint_dir=tmp_path, **options)
    expected = copy.deepcopy(given)
    for inputs, targets in batches:
        grads = pp.reference_step(expected, inputs, targets, loss_fn=F.cross_entropy, m=4).grads
        with torch.no_grad():
            for name, weight in expected.named_parameters():
                weight -= 1e-3 * grads[name]
    fresh = model("weight_norm")
    fresh.load_state_dict(training.state_dict)
    torch.testing.assert_close(fresh[1].weight, expected[1].weight, rtol=1e-10, atol=1e-13)
    assert all(torch.equal(value, before[name]) for name, value in given.state_dict().items())


@pytest.mark.filterwarnings("ignore:.*weight_norm:FutureWarning")
def test_the_old_weight_norm_is_pointed_to_the_new_one(monkeypatch: pytest.MonkeyPatch) -> None:
    layers = [linear(4, 4), nn.utils.weight_norm(linear(4, 3))]
    sentence = (
        r"Layer 1 \(Linear\) keeps a tensor that was computed from weights.* as torch\.nn\.utils\.parametrizations do"
    )
    with no_rank_starts(monkeypatch), pytest.raises(ValueError, match=sentence):
        pp.run("gpipe", layers, *rows_of(4), p=2, m=2, loss_fn=F.cross_entropy)
