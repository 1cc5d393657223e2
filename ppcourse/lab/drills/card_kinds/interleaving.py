"""Cards on interleaving: its overhead, its messages, what it holds, and where layers live."""

import random

from ppcourse.analysis import formulas
from ppcourse.lab.drills.card import shown
from ppcourse.lab.drills.kind import Drawn, kind

NARAYANAN = "Narayanan et al. 2021, §2.2"
KORTHIKANTI = "Korthikanti et al. 2022, §4.2.3"


def _sizes(rng: random.Random) -> tuple[int, int, int]:
    p = rng.choice([2, 3, 4, 8])
    return p, p * rng.randint(2, 6), rng.choice([2, 3, 4])


@kind("interleaved-overhead", lesson=5, level=2, unit="%", source=NARAYANAN)
def interleaved_overhead(rng: random.Random) -> Drawn:
    p, m, v = _sizes(rng)
    return Drawn(
        {"p": p, "m": m, "v": v},
        f"Interleaved 1F1B, p = {p}, m = {m}, v = {v} stages a rank, free hops. How large is the bubble overhead, "
        "idle ÷ busy time?",
        100 * formulas.bubble_overhead(p, m, v),
        f"(p − 1) ÷ (v m) = {p - 1} ÷ {v * m}.",
        {
            "that is without interleaving": 100 * formulas.bubble_overhead(p, m),
            "that is the rate, idle ÷ all time": 100 * formulas.bubble_rate(p, m, v),
            "that is plain 1F1B's rate over v; v divides the overhead": 100 * formulas.bubble_rate(p, m) / v,
            "you took p where p − 1 stands: a pipeline of one rank has no bubble": 100 * p / (v * m),
        },
    )


@kind("interleaved-rate", lesson=5, level=3, unit="%", source=NARAYANAN)
def interleaved_rate(rng: random.Random) -> Drawn:
    p, m, v = _sizes(rng)
    return Drawn(
        {"p": p, "m": m, "v": v},
        f"Interleaved 1F1B, p = {p}, m = {m}, v = {v} stages a rank, free hops. How large is the bubble rate, idle ÷ "
        "all time?",
        100 * formulas.bubble_rate(p, m, v),
        f"(p − 1) ÷ (v m + p − 1) = {p - 1} ÷ {v * m + p - 1}.",
        {
            "that is plain 1F1B's rate over v; v divides the overhead, not the rate": 100
            * formulas.bubble_rate(p, m)
            / v,
            "that is the overhead, idle ÷ busy time": 100 * formulas.bubble_overhead(p, m, v),
            "that is without interleaving": 100 * formulas.bubble_rate(p, m),
        },
    )


@kind("interleaved-messages", lesson=5, level=3, unit="messages", source=NARAYANAN, count=True)
def interleaved_messages(rng: random.Random) -> Drawn:
    p, m, v = _sizes(rng)
    return Drawn(
        {"p": p, "m": m, "v": v},
        f"Interleaved 1F1B, p = {p}, m = {m}, v = {v}. How many messages go from rank to rank in a training step, "
        "activations and gradients together?",
        2 * m * (p * v - 1),
        f"A microbatch passes p v − 1 = {p * v - 1} cuts, on the way there and back: 2 · {m} · {p * v - 1}.",
        {
            "that is v times plain 1F1B's; the way back to rank 0 is a hop, too": 2 * m * v * (p - 1),
            "those are the activations; as many gradients come back": m * (p * v - 1),
            "that is plain 1F1B": 2 * m * (p - 1),
            "p v stages have p v − 1 cuts between them": 2 * m * p * v,
            "that is one microbatch": 2 * (p * v - 1),
        },
    )


@kind("interleaved-held", lesson=5, level=3, unit="microbatches", source=KORTHIKANTI)
def interleaved_held(rng: random.Random) -> Drawn:
    p, m, v = _sizes(rng)
    m = max(m, 3 * p)
    first = formulas.interleaved_in_flight(p, m, v)[0]
    return Drawn(
        {"p": p, "m": m, "v": v},
        f"Interleaved 1F1B, p = {p}, m = {m}, v = {v}. At its peak, how much does rank 0 hold, in microbatches of its "
        "full activation (all its stages)?",
        first,
        f"p (1 + (p − 1) ÷ (p v)) = p + (p − 1) ÷ v = {p} + {p - 1} ÷ {v}: a warm-up of 2 (p − 1) + (v − 1) p chunks "
        "and one more, each 1 ÷ v.",
        {
            "that is plain 1F1B": p,
            "that counts chunks; each is 1 ÷ v of a microbatch here": first * v,
            "that is the warm-up; one more chunk comes before the first B": first - 1 / v,
            "that is twice 1F1B's; only the extra depth is spread over v": 2 * p - 1,
        },
    )


@kind("interleaved-layer", lesson=5, level=2, source=NARAYANAN, count=True)
def interleaved_layer(rng: random.Random) -> Drawn:
    p, v, each = rng.choice([3, 4, 8]), rng.choice([2, 3, 4]), rng.choice([1, 2, 4])
    rank, chunk = rng.randint(0, p - 1), rng.randint(1, v - 1)
    layers = p * v * each
    return Drawn(
        {"p": p, "v": v, "layers": layers, "rank": rank, "chunk": chunk},
        f"{layers} layers, numbered from 1; p = {p}, v = {v}, interleaved as in Megatron-LM. Which is the first layer "
        f"of rank {rank}'s chunk {chunk} (ranks and chunks count from 0)?",
        (chunk * p + rank) * each + 1,
        f"Chunk {chunk} of rank {rank} is stage {chunk} · {p} + {rank} = {chunk * p + rank}, and a stage has {each} "
        f"layer{'s' * (each != 1)}.",
        {
            "you gave each rank neighbouring layers; chunks go round robin": (rank * v + chunk) * each + 1,
            "layers are numbered from 1 here": (chunk * p + rank) * each,
            "that is the stage, not the layer": chunk * p + rank,
            "that is the rank's first chunk": rank * each + 1,
        },
    )


@kind("v-for-overhead", lesson=5, level=3, unit="stages a rank", source=NARAYANAN, count=True)
def v_for_overhead(rng: random.Random) -> Drawn:
    p, times, percent = rng.choice([4, 6, 8]), rng.randint(1, 3), rng.choice([5, 8, 10, 12, 15])
    m = p * times
    v = -(-100 * (p - 1) // (percent * m))
    return Drawn(
        {"p": p, "m": m, "percent": percent},
        f"p = {p}, m = {m}, free hops. The bubble overhead is to be {percent}% or less. How many stages a rank does "
        "interleaved 1F1B need at least?",
        v,
        f"v ≥ (p − 1) ÷ (m · {percent / 100:g}) = {shown(100 * (p - 1) / (m * percent))}, rounded up.",
        {
            "rounded down, the overhead stays above the target": v - 1,
            "that is for the rate; the overhead is idle ÷ busy time": -(-(100 - percent) * (p - 1) // (percent * m)),
            "you took p where p − 1 stands": -(-100 * p // (percent * m)),
        },
    )
