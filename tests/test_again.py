"""A forward that runs again finds things as they were and leaves no second trace, or says why it cannot."""

import copy
import random
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from toys import Does, assert_as_plain, by_value, linear, rows_of

import ppcourse as pp
from ppcourse.runtime.stages.stage import Stage

by_value(__name__)

PLANS = [("1f1b", 2, 4), ("zb-h1", 2, 4), ("zb-v", 2, 4)]


class Statistics:
    def __init__(self) -> None:
        self.seen = list[Tensor]()


class Remembers(nn.Module):
    """Depends on all that it keeps: a list, a dictionary, a source of random numbers, and an object, which the next
    layer has too."""

    def __init__(self, statistics: Statistics) -> None:
        super().__init__()
        self.calls, self.last, self.statistics = list[int](), dict[str, Tensor](), statistics
        self.source = random.Random(5)

    def forward(self, x: Tensor) -> Tensor:
        self.calls.append(len(x))
        self.statistics.seen.append(x.detach().mean())
        before = self.last.get("mean", torch.ones(()))
        self.last["mean"] = (before + x.detach().mean()) / 2
        return x * len(self.calls) * before * self.source.random() + sum(self.statistics.seen)


@pytest.mark.parametrize("plan", PLANS[1:], ids=str)
def test_lists_dictionaries_and_objects_are_found_as_they_were(plan: tuple[str, int, int]) -> None:
    statistics = Statistics()
    two = nn.Sequential(Remembers(statistics), nn.Tanh(), Remembers(statistics))
    assert_as_plain(pp.build(*plan), [linear(4, 4), two, nn.Tanh(), linear(4, 3)], 4, recompute=True)


class Hands(nn.Module):
    """Hands what it makes to the next layer in a list that both have."""

    def __init__(self, desk: list[Tensor], takes: bool) -> None:
        super().__init__()
        self.desk, self.takes, self.inner = desk, takes, linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        if self.takes:
            return self.inner(x) * self.desk.pop()
        self.desk.append(self.inner(x))
        return x.sin()


@pytest.mark.parametrize(("name", "recompute"), [("zb-h1", True), ("dualpipe", True), ("dualpipe", False)])
def test_a_desk_that_is_cleared_again_keeps_its_graph(name: str, recompute: bool) -> None:
    desk = list[Tensor]()
    layers = [nn.Sequential(Hands(desk, False), nn.Tanh(), Hands(desk, True)), linear(4, 3)]
    assert_as_plain(pp.build(name, 2, 4), layers, 4, recompute=recompute)


# weights that a forward writes into


class Writes(nn.Module):
    """Writes into its weight before it uses it, or after."""

    def __init__(self, write: Callable[[Tensor], Any], first: bool) -> None:
        super().__init__()
        self.write, self.first = write, first
        self.weight = nn.Parameter(torch.linspace(0.5, 1.5, 4, dtype=torch.float64))

    def forward(self, x: Tensor) -> Tensor:
        result = None if self.first else x + self.weight
        with torch.no_grad():
            self.write(self.weight)
        return x + self.weight if result is None else result


REFUSED: dict[str, tuple[Callable[[Tensor], Any], bool]] = {
    "less each time": (lambda weight: weight.mul_(0.9), True),
    "less each time, afterwards": (lambda weight: weight.mul_(0.9), False),
    "held to a limit, afterwards": (lambda weight: weight.clamp_(max=1), False),
}


@pytest.mark.parametrize(("case", "plan"), list(zip(REFUSED, PLANS, strict=True)), ids=str)
def test_what_would_be_written_twice_is_refused(case: str, plan: tuple[str, int, int]) -> None:
    layers = [linear(4, 4), Writes(*REFUSED[case]), nn.Tanh(), linear(4, 3)]
    sentence = r"Layer 1 \(Writes\) writes into its weight 'weight' in forward, and so .* leave out recompute=True"
    with pytest.raises(pp.RankError, match=sentence):
        pp.run(pp.build(*plan), layers, *rows_of(8), loss_fn=F.cross_entropy, recompute=True)
    assert_as_plain(pp.build(*plan), layers, 4)


@pytest.mark.parametrize("plan", PLANS[:2], ids=str)
def test_what_changes_nothing_any_more_may_be_written_again(plan: tuple[str, int, int]) -> None:
    looks_up = nn.Sequential(Does(lambda at, x: x.abs().long().clamp(max=4)), nn.Embedding(5, 2, max_norm=0.1).double())
    held = Writes(lambda weight: weight.clamp_(max=1), True)
    layers = [looks_up, Does(lambda at, x: x.flatten(1)), nn.Sequential(linear(8, 4), held), linear(4, 3)]
    assert_as_plain(pp.build(*plan), copy.deepcopy(layers), 4, recompute=True)


# what the first run tells


def test_it_tells_which_outputs_will_have_a_gradient() -> None:
    weight = nn.Parameter(torch.ones(3))
    layer = Does(lambda at, x: (x * at.weight, x * 2, x > 0, (x * at.weight).detach()))
    layer.weight = weight
    for given, expected in ((False, [True, False, False, False]), (True, [True, True, False, False])):
        stage = Stage({0: layer}, None, recompute=True)
        outputs = stage.forward(0, torch.ones(3).requires_grad_(given))
        assert [x.requires_grad for x in outputs] == expected
        assert all(x.is_leaf for x in outputs)


def test_both_runs_go_the_same_way() -> None:
    seen = list[bool]()
    stage = Stage({0: Does(lambda at, x: (seen.append(torch.is_grad_enabled()), x * 2)[1])}, None, recompute=True)
    stage.forward(0, torch.ones(1, requires_grad=True))
    stage.backward(0, [torch.ones(1)])
    assert seen == [True, True]
