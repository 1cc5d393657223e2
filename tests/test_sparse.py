"""Gradients that are sparse in one process are sparse in a pipeline, and train as they do there."""

import copy
import functools
from collections.abc import Callable, Iterable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from toys import Head, by_value

import ppcourse as pp

by_value(__name__)

PLANS = {name: pp.build(name, 2, 4) for name in ("1f1b", "zb-v", "dualpipe")}
every_plan = pytest.mark.parametrize("name", PLANS)
TARGETS = torch.arange(8) % 5


def batch(seed: int) -> tuple[Tensor, Tensor]:
    """Tokens of which none is 0, and some come twice."""
    return torch.randint(1, 9, (8,), generator=torch.Generator().manual_seed(seed)), TARGETS


def model(tied: bool = False) -> list[nn.Module]:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        embedding = nn.Embedding(9, 4, sparse=True).double()
        middle = [nn.Linear(4, 4).double(), nn.Tanh()]
        return [embedding, *middle, Head(embedding) if tied else nn.Linear(4, 9).double()]


def plain(layers: list[nn.Module], inputs: Tensor, targets: Tensor) -> list[Tensor]:
    """The gradients in one process, on the layers themselves."""
    whole = nn.Sequential(*layers)
    whole.zero_grad()
    F.cross_entropy(whole(inputs), targets).backward()
    return [weight.grad for weight in whole.parameters()]


@every_plan
@pytest.mark.parametrize("tied", [False, True], ids=["alone", "tied to a dense use"])
def test_a_gradient_is_sparse_where_it_is_in_one_process(name: str, tied: bool) -> None:
    result = pp.run(PLANS[name], model(tied), *batch(1), loss_fn=F.cross_entropy)
    reference = pp.reference_step(model(tied), *batch(1), loss_fn=F.cross_entropy)
    for got, same, grad in zip(
        result.grads.values(), reference.grads.values(), plain(model(tied), *batch(1)), strict=True
    ):
        for one in (got, same):
            assert one.layout is grad.layout
            torch.testing.assert_close(one.to_dense(), grad.to_dense(), rtol=1e-10, atol=1e-13)
        if grad.is_sparse:
            assert torch.equal(got.indices(), grad.coalesce().indices())


def each(**kinds: Callable[..., torch.optim.Optimizer]) -> Any:
    """An optimizer of its own for weights with a sparse gradient, told by their shape, and one for the others."""
    return functools.partial(_Both, kinds["sparse"], kinds["dense"])


class _Both(torch.optim.Optimizer):
    def __init__(self, sparse: Any, dense: Any, weights: Iterable[Tensor]) -> None:
        several = list(weights)
        super().__init__(several, {})
        tables, others = (
            [w for w in several if (w.shape == (9, 4) and w.requires_grad) == is_] for is_ in (True, False)
        )
        self.made = [kind(some) for kind, some in ((sparse, tables), (dense, others)) if some]

    def step(self, closure: Any = None) -> None:
        for one in self.made:
            one.step()


OPTIMIZERS: dict[str, Any] = {
    "SGD": functools.partial(torch.optim.SGD, lr=0.3),
    "SGD with momentum": functools.partial(torch.optim.SGD, lr=0.3, momentum=0.5),
    "Adagrad": functools.partial(torch.optim.Adagrad, lr=0.3),
    "SparseAdam": each(
        sparse=functools.partial(torch.optim.SparseAdam, lr=0.1), dense=functools.partial(torch.optim.SGD, lr=0.3)
    ),
}


def short(tied: bool = False) -> list[nn.Module]:
    """The last layer has another shape than the table."""
    return [*model(tied)[:3], nn.Linear(4, 5).double()]


@pytest.mark.thorough
@pytest.mark.filterwarnings("ignore:Sparse invariant")
@pytest.mark.parametrize(
    ("kind", "name"),
    [(kind, name) for kind in ("SGD", "SparseAdam") for name in PLANS]
    + [("SGD with momentum", "dualpipe"), ("Adagrad", "1f1b")],
)
def test_training_with_sparse_gradients_is_a_loop_in_one_process(kind: str, name: str) -> None:
    batches, layers = [batch(seed) for seed in (1, 2, 3)], short()
    options: dict[str, Any] = {"loss_fn": F.cross_entropy, "optimizer": OPTIMIZERS[kind], "progress": False}
    training = pp.train(PLANS[name], copy.deepcopy(layers), batches, steps=3, clip_norm=0.2, **options)
    own, norms = OPTIMIZERS[kind](nn.Sequential(*layers).parameters()), []
    for inputs, targets in batches:
        grads = plain(layers, inputs, targets)
        norms.append(float(sum(grad.to_dense().pow(2).sum() for grad in grads).sqrt()))
        for grad in grads:
            grad.mul_(min(1.0, 0.2 / norms[-1]))
        own.step()
    assert training.norms == pytest.approx(norms, rel=1e-10)
    assert min(norms) > 0.2
    for key, weight in nn.Sequential(*layers).state_dict().items():
        torch.testing.assert_close(training.state_dict[key], weight, rtol=1e-9, atol=1e-12, msg=key)
