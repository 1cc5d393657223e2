"""Lesson 02's exercises: what right answers, plausible wrong ones, and stubs are told."""

import itertools
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import ppcourse as pp
from ppcourse.lab import graders, progress
from ppcourse.lab.graders import lesson_02

Answer = Callable[..., Any]


@pytest.fixture(autouse=True)
def own_progress(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PPCOURSE_PROGRESS", str(tmp_path / "progress.json"))
    monkeypatch.setattr(progress, "unsaved", {})


def parts(x: Tensor, y: Tensor, m: int) -> Any:
    return zip(x.chunk(m), y.chunk(m), strict=True)


def accumulate(
    model: nn.Module,
    loss_fn: Answer,
    x: Tensor,
    y: Tensor,
    m: int,
    scale: Callable[[int, int], float] = lambda m, rows: 1 / m,
    which: slice = slice(None),
    clear: bool = False,
    back: Callable[[float, int], Any] = lambda total, m: total,
    number: Callable[[Tensor], Any] = Tensor.item,
) -> Any:
    """The right loop, with one mistake if asked for."""
    total = 0.0
    for part_x, part_y in list(parts(x, y, m))[which]:
        if clear:
            model.zero_grad()
        loss = loss_fn(model(part_x), part_y) * scale(m, len(x))
        loss.backward()
        total = total + number(loss) / scale(m, len(x)) / m
    return back(total, m)


def one_backward(model: nn.Module, loss_fn: Answer, x: Tensor, y: Tensor, m: int) -> Tensor:
    """The right gradients, but the activations of all parts are there at once."""
    loss = sum(loss_fn(model(part_x), part_y) for part_x, part_y in parts(x, y, m)) / m
    loss.backward()
    return loss.detach()


def parts_by_their_own_loss(model: nn.Module, loss_fn: Answer, x: Tensor, y: Tensor, m: int) -> Tensor:
    """Right: every m-th row, the factor given to backward, the loss as a tensor without its graph."""
    total = torch.zeros(())
    for first in range(m):
        loss = loss_fn(model(x[first::m]), y[first::m])
        loss.backward(torch.tensor(1 / m, dtype=loss.dtype))
        total = total + loss.detach() / m
    return total


def with_update(model: nn.Module, loss_fn: Answer, x: Tensor, y: Tensor, m: int) -> Any:
    loss = accumulate(model, loss_fn, x, y, m)
    for weight in model.parameters():
        weight.data -= 0.1 * weight.grad
    return loss


def gradients_divided_afterwards(model: nn.Module, loss_fn: Answer, x: Tensor, y: Tensor, m: int) -> float:
    total = 0.0
    for part_x, part_y in parts(x, y, m):
        loss = loss_fn(model(part_x), part_y)
        loss.backward()
        total += loss.item() / m
    for weight in model.parameters():
        weight.grad /= m
    return total


def whole(model: nn.Module, loss_fn: Answer, x: Tensor, y: Tensor, m: int) -> float:
    loss = loss_fn(model(x), y)
    loss.backward()
    return loss.item()


def forward_only(model: nn.Module, loss_fn: Answer, x: Tensor, y: Tensor, m: int) -> float:
    return sum(loss_fn(model(part_x), part_y).item() / m for part_x, part_y in parts(x, y, m))


def by_split(model: nn.Module, loss_fn: Answer, x: Tensor, y: Tensor, m: int) -> None:
    """Parts of m rows instead of m parts."""
    for part_x, part_y in zip(x.split(m), y.split(m), strict=True):
        (loss_fn(model(part_x), part_y) / m).backward()


def losses_after(
    model: nn.Module, optimizer: Any, loss_fn: Answer, batches: list[tuple[Tensor, Tensor]], m: int
) -> Any:
    losses = []
    for x, y in batches:
        train(model, optimizer, loss_fn, [(x, y)], m)
        losses.append(loss_fn(model(x), y).item())
    return losses


def mistaken(**mistake: Any) -> Answer:
    return lambda model, loss_fn, x, y, m: accumulate(model, loss_fn, x, y, m, **mistake)


def train(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    loss_fn: Answer,
    batches: list[tuple[Tensor, Tensor]],
    m: int,
    clear: str = "batch",
    step: str = "batch",
    accumulate: Answer = accumulate,
) -> list[float]:
    losses = []
    for x, y in batches:
        total = 0.0
        if clear == "batch":
            optimizer.zero_grad()
        if clear == "batch" and step == "batch":
            total = accumulate(model, loss_fn, x, y, m)
        else:
            for part_x, part_y in parts(x, y, m):
                if clear == "part":
                    optimizer.zero_grad()
                loss = loss_fn(model(part_x), part_y) / m
                loss.backward()
                total += loss.item()
                if step == "part":
                    optimizer.step()
        if step == "batch":
            optimizer.step()
        losses.append(total)
    if step == "end":
        optimizer.step()
    return losses


def train_with(**mistake: Any) -> Answer:
    return lambda model, optimizer, loss_fn, batches, m: train(model, optimizer, loss_fn, batches, m, **mistake)


def by_share(sizes: list[int], reduction: str) -> list[float]:
    return [size / sum(sizes) if reduction == "mean" else 1.0 for size in sizes]


RIGHT: dict[str, tuple[str, Answer]] = {
    "loss divided": ("2.1", accumulate),
    "other parts": ("2.1", parts_by_their_own_loss),
    "gradients divided": ("2.1", gradients_divided_afterwards),
    "shares": ("2.2", by_share),
    "shares as a tensor": ("2.2", lambda sizes, reduction: torch.tensor(by_share(sizes, reduction))),
    "whole numbers": ("2.2", lambda sizes, kind: [1] * len(sizes) if kind == "sum" else by_share(sizes, kind)),
    "shares as an array": ("2.2", lambda sizes, reduction: np.array(by_share(sizes, reduction))),
    "train": ("2.3", train),
    "losses as a tensor": ("2.3", lambda *given: torch.tensor(train(*given))),
    "zero at the end": (
        "2.3",
        lambda model, optimizer, *rest: [
            (train(model, optimizer, rest[0], [batch], rest[2]), optimizer.zero_grad())[0][0] for batch in rest[1]
        ],
    ),
}

GRADS = "with 4 rows and m = 2 the gradients are not those of the whole batch; they are"
WRONG: dict[str, tuple[str, Answer, str]] = {
    "not divided": ("2.1", mistaken(scale=lambda m, n: 1), f"{GRADS} 2 times as large: divide each part's loss by m."),
    "divided twice": ("2.1", mistaken(scale=lambda m, n: 1 / m**2), f"{GRADS} 2 times too small: divide once."),
    "divided by all rows": (
        "2.1",
        mistaken(scale=lambda m, n: 1 / n),
        "with 4 rows and m = 1 the gradients are not those of the whole batch; they are divided by the 4 rows of a"
        " part, which its mean has done already.",
    ),
    "cleared in between": ("2.1", mistaken(clear=True), f"{GRADS} those of the last part alone, divided by m."),
    "parts of m rows": (
        "2.1",
        by_split,
        "with 4 rows and m = 1 the model is given 4 parts: chunk(m) makes m of them, split(m) parts of m rows.",
    ),
    "the first part": ("2.1", mistaken(which=slice(1)), f"{GRADS} those of the first part alone, divided by m."),
    "no backward": (
        "2.1",
        forward_only,
        "with 4 rows and m = 1 a parameter has no gradient; each part needs its backward, which adds to .grad.",
    ),
    "the whole batch at once": (
        "2.1",
        whole,
        "with 4 rows and m = 2 the model is given 4 rows at once; a part has 2.",
    ),
    "the sum of losses": (
        "2.1",
        mistaken(back=lambda total, m: total * m),
        "with 4 rows and m = 2 the gradients are right, but the loss is LOSS: that is 2 times as much.",
    ),
    "no loss": (
        "2.1",
        mistaken(back=lambda total, m: "done"),
        "with 4 rows and m = 1 the gradients are right, but 'done' is returned; return the loss of the whole batch.",
    ),
    "one backward": (
        "2.1",
        one_backward,
        "with 4 rows and m = 2 a backward comes only after 2 forwards, so that the activations of 2 parts are kept at"
        " once; run each part's backward right after its forward.",
    ),
    "a loss with its graph": (
        "2.1",
        mistaken(number=lambda loss: loss),
        "with 4 rows and m = 1 the gradients are right, but the loss returned still carries its graph; add up numbers,"
        " loss.item().",
    ),
    "an update": (
        "2.1",
        with_update,
        "with 4 rows and m = 1 the gradients are right, but the weights have changed; an update comes once a batch, in"
        " 2.3.",
    ),
    "equal shares": (
        "2.2",
        lambda sizes, kind: [1 / len(sizes)] * len(sizes),
        "scales([1, 5], 'mean') is [0.5, 0.5], but should be [0.1667, 0.8333]:"
        " that counts a small part as much as a large one.",
    ),
    "rows": (
        "2.2",
        lambda sizes, kind: list(sizes),
        "scales([4], 'mean') is [4], but should be [1]: those are rows, not their share of all rows.",
    ),
    "one row each": (
        "2.2",
        lambda sizes, kind: [1 / sum(sizes)] * len(sizes),
        "scales([4], 'mean') is [0.25], but should be [1]: a part's mean is already divided by the part's own rows.",
    ),
    "shares of a sum": (
        "2.2",
        lambda sizes, kind: by_share(sizes, "mean"),
        "scales([2, 2], 'sum') is [0.5, 0.5], but should be [1, 1]:"
        " a part's sum needs no scale, a sum of sums is the whole sum.",
    ),
    "ones": (
        "2.2",
        lambda sizes, kind: [1.0] * len(sizes),
        "scales([2, 2], 'mean') is [1, 1], but should be [0.5, 0.5]:"
        " that is right for a sum; a mean has to be weighed.",
    ),
    "one number": ("2.2", lambda sizes, kind: 0.5, "scales([4], 'mean') returns 0.5; return a list of factors."),
    "too few": ("2.2", lambda sizes, kind: [1.0], "scales([2, 2], 'mean') returns 1 factors for 2 parts."),
    "a step a microbatch": (
        "2.3",
        train_with(step="part"),
        "with 3 batches and m = 2 the optimizer makes 6 steps, but should make 3: one a microbatch, so that later parts"
        " see other weights.",
    ),
    "one step in all": (
        "2.3",
        train_with(step="end"),
        "with 3 batches and m = 1 the optimizer makes 1 step, but should make 3.",
    ),
    "never cleared": (
        "2.3",
        train_with(clear="never"),
        "with 3 batches and m = 1 the weights are not those of whole-batch training; gradients are never cleared, so"
        " those of earlier batches are added.",
    ),
    "cleared before each part": (
        "2.3",
        train_with(clear="part"),
        "with 3 batches and m = 2 the weights are not those of whole-batch training; gradients are cleared before each"
        " part, so only the last one counts.",
    ),
    "undivided": (
        "2.3",
        train_with(accumulate=mistaken(scale=lambda m, n: 1)),
        "with 3 batches and m = 2 the weights are not those of whole-batch training; each part's loss has to be divided"
        " by m.",
    ),
    "whole batches": (
        "2.3",
        train_with(accumulate=whole),
        "with 3 batches and m = 2 the model is given 8 rows at once; a part has 4.",
    ),
    "losses with their graphs": (
        "2.3",
        train_with(accumulate=mistaken(number=lambda loss: loss)),
        "with 3 batches and m = 1 the weights are right, but the losses still carry their graphs; return numbers,"
        " loss.item().",
    ),
    "losses after the update": (
        "2.3",
        losses_after,
        "with 3 batches and m = 1 the weights are right, but loss 0 is LOSS, that of the batch before its update.",
    ),
    "one loss": (
        "2.3",
        lambda *given: train(*given)[-1],
        "with 3 batches and m = 1 the weights are right, but train returns LOSS; return one loss for each batch.",
    ),
}


@pytest.mark.parametrize("case", RIGHT)
def test_a_right_answer_is_solved(case: str) -> None:
    number, answer = RIGHT[case]
    verdict = pp.grade(number, answer)
    assert verdict, verdict


@pytest.mark.parametrize("case", WRONG)
def test_a_wrong_answer_is_told_why(case: str) -> None:
    number, answer, sentence = WRONG[case]
    verdict = pp.grade(number, answer)
    before, _, after = sentence.partition("LOSS")
    first = verdict.message.partition("\n")[0]
    assert verdict.state == "wrong"
    assert first == sentence or (after and first.startswith(before) and first.endswith(after)), first


def test_a_loop_without_end_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(graders.registered, "2.1", replace(graders.exercises(2)["2.1"], limit=0.5))

    def endless(model: nn.Module, *rest: Any) -> float:
        for _ in itertools.count():
            pass
        return 0.0

    verdict = pp.grade("2.1", endless)
    assert verdict.state == "wrong"
    assert "still runs after 0.5 s" in verdict.message


@pytest.mark.parametrize("number", ["2.1", "2.2", "2.3"])
def test_a_stub_is_not_solved_yet(number: str) -> None:
    def stub(*args: Any) -> None: ...

    assert [pp.grade(number, answer).state for answer in (..., None, stub)] == ["unsolved"] * 3


@pytest.mark.thorough
def test_the_training_that_the_grader_compares_with_is_the_packages() -> None:
    batches = [lesson_02._batch(8, seed) for seed in range(3)]
    ours = pp.train(
        "gpipe",
        lesson_02._model(),
        batches,
        loss_fn=nn.functional.mse_loss,
        optimizer=lambda weights: torch.optim.SGD(weights, lr=0.1, momentum=0.9),
        steps=3,
        p=2,
        m=4,
        progress=False,
    )
    losses, weights = lesson_02._trained(batches, 1)
    assert list(ours.losses) == pytest.approx(losses)
    assert torch.allclose(torch.cat([ours.state_dict[name].flatten() for name in ours.state_dict]), weights)
