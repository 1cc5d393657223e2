"""What several ranks hold a copy of must not be changed by a forward: each copy sees some of the microbatches only."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from toys import Does, Head, assert_as_plain, by_value, linear, rows_of

import ppcourse as pp
from ppcourse.runtime.prepare import cut
from ppcourse.runtime.stages.statistics import twins_in

by_value(__name__)

DUALPIPE = pp.build("dualpipe", 2, 4)


class Statistics:
    def __init__(self) -> None:
        self.total = 0.0


class Keeps(nn.Module):
    """Changes something in each forward, and depends on it."""

    def __init__(self, change: Callable[[Any], Any], use: Callable[[Any], Any]) -> None:
        super().__init__()
        self.change, self.use = change, use
        self.calls, self.all, self.named, self.statistics = 0, list[int](), {"calls": 0}, Statistics()
        self.weight = nn.Parameter(torch.ones(4, dtype=torch.float64))

    def forward(self, x: Tensor) -> Tensor:
        with torch.no_grad():
            self.change(self)
        return x * self.use(self) * self.weight


KEEPS: dict[str, tuple[str, Callable[[Any], Any], Callable[[Any], Any]]] = {
    "a number": ("calls", lambda at: setattr(at, "calls", at.calls + 1), lambda at: at.calls),
    "a list": ("all", lambda at: at.all.append(1), lambda at: len(at.all)),
    "a dictionary": ("named", lambda at: at.named.update(calls=at.named["calls"] + 1), lambda at: at.named["calls"]),
    "an object": (
        "statistics",
        lambda at: setattr(at.statistics, "total", at.statistics.total + 1),
        lambda at: at.statistics.total,
    ),
    "a weight": ("weight", lambda at: at.weight.mul_(0.9), lambda at: 1),
}


@pytest.mark.thorough
@pytest.mark.parametrize(("case", "recompute"), list(zip(KEEPS, (True, False, True, False, True), strict=True)))
def test_what_changes_must_live_on_one_rank(case: str, recompute: bool) -> None:
    name, *does = KEEPS[case]
    layers = [linear(4, 4), nn.Sequential(nn.Tanh(), Keeps(*does)), linear(4, 3)]
    sentence = (
        rf"Layer 1 \(Sequential\) changes its '1\.{name}' in forward, but another rank has a copy of it, and each"
    )
    with pytest.raises(pp.RankError, match=sentence):
        pp.run(DUALPIPE, layers, *rows_of(8), loss_fn=F.cross_entropy, recompute=recompute)


def test_an_evaluation_sees_it_too() -> None:
    layers = [linear(4, 4), Keeps(*KEEPS["a number"][1:]), linear(4, 3)]
    with pytest.raises(pp.RankError, match=r"Layer 1 \(Keeps\) changes its 'calls' in forward"):
        pp.evaluate(DUALPIPE, layers, rows_of(8)[0])
    assert pp.evaluate(pp.build("gpipe", 2, 4), layers, rows_of(8)[0]).outputs.shape == (8, 3)


class MakesOnce(nn.Module):
    """Makes what it needs when it first runs, and finds it there afterwards."""

    def __init__(self) -> None:
        super().__init__()
        self.steps, self.made, self.length = None, dict[int, Tensor](), 0

    def forward(self, x: Tensor) -> Tensor:
        if self.length < x.shape[1]:
            self.length, self.steps = x.shape[1], torch.arange(x.shape[1])
            self.made[self.length] = self.steps * 2.0
        return x * self.steps + self.made[self.length]


@pytest.mark.parametrize("recompute", [False, True])
def test_what_a_first_forward_makes_for_all_is_no_change(recompute: bool) -> None:
    assert_as_plain(DUALPIPE, [linear(4, 4), MakesOnce(), linear(4, 3)], 4, recompute=recompute)


# tied weights


def looks_up(max_norm: float | None) -> tuple[nn.Module, nn.Module]:
    embedding = nn.Embedding(5, 3, max_norm=max_norm).double()
    return nn.Sequential(Does(lambda at, x: x[:, 0].abs().long().clamp(max=4)), embedding), Head(embedding)


def test_a_tied_weight_that_one_of_its_layers_writes_into_must_live_on_one_rank() -> None:
    """Rows that an embedding has held to a norm would not be so in the head, on another rank."""
    first, head = looks_up(0.1)
    layers = [first, nn.Tanh(), nn.Identity(), head]
    with pytest.raises(
        pp.RankError, match=r"Layer 0 \(Sequential\) changes its '1\.weight' in forward, but another rank"
    ):
        pp.run("gpipe", layers, *rows_of(8), p=2, m=2, loss_fn=F.cross_entropy)
    assert_as_plain(pp.build("naive", 2, 2), [nn.Sequential(*layers), nn.Identity()], 2)


def test_what_several_ranks_hold() -> None:
    first, head = looks_up(None)
    layers = [first, MakesOnce(), nn.Identity(), head]
    assert twins_in(cut(pp.build("gpipe", 2, 2), layers, "uniform")) == (set(), {"0.1.weight", "3.weight"})
    assert twins_in(cut(pp.build("gpipe", 1, 2), layers, "uniform")) == (set(), set())
    assert twins_in(cut(DUALPIPE, layers, "uniform")) == ({0, 1, 3}, {"0.1.weight", "3.weight"})
