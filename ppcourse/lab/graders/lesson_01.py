"""Lesson 01, cut a model: which layers a stage gets, the gradient at a cut, a step on two ranks, bytes."""

import copy
import itertools
import math
from collections.abc import Callable, Sequence
from numbers import Real
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from ppcourse.analysis.partition import partition
from ppcourse.lab.graders import grader
from ppcourse.lab.graders.numbers import as_numbers, carries_a_graph
from ppcourse.lab.graders.on_two import no_stub, on_two, plain
from ppcourse.runtime.models import seeded
from ppcourse.runtime.reference import reference_step

WIDTH = 32  # of what crosses the cut, as in the lesson
COUNTS = [(1, 1), (4, 2), (3, 2), (5, 3), (6, 4), (32, 4), (7, 7)]
BYTES = [(1, 1, 0, 1, 1), (4, 8, 0, 1, 1), (0, 0, 12, 2, 1), (3, 5, 20, 4, 4), (64, 32, 10_000, 8, 2), (1, 1, 10, 4, 2)]
NO_GRADIENT = " Is it a gradient that is not there? What arrived must require one before the forward, as in 1.2."
NAMES = ("across the cut", "of the all-reduce")


# 1.1


@grader("1.1", minutes=5, difficulty=1)
def cut_layers_into_stages(cut: Callable[[int, int], Any]) -> str | None:
    """every layer once, in order, and as equal as possible, with the remainder in the earliest stages."""
    for layers, p in COUNTS:
        said, got = f"cut({layers}, {p})", cut(layers, p)
        stages = _stages(got)
        if stages is None:
            return f"{said} returns {got!r:.60}; return a list of ranges, one a stage."
        sizes = partition([1.0] * layers, p, "uniform")
        ends = [sum(sizes[:stage]) for stage in range(p + 1)]
        want = [list(range(*pair)) for pair in itertools.pairwise(ends)]
        if stages != want:
            return f"{said} gives stages of {_sizes(stages)} layers{_why_not_these(stages, want, layers)}"
    return None


def _stages(got: Any) -> list[list[int]] | None:
    try:
        stages = [[int(layer) for layer in stage] for stage in got]
    except (TypeError, ValueError):
        return None
    return stages if isinstance(got, list | tuple) else None


def _sizes(stages: Sequence[Sequence[int]]) -> str:
    return ", ".join(str(len(stage)) for stage in stages) or "no"


def _why_not_these(got: list[list[int]], want: list[list[int]], layers: int) -> str:
    """What is wrong with these stages, as the end of a sentence."""
    if len(got) != len(want):
        return f"; it should be {len(want)} stage{'s' * (len(want) > 1)}."
    every = [layer for stage in got for layer in stage]
    lost = sorted(set(range(layers)) - set(every))
    if lost:
        return f", but nobody gets layer {lost[0]}."
    if len(every) > layers:
        return f", {len(every)} in all, but there are {layers}: does a range name its last layer too?"
    if every != list(range(layers)):
        return ", but not of neighbours in order: each cut more is one more message."
    if max(map(len, got)) - min(map(len, got)) > 1:
        return f", but should be {_sizes(want)}: the longest stage sets the pace."
    return f", but should be {_sizes(want)}: the earliest stages take the remainder."


# 1.2


@grader("1.2", minutes=4, difficulty=1)
def receive_with_a_gradient(receive: Callable[[Tensor], Any]) -> str | None:
    """after the backward behind the cut, the gradient is there, and the first stage gets its own from it."""
    task = _task(6)
    first, second = task.stages
    h = first(task.x)
    numbers = h.detach().clone()
    arrived = receive(numbers.clone())
    if not isinstance(arrived, Tensor):
        return f"receive returns {arrived!r:.60}; return a tensor."
    if arrived.shape != numbers.shape or not torch.equal(arrived.detach(), numbers):
        return "receive changes the numbers; the stage must compute with those that arrived."
    if not arrived.requires_grad:
        return "what receive returns does not require a gradient, so autograd makes none for it."
    if not arrived.is_leaf:
        return (
            "what receive returns is no leaf: it is the result of an operation, and autograd keeps .grad only where the"
            " graph begins."
        )
    torch.autograd.backward(nn.functional.mse_loss(second(arrived), task.y))
    torch.autograd.backward(h, arrived.grad)
    return _wrong_gradient(task, [[w.grad for w in stage.parameters()] for stage in task.stages])


# 1.3


class Task(NamedTuple):
    """A small model in two stages, its batch, and the right gradients, stage by stage."""

    stages: tuple[nn.Module, nn.Module]
    x: Tensor
    y: Tensor
    loss: float
    grads: list[list[Tensor | None]]


def _task(rows: int) -> Task:
    def build() -> nn.Sequential:
        layers = nn.Linear(5, WIDTH), nn.Tanh(), nn.Linear(WIDTH, WIDTH), nn.Tanh(), nn.Linear(WIDTH, 3)
        return nn.Sequential(*layers)

    model = seeded(build, rows)
    generator = torch.Generator().manual_seed(rows)
    x, y = torch.randn(rows, 5, generator=generator), torch.randn(rows, 3, generator=generator)
    right = reference_step(model, x, y, loss_fn=nn.functional.mse_loss)
    grads = list(right.grads.values())
    return Task((model[:3], model[3:]), x, y, right.loss, [grads[:4], grads[4:]])


@grader("1.3", minutes=12, difficulty=3, limit=40)
def train_a_step_on_two_ranks(answer: Callable[..., Any]) -> str | None:
    """loss and all gradients on both ranks are those of the whole model in one process."""
    step = plain(answer)
    for rows in (6, 3):
        task = _task(rows)

        def both(rank: int, task: Task = task) -> tuple[Any, list[Tensor | None], bool]:
            stage = copy.deepcopy(task.stages[rank])
            loss = step(rank, stage, task.x, task.y)
            same = all(map(torch.equal, stage.parameters(), task.stages[rank].parameters()))
            return loss, [weight.grad for weight in stage.parameters()], same

        ended = on_two(both, f"step with {rows} rows")
        if isinstance(ended, str):
            return ended + (NO_GRADIENT if "NoneType" in ended else "")
        losses, grads, same = zip(*ended, strict=True)
        if all(grad is None for stage in grads for grad in stage):
            no_stub(list(losses), "step")
        wrong = _wrong_gradient(task, list(grads)) or _wrong_loss(losses[1], task.loss)
        if not wrong and not all(same):
            wrong = f"rank {same.index(False)} changes its weights; leave gradients only, the update comes next."
        if wrong:
            return f"step with {rows} rows: {wrong}"
    return None


def _wrong_gradient(task: Task, grads: list[list[Tensor | None]]) -> str | None:
    """The first gradient that is not that of the whole model, or None. Rank 1 first, whose mistakes reach rank 0."""
    for rank in (1, 0):
        for got, want in zip(grads[rank], task.grads[rank], strict=True):
            assert want is not None
            if got is None:
                why = "its backward never ran" if rank else "its backward never ran, though the gradient came back"
                return f"the parameters of stage {rank} have no gradient: {why}."
            if not torch.allclose(got, want, rtol=1e-3, atol=1e-6):
                return f"the gradients of stage {rank} are not those of the whole model{_why_not(got, want, rank)}."
    return None


def _why_not(got: Tensor, want: Tensor, rank: int) -> str:
    if not got.any():
        return ": they are all 0, as if rank 1 had sent zeros back, or had sent before its backward"
    ratio = float(got.norm() / want.norm())
    if torch.allclose(got, ratio * want, rtol=1e-3, atol=1e-6):
        return f", but {ratio:.3g} times as large; the loss is the mean over all rows and columns"
    if rank == 0:
        return "; h.backward(gradient) begins with the gradient that rank 1 sends, that of its own input"
    return "; the loss is mse_loss of this stage's output and y"


def _wrong_loss(loss: Any, want: float) -> str | None:
    if carries_a_graph(loss):
        return "rank 1 returns the loss together with its graph; return the number, loss.item()."
    if isinstance(loss, Tensor) and loss.numel() == 1:
        loss = loss.item()
    if not isinstance(loss, Real):
        return f"rank 1 returns {loss!r:.60}; return the loss."
    if not math.isclose(loss, want, rel_tol=1e-4):
        return f"rank 1 returns {loss:.4g} as the loss, but it is {want:.4g}."
    return None


# 1.4


@grader("1.4", minutes=6, difficulty=2)
def count_bytes(traffic: Callable[..., Any]) -> str | None:
    """the messages of a step, and a ring walked part by part, have these bytes."""
    answers = [as_numbers(traffic(*case)) for case in BYTES]
    for case, got in zip(BYTES, answers, strict=True):
        if not (isinstance(got, tuple | list) and len(got) == 2 and all(isinstance(n, Real) for n in got)):
            return f"traffic{case} returns {got!r:.60}; return two numbers of bytes."
    for place, name in enumerate(NAMES):
        for case, got in zip(BYTES, answers, strict=True):
            want = (_across(*case), _around(*case))[place]
            if not math.isclose(got[place], want, rel_tol=1e-9, abs_tol=1e-9):
                said = f"in traffic{case} the bytes {name} are {got[place]:g}, but should be {want:g}"
                return said + _which(place, [answer[place] for answer in answers])
    return None


def _across(rows: int, width: int, parameters: int, d: int, size: int) -> float:
    """What two stages send each other, tensor by tensor."""
    h = torch.empty(rows, width, device="meta")
    return float(sum(message.numel() * size for message in (h, torch.empty_like(h))))


def _around(rows: int, width: int, parameters: int, d: int, size: int) -> float:
    """What a rank sends while the ring turns: first sums under way, then the sums."""
    part = parameters / d
    sent = sum(part * size for _ in range(d - 1))
    return sent + sum(part * size for _ in range(d - 1))


WRONG_BYTES: tuple[dict[str, Callable[..., float]], ...] = (
    {
        "that is one direction; the gradient comes back": lambda r, w, n, d, s: r * w * s,
        "those are numbers, not bytes": lambda r, w, n, d, s: 2 * r * w,
        "all d ranks do not send at this cut, two do": lambda r, w, n, d, s: 2 * r * w * s * d,
    },
    {
        "that is the first half of the ring; the sums have to go round as well": lambda r, w, n, d, s: (
            (d - 1) * n / d * s
        ),
        "in a ring no rank sends everything to everyone": lambda r, w, n, d, s: (d - 1) * n * s,
        "that is all the data twice, but a rank need not send the part that it has already": lambda r, w, n, d, s: (
            2 * n * s
        ),
        "those are numbers, not bytes": lambda r, w, n, d, s: 2 * (d - 1) * n / d,
        "that is what all ranks send together": lambda r, w, n, d, s: 2 * (d - 1) * n * s,
    },
)


def _which(place: int, column: Sequence[float]) -> str:
    for name, formula in WRONG_BYTES[place].items():
        if all(math.isclose(got, formula(*case), abs_tol=1e-9) for case, got in zip(BYTES, column, strict=True)):
            return f": {name}."
    return "."
