"""What layers keep from one microbatch to the next is as in one process that goes through them one by one."""

import copy
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from toys import Does, assert_as_plain, by_value, linear, plain, rows_of

import ppcourse as pp
from ppcourse.runtime.stages.stage import Stage

by_value(__name__)


class Keeps(nn.Module):
    """Hands on its own buffer, or its own weight."""

    def __init__(self, name: str) -> None:
        super().__init__()
        self.name = name
        self.register_buffer("room", torch.zeros(2, 4, dtype=torch.float64))
        self.weight = nn.Parameter(torch.ones(4, dtype=torch.float64))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        self.room.copy_(x.detach())
        return x, getattr(self, self.name)


FOLDED = pp.Schedule.from_rows(["0F0 0F1 1F0 1F1 0F2 0F3 1F2 1F3 1B0 0B0 1B1 0B1 1B2 0B2 1B3 0B3"])


@pytest.mark.parametrize("name", ["room", "weight"])
def test_what_is_handed_on_stays_as_it_was_then(name: str) -> None:
    """Stage 0 writes its next microbatch into its buffer before stage 1, on the same rank, has taken it; and stage 1
    writes into the weight that it was given."""
    layers = [
        linear(4, 4),
        Keeps(name),
        Does(lambda at, g: g[0].sin() + g[1].mul_(2)),
        linear(4, 3),
    ]
    given = copy.deepcopy(layers)
    given[2] = Does(lambda at, g: g[0].sin() + g[1] * 2)  # one process may not write into a weight
    inputs, targets = rows_of(8)
    result = pp.run(FOLDED, layers, inputs, targets, loss_fn=F.cross_entropy)
    loss, grads = plain(given, inputs, targets, 4)
    assert result.loss == pytest.approx(loss, rel=1e-12)
    for name, grad in grads.items():
        torch.testing.assert_close(result.grads[name], grad, rtol=1e-10, atol=1e-13)


def test_outputs_are_those_of_their_microbatch() -> None:
    inputs = rows_of(8)[0]
    layers = [nn.Identity(), Keeps("room"), Does(lambda at, g: g[1])]
    outputs = pp.evaluate(pp.Schedule.from_rows(["0F0 0F1 0F2 0F3"]), layers, inputs).outputs
    assert torch.equal(outputs, inputs)


class Counts(nn.Module):
    """Multiplies with a buffer that it changes, though torch has saved it for backward; another one is a view of it."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("times", torch.zeros((), dtype=torch.float64))
        self.register_buffer("fixed", torch.ones(4, dtype=torch.float64))
        self.register_buffer("view", self.times.view(1))

    def forward(self, x: Tensor) -> Tensor:
        self.times += 1
        return x * self.times * self.fixed + self.view


class Remembers(nn.Module):
    """Keeps what it knows in attributes: a tensor that it changes, one that it replaces, and a number."""

    def __init__(self) -> None:
        super().__init__()
        self.times, self.mean, self.calls = torch.ones((), dtype=torch.float64), None, 0

    def forward(self, x: Tensor) -> Tensor:
        self.times *= 1.5
        self.calls += 1
        self.mean = x.detach().mean(0) if self.mean is None else (self.mean + x.detach().mean(0)) / 2
        return x * self.times * self.mean + self.calls


@pytest.mark.thorough
@pytest.mark.parametrize("recompute", [False, True])
@pytest.mark.parametrize("plan", [("gpipe", 2, 4), ("1f1b", 4, 4), ("zb-h1", 2, 4), ("zb-v", 2, 4)], ids=str)
@pytest.mark.parametrize("kind", [Counts, Remembers])
def test_what_a_forward_changes_counts_each_microbatch_once_and_leaves_graphs_alone(
    kind: Any, plan: tuple[str, int, int], recompute: bool
) -> None:
    layers = [linear(4, 4), kind(), nn.Tanh(), kind(), linear(4, 3)]
    assert_as_plain(pp.build(*plan), layers, 4, recompute=recompute)


def test_what_nobody_writes_into_stays_where_it_is() -> None:
    layer = Counts()
    stage = Stage({0: layer}, None)
    where = layer.fixed.data_ptr()
    for microbatch in range(3):
        stage.forward(microbatch, torch.ones(2, 4, dtype=torch.float64))
    assert layer.fixed.data_ptr() == where
    assert layer.times == layer.view == 3


class Alternates(nn.Module):
    """Writes into one buffer, and the next time into the other; uses those that it has written into."""

    def __init__(self) -> None:
        super().__init__()
        self.calls = 0
        self.register_buffer("even", torch.ones((), dtype=torch.float64))
        self.register_buffer("odd", torch.ones((), dtype=torch.float64))

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        now = self.odd if self.calls % 2 else self.even
        now *= 2
        return x * self.odd if self.calls == 1 else x * self.odd * self.even


def test_what_was_written_into_once_stays_so() -> None:
    """The third forward writes into what the second one's graph has saved and the second one has left alone."""
    assert_as_plain(pp.build("gpipe", 1, 4), [linear(4, 4), Alternates(), linear(4, 3)], 4)


@pytest.mark.parametrize("recompute", [False, True])
def test_a_tensor_that_changes_must_live_on_one_rank(recompute: bool) -> None:
    layers = [linear(4, 4), Remembers(), linear(4, 3)]
    layers[1].mean = torch.zeros(4, dtype=torch.float64)
    with pytest.raises(pp.RankError, match=r"Layer 1 \(Remembers\) changes its 'times' in forward, but another"):
        pp.run(pp.build("dualpipe", 2, 4), layers, *rows_of(8), loss_fn=F.cross_entropy, recompute=recompute)
