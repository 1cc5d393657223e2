"""Cards on the bubble: overhead, rate, speed-up and efficiency, and how many microbatches it takes."""

import math
import random

from ppcourse.analysis import formulas
from ppcourse.lab.drills.kind import Drawn, kind

NARAYANAN = "Narayanan et al. 2021, §2.2"
HUANG = "Huang et al. 2019, §2.3"

OVERHEAD = "that is the overhead, idle ÷ busy time"
RATE = "that is the rate, idle ÷ all time"
EFFICIENCY = "that is the efficiency, busy ÷ all time"
SPEED_UP = "that is the speed-up over one rank, p times the efficiency"
P_NOT_P_MINUS_1 = "you took p where p − 1 stands: a pipeline of one rank has no bubble"
SWAPPED = "p and m have changed places"


def _sizes(rng: random.Random) -> tuple[int, int]:
    """p and m, at least as many microbatches as ranks."""
    p = rng.choice([2, 4, 6, 8, 12, 16])
    return p, p * rng.randint(1, 6) + rng.choice([0, 0, 0, 1, 2])


def _step(p: int, m: int) -> str:
    return f"1F1B with a flush, p = {p} equal ranks, m = {m} microbatches, free hops"


@kind("bubble-overhead", lesson=3, level=1, unit="%", source=NARAYANAN)
def bubble_overhead(rng: random.Random) -> Drawn:
    p, m = _sizes(rng)
    return Drawn(
        {"p": p, "m": m},
        f"{_step(p, m)}. How large is the bubble overhead, idle ÷ busy time?",
        100 * formulas.bubble_overhead(p, m),
        f"(p − 1) ÷ m = {p - 1} ÷ {m}.",
        {
            f"{RATE}; the overhead divides by the busy time only": 100 * formulas.bubble_rate(p, m),
            EFFICIENCY: 100 * formulas.efficiency(p, m),
            P_NOT_P_MINUS_1: 100 * p / m,
            SWAPPED: 100 * (m - 1) / p,
        },
    )


@kind("bubble-rate", lesson=3, level=1, unit="%", source=HUANG)
def bubble_rate(rng: random.Random) -> Drawn:
    p, m = _sizes(rng)
    return Drawn(
        {"p": p, "m": m},
        f"{_step(p, m)}. How large is the bubble rate, idle ÷ all time?",
        100 * formulas.bubble_rate(p, m),
        f"(p − 1) ÷ (m + p − 1) = {p - 1} ÷ {m + p - 1}.",
        {
            f"{OVERHEAD}; the rate divides by the whole step": 100 * formulas.bubble_overhead(p, m),
            EFFICIENCY: 100 * formulas.efficiency(p, m),
            P_NOT_P_MINUS_1: 100 * p / (m + p),
            f"{P_NOT_P_MINUS_1} (you have it right below the line)": 100 * p / (m + p - 1),
            SWAPPED: 100 * (m - 1) / (m + p - 1),
        },
    )


@kind("efficiency", lesson=3, level=1, unit="%", source=HUANG)
def efficiency(rng: random.Random) -> Drawn:
    p, m = _sizes(rng)
    return Drawn(
        {"p": p, "m": m},
        f"{_step(p, m)}. What share of the step is a rank busy?",
        100 * formulas.efficiency(p, m),
        f"m ÷ (m + p − 1) = {m} ÷ {m + p - 1}.",
        {
            f"{RATE}; take what is left of 1": 100 * formulas.bubble_rate(p, m),
            "you took the overhead away from 1; what is left of 1 goes with the rate": 100
            * (1 - formulas.bubble_overhead(p, m)),
            SPEED_UP: formulas.speed_up(p, m),
            "a step is m + p − 1 long, not m + p": 100 * m / (m + p),
        },
    )


@kind("speed-up", lesson=3, level=2, unit="times", source=HUANG)
def speed_up(rng: random.Random) -> Drawn:
    p, m = _sizes(rng)
    return Drawn(
        {"p": p, "m": m},
        f"{_step(p, m)}. How many times faster than one rank that does all the work alone?",
        formulas.speed_up(p, m),
        f"p m ÷ (m + p − 1) = {p * m} ÷ {m + p - 1}.",
        {
            f"{EFFICIENCY}; the speed-up is p times that": formulas.efficiency(p, m),
            "that would be p ranks without a bubble": p,
            "a step is m + p − 1 long, not m + p": p * m / (m + p),
            "that is the number of microbatches": m,
        },
    )


@kind("rate-from-overhead", lesson=3, level=2, unit="%", source=f"{NARAYANAN}; {HUANG}")
def rate_from_overhead(rng: random.Random) -> Drawn:
    p, m = _sizes(rng)
    overhead = formulas.bubble_overhead(p, m)
    return Drawn(
        {"p": p, "m": m},
        f"A paper reports a bubble time fraction of {overhead:.2%}, idle ÷ ideal time. Which bubble rate, idle ÷ all "
        "time, is that?",
        100 * overhead / (1 + overhead),
        f"r = o ÷ (1 + o) = {overhead:.4g} ÷ {1 + overhead:.4g}.",
        {
            "that is the overhead unchanged; the rate has the idle time below the line as well": 100 * overhead,
            "1 ÷ (1 + o) is the efficiency": 100 / (1 + overhead),
            "o ÷ (1 − o) goes the other way, from a rate to an overhead": 100 * overhead / (1 - overhead),
        },
    )


@kind("microbatches-for-rate", lesson=3, level=2, unit="microbatches", source=HUANG, count=True)
def microbatches_for_rate(rng: random.Random) -> Drawn:
    p, percent = rng.choice([2, 3, 4, 6, 8]), rng.choice([5, 10, 20, 25, 40])
    rate = percent / 100
    exact = formulas.microbatches_for_rate(p, rate)
    return Drawn(
        {"p": p, "percent": percent},
        f"1F1B on p = {p} equal ranks, free hops. How many microbatches are needed at least, so that the bubble rate "
        f"is {percent}% or less?",
        _whole(exact),
        f"m ≥ (p − 1)(1 ÷ r − 1) = {p - 1} · {1 / rate - 1:.4g}, rounded up.",
        {
            "that keeps the overhead at the target, which is stricter than the rate": _whole((p - 1) / rate),
            P_NOT_P_MINUS_1: _whole(p * (1 / rate - 1)),
            "4 p is a rule of thumb, not the least": 4 * p,
            "that is one too many: at most includes equal": _whole(exact) + 1,
        },
    )


@kind("overhead-from-batch", lesson=11, level=3, unit="%", source="Narayanan et al. 2021, §2.2 and §3")
def overhead_from_batch(rng: random.Random) -> Drawn:
    p, t, d, b = rng.choice([4, 8]), rng.choice([2, 4, 8]), rng.choice([2, 4, 8]), rng.choice([1, 2, 4])
    m = p * rng.randint(1, 6)
    batch = m * b * d
    return Drawn(
        {"p": p, "t": t, "gpus": p * t * d, "batch": batch, "b": b},
        f"{p * t * d} GPUs: tensor-parallel size {t}, pipeline size {p}, the rest data-parallel. The global batch is "
        f"{batch} sequences, a microbatch {b}. How large is the bubble overhead of 1F1B (equal ranks, free hops)?",
        100 * formulas.bubble_overhead(p, m),
        f"d = {p * t * d} ÷ ({t} · {p}) = {d}; m = {batch} ÷ ({d} · {b}) = {m}; (p − 1) ÷ m = {p - 1} ÷ {m}.",
        {
            "you forgot that the data-parallel replicas share the batch": 100 * formulas.bubble_overhead(p, m * d),
            "you forgot that a microbatch has several sequences": 100 * formulas.bubble_overhead(p, m * b),
            "that is the batch as if each sequence were a microbatch of every replica": 100 * (p - 1) / batch,
            f"{RATE}": 100 * formulas.bubble_rate(p, m),
        },
    )


def _whole(number: float) -> int:
    """Rounded up, but not for what the computer's rounding alone lifts above a whole number."""
    return max(1, math.ceil(round(number, 9)))
