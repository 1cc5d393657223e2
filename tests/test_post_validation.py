"""Optimizer steps that are checked later: the same weights, to the last bit, as if everything had been known before."""

import copy
import math
from collections.abc import Callable, Sequence
from functools import partial

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from strategies import quick
from torch import Tensor, nn

from ppcourse.runtime.post_validation import Outcome, PostValidation

OPTIMIZERS: dict[str, Callable[..., torch.optim.Optimizer]] = {
    "adamw": partial(torch.optim.AdamW, lr=0.01, weight_decay=0.1),
    "adamw amsgrad": partial(torch.optim.AdamW, lr=0.01, amsgrad=True),
    "momentum": partial(torch.optim.SGD, lr=0.1, momentum=0.9, weight_decay=0.01),
    "sgd": partial(torch.optim.SGD, lr=0.1),
}
RANKS = 4


def layers() -> list[nn.Linear]:
    torch.manual_seed(0)
    return [nn.Linear(3, 2) for _ in range(RANKS)]


def gradients(step: int, rank: int, size: float, bad: bool) -> list[Tensor]:
    generator = torch.Generator().manual_seed(100 * step + rank)
    made = [size * torch.randn(shape, generator=generator) for shape in ((2, 3), (2,))]
    if bad:
        made[0][1, 2] = math.nan if step % 2 else math.inf
    return made


def give(layer: nn.Linear, grads: Sequence[Tensor]) -> None:
    layer.weight.grad, layer.bias.grad = (grad.clone() for grad in grads)


Plan = list[tuple[float, int | None]]
"""A step: the size of its gradients, and the rank whose gradients are not finite."""


def validated(make: Callable[..., torch.optim.Optimizer], steps: Plan, clip: float | None) -> tuple:
    model = layers()
    ranks = [PostValidation(layer.parameters(), make(layer.parameters()), clip) for layer in model]
    outcomes = []
    for n, (size, bad) in enumerate(steps):
        known = 0.0
        for rank, layer in enumerate(model):
            give(layer, gradients(n, rank, size, rank == bad))
            known = ranks[rank].step(known)
        outcomes.append([rank.settle(known) for rank in reversed(ranks)][::-1])
    return model, [rank.optimizer for rank in ranks], outcomes


def synchronised(make: Callable[..., torch.optim.Optimizer], steps: Plan, clip: float | None) -> tuple:
    """Everything known first, by other code: torch's own norm decides, and no step is ever undone."""
    model = layers()
    optimizers = [make(layer.parameters()) for layer in model]
    for n, (size, bad) in enumerate(steps):
        every = [gradients(n, rank, size, rank == bad) for rank in range(RANKS)]
        squares = 0.0
        for grads in every:
            for grad in grads:
                squares += float(grad.double().pow(2).sum())
        if not all(bool(grad.isfinite().all()) for grads in every for grad in grads):
            continue
        factor = 1.0 if clip is None or math.sqrt(squares) <= clip else clip / math.sqrt(squares)
        for layer, optimizer, grads in zip(model, optimizers, every, strict=True):
            give(layer, [grad * factor for grad in grads])
            optimizer.step()
    return model, optimizers


def assert_equal(ours: tuple, oracle: tuple) -> None:
    for mine, theirs in zip(ours[0], oracle[0], strict=True):
        assert all(torch.equal(a, b) for a, b in zip(mine.parameters(), theirs.parameters(), strict=True))
    for mine, theirs in zip(ours[1], oracle[1], strict=True):
        a, b = mine.state_dict()["state"], theirs.state_dict()["state"]
        assert a.keys() == b.keys()
        for key in a:
            assert a[key].keys() == b[key].keys()
            assert all(torch.equal(torch.as_tensor(a[key][n]), torch.as_tensor(b[key][n])) for n in a[key])


steps = st.lists(
    st.tuples(st.sampled_from([0.01, 0.3, 1.0, 30.0]), st.none() | st.integers(0, RANKS - 1)), min_size=1, max_size=5
)


@pytest.mark.thorough
@quick
@given(steps, st.sampled_from(sorted(OPTIMIZERS)), st.sampled_from([None, 1.0, 3.0]))
def test_weights_and_optimizer_are_those_of_a_synchronised_step(plan: Plan, optimizer: str, clip: float | None) -> None:
    make = OPTIMIZERS[optimizer]
    assert_equal(validated(make, plan, clip), synchronised(make, plan, clip))


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_after_a_nan_the_ranks_before_it_undo_and_those_after_it_never_step(optimizer: str) -> None:
    plan: Plan = [(0.1, None), (0.1, 2), (0.1, None)]
    ours = validated(OPTIMIZERS[optimizer], plan, None)
    assert ours[2] == [["kept"] * 4, ["undone", "undone", "skipped", "skipped"], ["kept"] * 4]
    assert_equal(ours, synchronised(OPTIMIZERS[optimizer], plan, None))
    unharmed = synchronised(OPTIMIZERS[optimizer], [(0.1, None)] * 3, None)
    assert not torch.equal(ours[0][0].weight, unharmed[0][0].weight)  # the skipped step would have changed it


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_a_nan_in_the_first_step_leaves_no_state_behind(optimizer: str) -> None:
    model, optimizers, outcomes = validated(OPTIMIZERS[optimizer], [(0.1, 3)], None)
    assert outcomes == [["undone", "undone", "undone", "skipped"]]
    assert all(not made.state_dict()["state"] for made in optimizers)
    assert all(torch.equal(a.weight, b.weight) for a, b in zip(model, layers(), strict=True))


def test_a_norm_that_grows_too_large_on_the_way_is_redone_above_and_late_below() -> None:
    model = layers()
    ranks = [PostValidation(x.parameters(), torch.optim.SGD(x.parameters(), lr=1.0), 5.0) for x in model]
    before = copy.deepcopy(model)
    known = 0.0
    for layer, rank in zip(model, ranks, strict=True):  # each adds 9: 9, 18, 27, 36, and the limit is 25
        give(layer, [torch.zeros(2, 3), torch.tensor([3.0, 0.0])])
        known = rank.step(known)
    assert known == 36
    assert [rank.settle(known) for rank in ranks] == ["redone", "redone", "late", "late"]
    moved = [float((a.bias - b.bias)[0].detach()) for a, b in zip(before, model, strict=True)]
    assert moved == pytest.approx([3 * 5 / 6] * 4)


def test_a_step_is_made_before_the_whole_is_known() -> None:
    [layer, *_] = layers()
    before = layer.bias.detach().clone()
    rank = PostValidation(layer.parameters(), torch.optim.SGD(layer.parameters(), lr=1.0))
    give(layer, [torch.zeros(2, 3), torch.ones(2)])
    rank.step(7.0)
    assert torch.equal(layer.bias, before - 1)
    rank.settle(math.inf)
    assert torch.equal(layer.bias, before)
    assert layer.bias.grad is None


def test_a_rank_without_gradients_hands_on_what_it_was_given() -> None:
    [layer, *_] = layers()
    rank = PostValidation(layer.parameters(), torch.optim.AdamW(layer.parameters()), 1.0)
    assert rank.step(0.25) == 0.25
    assert rank.settle(0.25) is Outcome.KEPT


def test_misuse_is_a_sentence() -> None:
    [layer, *_] = layers()
    made = torch.optim.SGD(layer.parameters(), lr=1.0)
    with pytest.raises(ValueError, match=r"clip_norm is 0; it is a number above 0, or None for no limit\."):
        PostValidation(layer.parameters(), made, 0)
    rank = PostValidation(layer.parameters(), made)
    with pytest.raises(RuntimeError, match="nothing to settle"):
        rank.settle(1.0)
    rank.step()
    with pytest.raises(RuntimeError, match="has not been settled"):
        rank.step()
