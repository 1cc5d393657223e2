"""Lesson 06, split the backward: I and W of a Linear, ZB-H1's order, formulas outside their conditions, undoing."""

import itertools
import math
from collections.abc import Callable
from numbers import Integral, Real
from typing import TYPE_CHECKING, Any, TypeAlias

from ppcourse.analysis import formulas
from ppcourse.analysis.in_flight import in_flight
from ppcourse.analysis.simulate import simulate
from ppcourse.lab.gantt_text import gantt_text
from ppcourse.lab.graders import Unsolved, grader
from ppcourse.lab.graders.numbers import as_numbers
from ppcourse.lab.graders.rows import read_row
from ppcourse.schedules import build
from ppcourse.schedules.action import Action, Op
from ppcourse.schedules.costs import Costs
from ppcourse.schedules.schedule import Schedule
from ppcourse.schedules.validate import validate

if TYPE_CHECKING:
    from torch import Tensor

Order: TypeAlias = Callable[[int, int, int], Any]

SHAPES = [(2, 3, 4), (1, 4, 2), (5, 3, 3)]  # rows, features in, features out
COUNTS = sorted(itertools.product(range(2, 6), range(1, 11)), key=lambda pm: (sum(pm), pm))
FORMULAS = {"zb-h1": formulas.zb_h1_bubble_time, "zb-h2": formulas.zb_h2_bubble_time}
EXAMPLE = '["0F0", "0I0", "0W0"]'


# 6.1


@grader("6.1", minutes=8, difficulty=2, limit=60)  # torch imports its counter for seconds
def split_a_linear(halves: Any) -> str | None:
    """the gradients of autograd, and each product is computed once."""
    if not (isinstance(halves, list | tuple) and len(halves) == 2 and all(map(callable, halves))):
        return f"{halves!r:.60} is not your two functions, as in [input_grad, weight_grad]."
    for rows, features, out in SHAPES:
        x, weight, grad, want = _linear(rows, features, out)
        for name, half, second, given in zip(want, halves, ("weight", "x"), (weight, x), strict=True):
            shapes = f"grad of shape {tuple(grad.shape)} and {second} of {tuple(given.shape)}"
            got, flops = _counted(half, grad.clone(), given.clone())
            if got is None or got is ...:
                raise Unsolved(f"({name} returns {got})")
            if wrong := _unequal(got, want[name], grad):
                return f"{name} {wrong} for {shapes}."
            if flops > (due := 2 * rows * features * out):
                return f"{name} takes {flops} operations for {shapes}, but one matrix product of these takes {due}."
    return None


def _linear(rows: int, features: int, out: int) -> "tuple[Tensor, Tensor, Tensor, dict[str, Tensor]]":
    """x, weight, the output's gradient, and what autograd makes of them."""
    import torch

    generator = torch.Generator().manual_seed(rows)
    sizes = ((rows, features), (out, features), (rows, out))
    x, weight, grad = (torch.randn(size, generator=generator, dtype=torch.float64) for size in sizes)
    x.requires_grad_(), weight.requires_grad_()
    found = torch.autograd.grad(torch.nn.functional.linear(x, weight), (x, weight), grad)
    return x.detach(), weight.detach(), grad, dict(zip(("input_grad", "weight_grad"), found, strict=True))


def _counted(half: Callable[..., Any], grad: "Tensor", given: "Tensor") -> tuple[Any, int]:
    """What it returns, or the RuntimeError of a product that does not fit; and its floating-point operations."""
    from torch.utils.flop_counter import FlopCounterMode

    counter = FlopCounterMode(display=False)
    try:
        half(grad, given)  # what never ends is ended here, and not within the counter, which would stay on
        with counter:
            got = half(grad, given)
    except RuntimeError as error:
        return error, 0
    return got, counter.get_total_flops()


def _unequal(got: Any, want: "Tensor", grad: "Tensor") -> str | None:
    """What is wrong with a gradient, as the middle of a sentence."""
    import torch

    if isinstance(got, RuntimeError):
        return f"fails ({str(got).partition(chr(10))[0]})"
    if not isinstance(got, torch.Tensor):
        return f"returns {' '.join(repr(got).split()):.40}, but a gradient is a tensor,"
    if got.shape != want.shape:
        turned = ", as it would be transposed," if got.ndim == 2 and got.T.shape == want.shape else ""
        return f"has shape {tuple(got.shape)}{turned} instead of {tuple(want.shape)}"
    if torch.allclose(got.double(), want):
        return None
    if torch.allclose(got.double() * len(grad), want):
        return "is divided by the rows, but a weight's gradient is the sum over rows,"
    return "is not the gradient that autograd finds"


# 6.2


@grader("6.2", minutes=12, difficulty=3)
def build_zb_h1(order: Order) -> str | None:
    """as short as ZB-H1, in the memory of 1F1B's first rank, for p up to 5 and m up to 10."""
    for p, m in COUNTS:
        rows = []
        for rank in range(p):
            row, said = read_row(order(rank, p, m), EXAMPLE), f"order({rank}, {p}, {m})"
            if isinstance(row, str):
                return f"{said} {row}"
            if wrong := _unfit(row, rank, m):
                return f"{said} {wrong}\nyours: {' '.join(map(str, row)) or 'nothing'}"
            rows.append(row)
        if wrong := _not_zb_h1(Schedule.from_rows(rows, name="yours"), p, m):
            return f"With p = {p} and m = {m}, {wrong}"
    return None


def _unfit(row: tuple[Action, ...], rank: int, m: int) -> str | None:
    """Work that is not this rank's, that is there twice, not there, or before what it needs on its own rank."""
    for n, action in enumerate(row):
        if action.stage != rank:
            return f"names {action}, but rank {rank} holds stage {rank} only."
        if action.op is Op.B:
            return f"names {action}, but here a backward is two actions, I and W."
        if action.microbatch >= m:
            return f"names {action}, but m is {m}: the last microbatch is {m - 1}."
        if action in row[:n]:
            return f"runs {action} twice."
        needed = {Op.W: Op.I, Op.I: Op.F}.get(action.op)
        if needed and action._replace(op=needed) not in row[:n]:
            return f"runs {action} before {action._replace(op=needed)}, which it needs."
    lost = [action for i in range(m) for op in (Op.F, Op.I, Op.W) if (action := Action(rank, op, i)) not in row]
    return f"never runs {lost[0]}." if lost else None


def _not_zb_h1(plan: Schedule, p: int, m: int) -> str | None:
    """All the work, and yet not what it should be; the rest of a sentence, and a picture."""
    if broken := validate(plan):
        return f"your plan does not run.\n{broken[0].message}"
    mine, want, held = simulate(plan), simulate(build("zb-h1", p=p, m=m)), in_flight(plan)
    most = max(range(p), key=held.__getitem__)
    if held[most] > min(p, m):
        why = "put W off by fewer microbatches" if _warm_up(plan, most) <= p - 1 - most else "its warm-up is too long"
        said = f"rank {most} holds {held[most]:g} microbatches, more than 1F1B's first rank ({min(p, m)}): {why}."
        return f"{said}\n{gantt_text(mine)}"
    if mine.makespan > want.makespan:
        why = _why_slow(plan)
        return f"your plan takes {mine.makespan:g} slots, but can take {want.makespan:g}{why}.\n{gantt_text(mine)}"
    return None


def _warm_up(plan: Schedule, rank: int) -> int:
    """How many forwards a rank runs before the one that its first I follows."""
    return next(n for n, action in enumerate(plan.rows[rank]) if action.op is Op.I) - 1


def _why_slow(plan: Schedule) -> str:
    p, m = plan.num_ranks, plan.num_microbatches
    if any(_warm_up(plan, rank) < min(m, p - rank) - 1 for rank in range(p)):
        return ": the warm-up is too short"
    last = plan.rows[-1]
    if all(last[last.index(Action(p - 1, Op.I, i)) + 1].op is Op.W for i in range(m)):
        return ": on the last rank each W follows its I at once, while the rank before waits for the next I"
    return ": somewhere a rank waits while it owes a W, or a W keeps an I waiting"


# 6.3


@grader("6.3", minutes=6, difficulty=2)
def break_the_formulas(case: Any) -> str | None:
    """there the simulator and the formulas disagree, so a condition does not hold."""
    case = as_numbers(case)
    if not (isinstance(case, list | tuple) and len(case) == 5 and all(isinstance(n, Real) for n in case)):
        return f"{case!r:.60} is not five numbers p, m, t_f, t_i, t_w, as in (4, 8, 1, 1, 1)."
    said = f"({', '.join(f'{float(n):g}' for n in case)})"
    if not (all(isinstance(n, Integral) for n in case[:2]) and 2 <= case[0] <= 16 and 1 <= case[1] <= 100):
        return f"In {said}, take whole numbers from 2 to 16 for p and from 1 to 100 for m."
    p, m, (f, i, w) = int(case[0]), int(case[1]), map(float, case[2:])
    if not all(0 < time < math.inf for time in (f, i, w)):
        return f"In {said}, t_f, t_i and t_w must be above 0."
    found, claimed = zip(*(_bubbles(name, p, m, f, i, w) for name in FORMULAS), strict=True)
    work = m * (f + i + w)
    if any(abs(a - b) > 1e-9 * work for a, b in zip(found, claimed, strict=True)):
        return None
    numbers = f"ZB-H1's bubble is {found[0]:g} and ZB-H2's {found[1]:g} by formula and by simulator"
    if w <= min(f, i) and m >= 2 * p:
        return f"In {said}, {numbers}: all conditions hold, t_w ≤ t_f, t_w ≤ t_i and m ≥ 2p; break one."
    broken = [text for text, breaks in (("t_w > t_f", w > f), ("t_w > t_i", w > i), ("m < 2p", m < 2 * p)) if breaks]
    return f"In {said}, {numbers}, although {' and '.join(broken)}: try another one."


def _bubbles(name: str, p: int, m: int, f: float, i: float, w: float) -> tuple[float, float]:
    """The bubble in the longest stage time, simulated and by the formula."""
    longest = simulate(build(name, p=p, m=m), Costs(f, i, w)).longest_stage_time
    return longest - m * (f + i + w), FORMULAS[name](p, f, i, w)


# 6.4


@grader("6.4", minutes=6, difficulty=2)
def undo_a_step(undo: Callable[..., Any]) -> str | None:
    """weight and buffer as before torch's step, but for rounding."""
    import torch

    for lr, momentum in ((0.5, 0.5), (0.1, 0.9)):
        before, (weight, buffer), grad = _stepped(lr, momentum)
        got = undo(weight.clone(), buffer.clone(), grad.clone(), lr, momentum)
        said = f"after a step with lr = {lr} and momentum = {momentum}, undo"
        if not (isinstance(got, tuple | list) and len(got) == 2 and all(isinstance(x, torch.Tensor) for x in got)):
            return f"{said} returns {got!r:.60}; return two tensors, weight and buffer."
        known = {
            "nothing is undone": [weight, buffer],
            "the step went down, so undoing goes up": [weight - lr * buffer],
            "the step took lr · buffer away, not lr · grad": [weight + lr * grad],
            "the step used the buffer as it is after it": [weight + lr * before[1]],
            "take grad away first, then divide by momentum": [buffer / momentum - grad],
            "divide by momentum, too": [buffer - grad],
            "give the weight first, then the buffer": [before[1], before[0]],
        }
        for name, mine, want in zip(("weight", "buffer"), got, before, strict=True):
            if not _close(mine, want):
                why = next((f": {why}" for why, wrong in known.items() if any(_close(mine, x) for x in wrong)), "")
                return f"{said} gives a {name} of {_short(mine)}, but before the step it was {_short(want)}{why}."
    return None


def _stepped(lr: float, momentum: float) -> "tuple[list[Tensor], list[Tensor], Tensor]":
    """[weight, buffer] before and after a step of torch's own, not the first, and its gradient."""
    import torch

    weight = torch.nn.Parameter(torch.tensor([1.0, -2.0], dtype=torch.float64))
    optimizer = torch.optim.SGD([weight], lr=lr, momentum=momentum)
    states: list[list[Tensor]] = []
    for grad in ([2.0, 4.0], [3.0, -1.0]):
        weight.grad = torch.tensor(grad, dtype=torch.float64)
        optimizer.step()
        states.append([weight.detach().clone(), optimizer.state[weight]["momentum_buffer"].clone()])
    assert weight.grad is not None
    return states[0], states[1], weight.grad


def _close(mine: "Tensor", want: "Tensor") -> bool:
    return mine.shape == want.shape and bool((mine.double() - want).abs().max() < 1e-9)


def _short(x: "Tensor") -> str:
    return f"[{', '.join(f'{float(one):.4g}' for one in x.flatten()[:4])}]"
