"""Cards on how long a step takes: pipelined, naive, recomputed, with hops, with one slow stage."""

import random

from ppcourse.analysis import formulas
from ppcourse.lab.drills.card import shown
from ppcourse.lab.drills.kind import Drawn, kind

NARAYANAN = "Narayanan et al. 2021, §2.2"
HUANG = "Huang et al. 2019, §2.3"


def _sizes(rng: random.Random) -> tuple[int, int, int, int]:
    """p, m, t_f and t_b; a B lasts about two F."""
    p, t_f = rng.choice([2, 3, 4, 8]), rng.choice([5, 10, 20])
    return p, p * rng.randint(1, 5) + rng.choice([0, 0, 1]), t_f, rng.choice([t_f, 2 * t_f, 2 * t_f, 3 * t_f])


def _given(p: int, m: int, t_f: int, t_b: int) -> str:
    return f"p = {p} equal ranks, m = {m} microbatches, t_f = {t_f} ms and t_b = {t_b} ms on each rank"


@kind("step-time", lesson=3, level=1, unit="ms", source=NARAYANAN)
def step_time(rng: random.Random) -> Drawn:
    p, m, t_f, t_b = _sizes(rng)
    both = t_f + t_b
    return Drawn(
        {"p": p, "m": m, "t_f": t_f, "t_b": t_b},
        f"GPipe, {_given(p, m, t_f, t_b)}, free hops. How long is a step?",
        formulas.step_time(p, m, t_f, t_b),
        f"(m + p − 1)(t_f + t_b) = {m + p - 1} · {both} ms.",
        {
            "that is the work of a rank alone, without the bubble": formulas.ideal_time(m, t_f, t_b),
            "that is one rank working at a time; here ranks overlap": formulas.naive_step_time(p, m, t_f, t_b),
            "only the p − 1 ranks before the last one have to be passed, not p": (m + p) * both,
            "that is the time of the forwards": (m + p - 1) * t_f,
            "you wait before the first action, but not after the last": m * both + (p - 1) * t_f,
        },
    )


@kind("naive-step-time", lesson=2, level=1, unit="ms", source=HUANG)
def naive_step_time(rng: random.Random) -> Drawn:
    p, m, t_f, t_b = _sizes(rng)
    return Drawn(
        {"p": p, "m": m, "t_f": t_f, "t_b": t_b},
        f"{_given(p, m, t_f, t_b)}, free hops. Each microbatch goes all the way forward and back before the next one "
        "starts. How long is a step?",
        formulas.naive_step_time(p, m, t_f, t_b),
        f"p m (t_f + t_b) = {p} · {m} · {t_f + t_b} ms: never two ranks at a time.",
        {
            "that is the pipelined step, in which ranks overlap": formulas.step_time(p, m, t_f, t_b),
            "that is one rank's own work; the others work before and after it": formulas.ideal_time(m, t_f, t_b),
            "that is one microbatch only": formulas.naive_step_time(p, 1, t_f, t_b),
        },
    )


@kind("naive-against-pipelined", lesson=2, level=2, unit="times", source=HUANG)
def naive_against_pipelined(rng: random.Random) -> Drawn:
    p, m, t_f, t_b = _sizes(rng)
    naive, piped = formulas.naive_step_time(p, m, t_f, t_b), formulas.step_time(p, m, t_f, t_b)
    return Drawn(
        {"p": p, "m": m, "t_f": t_f, "t_b": t_b},
        f"{_given(p, m, t_f, t_b)}, free hops. How many times faster is GPipe than sending one microbatch forward and "
        "back at a time?",
        naive / piped,
        f"{shown(naive)} ÷ {shown(piped)} ms, which is p m ÷ (m + p − 1): t_f and t_b do not matter.",
        {
            "that would be p ranks without a bubble": p,
            "that is the efficiency; the ratio is p times that": formulas.efficiency(p, m),
            "that is m; microbatches overlap, but only p ranks can work": m,
            "a step is m + p − 1 long, not m + p": p * m / (m + p),
        },
    )


@kind("recomputed-step", lesson=4, level=2, unit="ms", source=HUANG)
def recomputed_step(rng: random.Random) -> Drawn:
    p, m, t_f, t_b = _sizes(rng)
    slots = m + p - 1
    return Drawn(
        {"p": p, "m": m, "t_f": t_f, "t_b": t_b},
        f"GPipe as published, with recomputation: {_given(p, m, t_f, t_b)} (the backward alone), free hops. How long "
        "is a step?",
        formulas.step_time(p, m, t_f, t_f + t_b),
        f"Each B begins with another F: (m + p − 1)(t_f + t_f + t_b) = {slots} · {2 * t_f + t_b} ms.",
        {
            "that is without recomputation": formulas.step_time(p, m, t_f, t_b),
            "the forward is repeated, the backward is not": 2 * formulas.step_time(p, m, t_f, t_b),
            "the ranks that wait for these longer backwards become later, too": slots * (t_f + t_b) + m * t_f,
        },
    )


@kind("gpipe-with-hops", lesson=4, level=3, unit="ms", source=HUANG)
def gpipe_with_hops(rng: random.Random) -> Drawn:
    p, m, t_f, t_b = _sizes(rng)
    hop = rng.choice([2, 4]) * t_f // 5
    plain = formulas.step_time(p, m, t_f, t_b)
    return Drawn(
        {"p": p, "m": m, "t_f": t_f, "t_b": t_b, "hop": hop},
        f"GPipe, {_given(p, m, t_f, t_b)}. A hop takes {hop} ms and keeps no rank busy. How long is a step?",
        plain + 2 * (p - 1) * hop,
        f"Only the first microbatch on the way there and on the way back is waited for: {shown(plain)} + 2 (p − 1) · "
        f"{hop} ms.",
        {
            "that is with free hops": plain,
            "that folds a hop into every F and every B; later hops hide behind work": (m + p - 1)
            * (t_f + t_b + 2 * hop),
            "gradients have to come back, too": plain + (p - 1) * hop,
            "that waits for every message; all but the first hide behind work": plain + 2 * m * (p - 1) * hop,
        },
    )


@kind("slow-last-stage", lesson=9, level=3, unit="ms", source=NARAYANAN)
def slow_last_stage(rng: random.Random) -> Drawn:
    p, m, t_f, t_b = _sizes(rng)
    slow = rng.choice([1.25, 1.5, 2])
    both = t_f + t_b
    return Drawn(
        {"p": p, "m": m, "t_f": t_f, "t_b": t_b, "slow": slow},
        f"1F1B, {_given(p, m, t_f, t_b)}, except that the last rank, with the head, takes {slow:g} times as long. "
        "Free hops. How long is a step?",
        formulas.bubble_time(p, t_f, t_b) + m * slow * both,
        f"The slow rank never waits once it has begun: (p − 1)(t_f + t_b) + m · {slow:g} · (t_f + t_b) = "
        f"{(p - 1) * both} + {shown(m * slow * both)} ms.",
        {
            "that is with equal stages": formulas.step_time(p, m, t_f, t_b),
            "only one of the ranks is slow; filling and draining pass the others": slow
            * formulas.step_time(p, m, t_f, t_b),
            "that is the mean rank; the slowest one sets the pace": formulas.step_time(p, m, t_f, t_b)
            * (p - 1 + slow)
            / p,
            "the slow rank is late with every microbatch, not with one": formulas.step_time(p, m, t_f, t_b)
            + (slow - 1) * both,
        },
    )


@kind("uneven-layers", lesson=9, level=2, unit="%", source=NARAYANAN)
def uneven_layers(rng: random.Random) -> Drawn:
    p = rng.choice([4, 6, 8])
    layers = p * rng.randint(2, 6) + rng.randint(1, p - 1)
    most = -(-layers // p)
    return Drawn(
        {"p": p, "layers": layers},
        f"{layers} equal layers go on p = {p} ranks as evenly as whole layers allow. With very many microbatches, "
        "what share of its time is a rank busy, on average?",
        100 * layers / (p * most),
        f"The fullest rank has {most} layers and sets the pace; on average a rank has {layers / p:.4g}.",
        {
            "ranks with fewer layers wait for the fullest": 100,
            "that is the emptiest rank; asked for is the average": 100 * (most - 1) / most,
            "that is the share of ranks that never wait": 100 * (layers % p) / p,
        },
    )
