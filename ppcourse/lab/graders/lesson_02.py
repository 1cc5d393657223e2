"""Lesson 02, run naively, then in microbatches: accumulated gradients, the scale of a part, one update a batch."""

import copy
import math
from collections.abc import Callable, Sequence
from numbers import Real
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ppcourse.lab.graders import Unsolved, grader
from ppcourse.lab.graders.numbers import as_numbers, carries_a_graph
from ppcourse.lab.graders.on_two import plain
from ppcourse.lab.graders.seen import Seen
from ppcourse.runtime.models import seeded
from ppcourse.runtime.reference import reference_step
from ppcourse.runtime.stages.batch import ends_of

Batch: TypeAlias = tuple[Tensor, Tensor]

CUTS = [(4, 1), (4, 2), (12, 3), (8, 8)]  # rows and microbatches
SIZES = [[4], [2, 2], [1, 5], [3, 3, 2, 2]]
WRONG_SCALES: dict[str, Callable[[list[int], str], list[float]]] = {
    "that counts a small part as much as a large one": lambda sizes, kind: [1 / len(sizes)] * len(sizes),
    "those are rows, not their share of all rows": lambda sizes, kind: [float(size) for size in sizes],
    "a part's sum needs no scale, a sum of sums is the whole sum": lambda sizes, kind: [
        size / sum(sizes) for size in sizes
    ],
    "a part's mean is already divided by the part's own rows": lambda sizes, kind: [1 / sum(sizes)] * len(sizes),
    "that is right for a sum; a mean has to be weighed": lambda sizes, kind: [1.0] * len(sizes),
}


def _model() -> nn.Sequential:
    return seeded(lambda: nn.Sequential(nn.Linear(5, 7), nn.Tanh(), nn.Linear(7, 3)), 2).double()


def _batch(rows: int, seed: int = 0) -> Batch:
    generator = torch.Generator().manual_seed(100 * rows + seed)
    x = torch.randn(rows, 5, generator=generator, dtype=torch.float64)
    return x, torch.randn(rows, 3, generator=generator, dtype=torch.float64)


# 2.1


@grader("2.1", minutes=8, difficulty=2)
def accumulate_gradients(accumulate: Callable[..., Any]) -> str | None:
    """the gradients and the loss of the whole batch, with never more than one part in the model."""
    accumulate = plain(accumulate)
    for rows, m in CUTS:
        model, (x, y) = _model(), _batch(rows)
        seen = Seen(model)
        loss = accumulate(model, F.mse_loss, x, y, m)
        if loss is None and not seen.rows:
            raise Unsolved("(accumulate returns None)")
        right = reference_step(_model(), x, y, loss_fn=F.mse_loss)
        wrong = _wrong_grads(model, x, y, m) or _wrong_loss(loss, right.loss, m) or seen.too_much(rows // m)
        if not wrong and not torch.equal(_weights(model), _weights(_model())):
            wrong = "the gradients are right, but the weights have changed; an update comes once a batch, in 2.3."
        if wrong and seen.forwards > m:
            wrong = f"the model is given {seen.forwards} parts: chunk(m) makes m of them, split(m) parts of m rows."
        if wrong:
            return f"with {rows} rows and m = {m} {wrong}"
    return None


def _weights(model: nn.Module) -> Tensor:
    return torch.cat([weight.detach().flatten() for weight in model.parameters()])


def _wrong_grads(model: nn.Module, x: Tensor, y: Tensor, m: int) -> str | None:
    """What the gradients in a model are, if not those of the whole batch."""
    got = _flat([weight.grad for weight in model.parameters()])
    if got is None:
        return "a parameter has no gradient; each part needs its backward, which adds to .grad."
    whole = _gradient(x, y)
    if torch.allclose(got, whole):
        return None
    said = "the gradients are not those of the whole batch"
    parts = [_gradient(*part) for part in zip(x.chunk(m), y.chunk(m), strict=True)]
    known = {
        f"they are {m} times as large: divide each part's loss by m": m * whole,
        f"they are {m} times too small: divide once": whole / m,
        "they are those of the last part alone": parts[-1],
        "they are those of the last part alone, divided by m": parts[-1] / m,
        "they are those of the first part alone, divided by m": parts[0] / m,
        f"they are divided by the {len(x) // m} rows of a part, which its mean has done already": sum(parts)
        / (len(x) // m),
        f"they are divided by all {len(x)} rows, but a part's mean has divided by its own": sum(parts) / len(x),
    }
    return f"{said}{_first(known, got)}."


def _gradient(x: Tensor, y: Tensor) -> Tensor:
    grads = reference_step(_model(), x, y, loss_fn=F.mse_loss).grads.values()
    return torch.cat([grad.flatten() for grad in grads if grad is not None])


def _flat(grads: Sequence[Tensor | None]) -> Tensor | None:
    if any(grad is None for grad in grads):
        return None
    return torch.cat([grad.detach().flatten() for grad in grads if grad is not None])


def _first(known: dict[str, Any], got: Tensor) -> str:
    return next((f"; {what}" for what, value in known.items() if torch.allclose(got, value)), "")


def _wrong_loss(loss: Any, want: float, m: int) -> str | None:
    number = _number(loss)
    if carries_a_graph(loss):
        return "the gradients are right, but the loss returned still carries its graph; add up numbers, loss.item()."
    if number is None:
        return f"the gradients are right, but {loss!r:.60} is returned; return the loss of the whole batch."
    if math.isclose(number, want, rel_tol=1e-6):
        return None
    why = f": that is {m} times as much" if math.isclose(number, m * want, rel_tol=1e-6) else ""
    why = f": that is an m-th of it, {want:.4g} ÷ {m}" if math.isclose(number, want / m, rel_tol=1e-6) else why
    return f"the gradients are right, but the loss is {number:.4g} and should be {want:.4g}{why}."


def _number(value: Any) -> float | None:
    if isinstance(value, Tensor) and value.numel() == 1:
        return float(value.detach())
    return float(value) if isinstance(value, Real) else None


# 2.2


@grader("2.2", minutes=6, difficulty=2)
def scale_uneven_parts(scales: Callable[[list[int], str], Any]) -> str | None:
    """the factors with which real ranks scale the losses of such parts, for means and for sums."""
    for kind in ("mean", "sum"):
        answers = []
        for sizes in SIZES:
            said, got = f"scales({sizes}, {kind!r})", as_numbers(scales(list(sizes), kind))
            if not (isinstance(got, list | tuple) and all(_number(one) is not None for one in got)):
                return f"{said} returns {got!r:.60}; return a list of factors."
            if len(got) != len(sizes):
                return f"{said} returns {len(got)} factors for {len(sizes)} part{'s' * (len(sizes) > 1)}."
            answers.append([float(one) for one in got])
        for sizes, got in zip(SIZES, answers, strict=True):
            want = [float(end.scale) for end in ends_of([torch.zeros(size) for size in sizes], kind, None)]
            if not _close(got, want):
                known = (what for what, rule in WRONG_SCALES.items() if _all_like(rule, kind, answers))
                why = next((f": {what}" for what in known), "")
                return f"scales({sizes}, {kind!r}) is {_text(got)}, but should be {_text(want)}{why}."
    return None


def _all_like(rule: Callable[[list[int], str], list[float]], kind: str, answers: Sequence[list[float]]) -> bool:
    return all(_close(got, rule(sizes, kind)) for sizes, got in zip(SIZES, answers, strict=True))


def _close(got: Sequence[float], want: Sequence[float]) -> bool:
    return all(math.isclose(one, other, rel_tol=1e-6) for one, other in zip(got, want, strict=True))


def _text(numbers: Sequence[float]) -> str:
    return f"[{', '.join(f'{number:.4g}' for number in numbers)}]"


# 2.3


@grader("2.3", minutes=8, difficulty=2, limit=30)  # a first optimizer makes torch import for seconds
def train_in_microbatches(train: Callable[..., Any]) -> str | None:
    """after three batches the weights are those of whole-batch training, momentum and all; one update a batch."""
    train = plain(train)
    batches = [_batch(8, seed) for seed in range(3)]
    want_losses, want = _trained(batches, 1)
    for m in (1, 2, 4):
        model, updates = _model(), [0]
        optimizer, seen = _optimizer(model), Seen(model)
        optimizer.register_step_post_hook(lambda *_, updates=updates: updates.append(1))
        losses = train(model, optimizer, F.mse_loss, [(x.clone(), y.clone()) for x, y in batches], m)
        if losses is None and len(updates) == 1:
            raise Unsolved("(train returns None)")
        said, count = f"with 3 batches and m = {m}", sum(updates)
        if count != len(batches):
            why = ": one a microbatch, so that later parts see other weights" if count == 3 * m else ""
            return f"{said} the optimizer makes {count} step{'s' * (count != 1)}, but should make 3{why}."
        got = _weights(model)
        if not torch.allclose(got, want, rtol=1e-9):
            return f"{said} the weights are not those of whole-batch training{_first(_mistakes(batches, m), got)}."
        if wrong := _wrong_losses(losses, want_losses) or seen.too_much(len(batches[0][0]) // m):
            return f"{said} {wrong}"
    return None


def _wrong_losses(losses: Any, want: Sequence[float]) -> str | None:
    """What is wrong with the losses of training that has led to the right weights, as the end of a sentence."""
    if isinstance(losses, list | tuple) and any(map(carries_a_graph, losses)):
        return "the weights are right, but the losses still carry their graphs; return numbers, loss.item()."
    given = as_numbers(losses)
    numbers = [_number(loss) for loss in given] if isinstance(given, list | tuple) else []
    if len(numbers) != len(want) or None in numbers:
        return f"the weights are right, but train returns {losses!r:.60}; return one loss for each batch."
    for n, (number, right) in enumerate(zip(numbers, want, strict=True)):
        if number is not None and not math.isclose(number, right, rel_tol=1e-6):
            should = f"should be {right:.4g}, that of the batch before its update"
            return f"the weights are right, but loss {n} is {number:.4g} and {should}."
    return None


def _optimizer(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)


def _trained(batches: Sequence[Batch], m: int, divide: bool = True, clear: str = "batch") -> tuple[list[float], Tensor]:
    """Losses and weights of training by the book, or with one mistake; `clear`: before each batch, part, or never."""
    model = copy.deepcopy(_model())
    optimizer, losses = _optimizer(model), []
    for x, y in batches:
        total = 0.0
        if clear == "batch":
            optimizer.zero_grad()
        for part_x, part_y in zip(x.chunk(m), y.chunk(m), strict=True):
            if clear == "part":
                optimizer.zero_grad()
            loss = F.mse_loss(model(part_x), part_y) / (m if divide else 1)
            torch.autograd.backward(loss)
            total += float(loss.detach())
        optimizer.step()
        losses.append(total)
    return losses, _weights(model)


def _mistakes(batches: Sequence[Batch], m: int) -> dict[str, Tensor]:
    return {
        "gradients are never cleared, so those of earlier batches are added": _trained(batches, m, clear="never")[1],
        "gradients are cleared before each part, so only the last one counts": _trained(batches, m, clear="part")[1],
        "each part's loss has to be divided by m": _trained(batches, m, divide=False)[1],
    }
