"""Lesson 08, measure peak memory: what a rank holds, how many microbatches fit, what W needs."""

import math
from collections.abc import Callable
from functools import cache
from numbers import Real
from typing import TYPE_CHECKING, Any

from ppcourse.analysis.in_flight import in_flight, in_flight_bytes
from ppcourse.lab.graders import grader
from ppcourse.lab.graders.numbers import as_numbers
from ppcourse.schedules import build

if TYPE_CHECKING:
    from torch import nn

# 8.1


HELD = [(1, 1, 8), (2, 1, 8), (2, 4, 8), (4, 2, 8), (4, 8, 8), (8, 32, 32)]  # p, m, layers


OTHER_PEAKS: dict[str, Callable[[int, int, int, int], float]] = {
    "yours has all layers on each rank": lambda rank, p, m, layers: min(m, p - rank) * layers,
    "yours is GPipe": lambda rank, p, m, layers: m * layers / p,
    "yours is rank 0's": lambda rank, p, m, layers: min(m, p) * layers / p,
    "later ranks hold less, and no rank more than m": lambda rank, p, m, layers: layers,
    "yours counts microbatches": lambda rank, p, m, layers: min(m, p - rank),
    "yours is one microbatch": lambda rank, p, m, layers: layers / p,
    "there are no more microbatches than m": lambda rank, p, m, layers: (p - rank) * layers / p,
    "add the forward before the first backward": lambda rank, p, m, layers: min(m, p - 1 - rank) * layers / p,
    "yours grows from rank to rank": lambda rank, p, m, layers: min(m, rank + 1) * layers / p,
}


@grader("8.1", minutes=5, difficulty=1)
def what_a_rank_holds(held: Callable[[int, int, int, int], Any]) -> str | None:
    """what the plans hold, for every rank."""
    cases = [(rank, p, m, layers) for p, m, layers in HELD for rank in range(p)]
    answers = [as_numbers(held(*case)) for case in cases]
    for case, got in zip(cases, answers, strict=True):
        rank, p, m, layers = case
        said = f"held({rank}, {p}, {m}, {layers}) is {_text(got)}"
        if not _number(got):
            return f"{said}; return a number of layers' worth."
        plan = build("1f1b", p=p, m=m)
        most = in_flight_bytes(plan, layers / p)[rank]
        if not math.isclose(got, most):
            known = [why for why, rule in OTHER_PEAKS.items() if answers == [rule(*one) for one in cases]]
            count = in_flight(plan)[rank]
            what = f"{count:g} microbatch{'es' * (count != 1)} of {layers / p:g} layer{'s' * (layers != p)}"
            return f"{said}, but should be {most:g}: {what}{''.join(f'; {why}' for why in known)}."
    return None


# 8.2


ROOMS = [("gpipe", 4, 10, 85), ("1f1b", 4, 10, 35), ("1f1b", 4, 10, 40), ("1f1b", 2, 7, 100), ("gpipe", 2, 7, 6)]
ROOMS += [("1f1b", 2, 7, 6), ("gpipe", 8, 1, 8), ("1f1b", 8, 1, 7), ("1f1b", 1, 3, 3)]


@grader("8.2", minutes=6, difficulty=2)
def how_many_fit(largest_m: Callable[[str, int, int, int], Any]) -> str | None:
    """as many as fit, and one more does not."""
    for case in ROOMS:
        schedule, p, kept, room = case
        got, said = as_numbers(largest_m(*case)), f'largest_m("{schedule}", {p}, {kept}, {room})'
        if not isinstance(got, int | float) or isinstance(got, bool) or math.isnan(got):
            return f"{said} is {_text(got)}; return a number, or math.inf."
        if got < 0 or (got != math.inf and got % 1):
            return f"{said} is {_text(got)}; a number of microbatches is a whole number of at least 0."
        fits = _most_that_fit(*case)
        if got > fits:
            over = f"{fits + 1:g} already hold {_holds(schedule, p, int(fits) + 1, kept):g} bytes"
            return f"{said} is {_text(got)}, but {over} on rank 0: {fits:g} fit."
        if got < fits:
            return f"{said} is {_text(got)}, but {_more(got, fits, schedule, p, kept)}."
    return None


def _holds(schedule: str, p: int, m: int, kept: int) -> float:
    return in_flight_bytes(build(schedule, p=p, m=m), kept)[0]


def _most_that_fit(schedule: str, p: int, kept: int, room: int) -> float:
    """By trying; what still fits at 8p fits always, for a peak that has not grown since p does not grow."""
    fits = [m for m in range(1, 8 * p + 16) if _holds(schedule, p, m, kept) <= room]
    flat = _holds(schedule, p, 8 * p, kept) == _holds(schedule, p, 4 * p, kept)
    return math.inf if flat and fits and fits[-1] == 8 * p + 15 else max(fits, default=0)


def _more(got: float, fits: float, schedule: str, p: int, kept: int) -> str:
    holds = _holds(schedule, p, int(got) + 1, kept)
    if fits == math.inf:
        return f"with {got + 1:g} rank 0 still holds {holds:g} bytes, and with any m: return math.inf"
    return f"{got + 1:g} fit too, and hold {holds:g} bytes"


# 8.3


WIDTHS = [(64, 256), (32, 32), (128, 16)]


@grader("8.3", minutes=8, difficulty=3, limit=60)
def what_w_needs(share: Callable[[int, int], Any]) -> str | None:
    """what a real stage keeps after I, measured."""
    for d, h in WIDTHS:
        got, said = as_numbers(share(d, h)), f"share({d}, {h})"
        if not _number(got):
            return f"{said} is {_text(got)}; return one number."
        after_f, after_i = measured(d, h)
        if not math.isclose(got, after_i / after_f, rel_tol=1e-6):
            numbers = f"a row has {after_i:g} numbers left after I, of {after_f:g} after F"
            return f"{said} is {_text(got)}, but should be {after_i / after_f:.6g}: {numbers}{_w_misses(got, d, h)}."
    return None


def _w_misses(got: float, d: int, h: int) -> str:
    known = {
        "yours has either the inputs or the output gradients; W multiplies the ones with the others": d + h,
        "yours is all that F kept, but GELU's input is not needed any more": d + 2 * h,
        "yours keeps what F kept, and the output gradients; GELU's input is not needed any more": 2 * d + 3 * h,
        "the gradient of the hidden vector is missing": 2 * d + h,
        "divide by what F kept": 2 * (d + h) * (d + 2 * h),
    }
    return next((f"; {why}" for why, count in known.items() if math.isclose(got, count / (d + 2 * h))), "")


@cache
def measured(d: int, h: int) -> tuple[float, float]:
    """Numbers that a row leaves alive in a real stage: after its F, and after its I."""
    from torch import nn

    rows = 4
    after_f, after_i = left_behind(nn.Sequential(nn.Linear(d, h), nn.GELU(), nn.Linear(h, d)), (rows, d))
    return after_f / (4 * rows), after_i / (4 * rows)


def left_behind(layer: "nn.Module", shape: tuple[int, ...]) -> tuple[int, int]:
    """Bytes that a stage of one layer keeps of a microbatch: from F until I, and from I until W."""
    import torch

    from ppcourse.runtime.meter import LiveBytes
    from ppcourse.runtime.stages.stage import Stage

    stage, meter = Stage({0: layer}, None), LiveBytes(layer)
    weights = meter.live
    inputs, grads = torch.randn(shape, requires_grad=True), [torch.randn(shape)]
    meter.watch(inputs)
    with meter:
        stage.forward(0, inputs, split=True)
    after_f = meter.live - weights
    meter.watch(grads)
    with meter:
        stage.input_grad(0, list(grads))
    del inputs, grads
    return after_f, meter.live - weights


def _number(value: Any) -> bool:
    return isinstance(value, Real) and not isinstance(value, bool) and math.isfinite(value)


def _text(value: Any) -> str:
    return f"{float(value):.6g}" if isinstance(value, Real) else f"{value!r:.80}"
