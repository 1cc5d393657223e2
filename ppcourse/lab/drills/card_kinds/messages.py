"""Cards on what travels: bytes across a cut, and the all-reduce of data parallelism beside it."""

import random

from ppcourse.lab.drills.kind import Drawn, kind

NARAYANAN = "Narayanan et al. 2021, §3"
HALF = 2  # bytes of a number in 16 bits
MB, GB = 1e6, 1e9


@kind("bytes-across-a-cut", lesson=1, level=2, unit="MB", source=NARAYANAN)
def bytes_across_a_cut(rng: random.Random) -> Drawn:
    m, b, s, h = rng.choice([4, 8, 16]), rng.choice([1, 2, 4]), rng.choice([1024, 2048, 4096]), rng.choice([2048, 4096])
    one = b * s * h * HALF / MB
    return Drawn(
        {"m": m, "b": b, "s": s, "h": h},
        f"A transformer is cut between two layers: microbatches of {b} sequences of {s} tokens, h = {h}, 16 bits, m = "
        f"{m}. How many MB (10⁶ bytes) cross this cut in a training step, both ways together?",
        2 * m * one,
        f"2 ways · m · b s h · 2 bytes = 2 · {m} · {one:.4g} MB; no parameters, no gradients of parameters.",
        {
            "that is one way; the gradient of each activation comes back, as large": m * one,
            "that is one microbatch only": 2 * one,
            "that counts numbers; each has 2 bytes": m * one,
            "that is in 32 bits": 4 * m * one,
        },
    )


@kind("ring-all-reduce", lesson=1, level=3, unit="GB", source=NARAYANAN)
def ring_all_reduce(rng: random.Random) -> Drawn:
    billions, d = rng.choice([1, 2, 4, 8]), rng.choice([2, 4, 8, 16])
    whole = billions * HALF
    return Drawn(
        {"billions": billions, "d": d},
        f"Data parallelism: {d} replicas of {billions} billion parameters reduce their 16-bit gradients in a ring. "
        "How many GB (10⁹ bytes) does each GPU send in a step?",
        2 * (d - 1) / d * whole,
        f"2 (d − 1) ÷ d times the {whole} GB of gradients: once round to sum them, once round to hand out the sums.",
        {
            "that is the reduce-scatter; the all-gather sends as much again": (d - 1) / d * whole,
            "2 for both rounds, but of d parts only d − 1 are sent": 2 * whole,
            "in a ring no GPU sends everything to everybody": (d - 1) * whole,
            "that counts numbers; each has 2 bytes": 2 * (d - 1) / d * billions,
        },
    )
