"""Cards on memory: what a rank holds in GPipe and 1F1B, weights and their optimizer, activations of a layer."""

import random

from ppcourse.analysis import formulas
from ppcourse.lab.drills.card import shown
from ppcourse.lab.drills.kind import Drawn, kind

NARAYANAN = "Narayanan et al. 2021, §2.2"
KORTHIKANTI = "Korthikanti et al. 2022, Table 2"
MEGATRON = "Megatron-LM's documentation of the distributed optimizer: bf16 weights, fp32 gradients"

BYTES = {"weights in bf16": 2, "gradients in fp32": 4, "fp32 weights and Adam's two moments": 12}


@kind("held-in-1f1b", lesson=4, level=1, unit="microbatches", source=NARAYANAN, count=True)
def held_in_1f1b(rng: random.Random) -> Drawn:
    p = rng.choice([4, 6, 8, 12])
    m, rank = p * rng.randint(2, 4), rng.randint(0, p - 2)
    return Drawn(
        {"p": p, "m": m, "rank": rank},
        f"1F1B, p = {p}, m = {m}. How many microbatches does rank {rank} hold at its peak (ranks count from 0)?",
        formulas.one_f_one_b_in_flight(p, m)[rank],
        f"min(m, p − rank) = {p} − {rank}: its warm-up of p − 1 − rank, and one more.",
        {
            "that is GPipe, which holds all": m,
            "that is rank 0; each later rank holds one less": p,
            "that is the warm-up; one more F comes before the first B": p - 1 - rank,
            "you count from the wrong end: the first rank holds most": rank + 1,
        },
    )


@kind("gpipe-more-than-1f1b", lesson=4, level=2, unit="GB", source=NARAYANAN)
def gpipe_more_than_1f1b(rng: random.Random) -> Drawn:
    p = rng.choice([4, 8, 16])
    m, each = p * rng.randint(2, 6), rng.choice([0.5, 0.8, 1.2, 1.5])
    gpipe, one = formulas.gpipe_in_flight(p, m)[0], formulas.one_f_one_b_in_flight(p, m)[0]
    return Drawn(
        {"p": p, "m": m, "each": each},
        f"p = {p}, m = {m}; the activations of one microbatch take {each:g} GB on each rank. How much more memory do "
        "they take on rank 0 in GPipe than in 1F1B, without recomputation?",
        (gpipe - one) * each,
        f"GPipe holds m = {m}, 1F1B min(m, p) = {one}: ({m} − {one}) · {each:g} GB.",
        {
            "that is all of GPipe": gpipe * each,
            "that is all of 1F1B": one * each,
            "that is the last rank, which holds one microbatch in 1F1B": (m - 1) * each,
        },
    )


@kind("layers-held", lesson=8, level=3, unit="layers", source=NARAYANAN)
def layers_held(rng: random.Random) -> Drawn:
    p, per_rank = rng.choice([4, 8]), rng.choice([2, 4, 6, 10])
    m, rank, layers = p * rng.randint(2, 4), rng.randint(0, p - 2), p * per_rank
    return Drawn(
        {"p": p, "m": m, "rank": rank, "layers": layers},
        f"{layers} equal layers, 1F1B on p = {p} ranks, m = {m}. At its peak, the activations of how many layers (one "
        f"microbatch in one layer counts as one) does rank {rank} hold?",
        formulas.one_f_one_b_in_flight(p, m)[rank] * per_rank,
        f"{p - rank} microbatches in {layers} ÷ {p} = {per_rank} layers. On rank 0 that is all {layers}, as on one "
        "GPU without a pipeline.",
        {
            "that is its layers for one microbatch only": per_rank,
            "that is rank 0": p * per_rank,
            "that is GPipe, which holds all microbatches": m * per_rank,
            "you count from the wrong end: the first rank holds most": (rank + 1) * per_rank,
        },
    )


@kind("training-state", lesson=1, level=1, unit="GB", source=MEGATRON)
def training_state(rng: random.Random) -> Drawn:
    billions, p, t = rng.choice([7, 13, 30, 70]), rng.choice([2, 4, 8]), rng.choice([1, 2, 4])
    each = sum(BYTES.values())
    return Drawn(
        {"billions": billions, "p": p, "t": t},
        f"A model of {billions} billion parameters, spread evenly on pipeline size {p} and tensor size {t}, with "
        "Adam: bf16 weights, fp32 gradients, fp32 weights and moments. How many GB (10⁹ bytes) is that on a GPU, "
        "without activations?",
        billions * each / (p * t),
        f"{' + '.join(map(str, BYTES.values()))} = {each} bytes a parameter: {billions} · {each} ÷ ({p} · {t}) GB.",
        {
            "those are the weights alone": billions * 2 / (p * t),
            "that leaves the gradients out": billions * 14 / (p * t),
            "16 bytes are for gradients in half precision": billions * 16 / (p * t),
            "you did not divide by the pipeline": billions * each / t,
            "you did not divide by the tensor-parallel size": billions * each / p,
        },
    )


@kind("state-with-zero-1", lesson=11, level=3, unit="GB", source=MEGATRON)
def state_with_zero_1(rng: random.Random) -> Drawn:
    billions, p, d = rng.choice([7, 13, 30, 70]), rng.choice([2, 4, 8]), rng.choice([2, 4, 8, 16])
    kept, spread = BYTES["weights in bf16"] + BYTES["gradients in fp32"], 12
    return Drawn(
        {"billions": billions, "p": p, "d": d},
        f"{billions} billion parameters, spread evenly on pipeline size {p}; data-parallel size {d} with ZeRO-1. bf16 "
        "weights and fp32 gradients stay whole; fp32 weights and Adam's moments are shared out. How many GB (10⁹ "
        "bytes) on a GPU, without activations?",
        billions * (kept + spread / d) / p,
        f"({kept} + {spread} ÷ {d}) bytes a parameter, {billions} ÷ {p} billion of them.",
        {
            "that is without ZeRO-1": billions * (kept + spread) / p,
            "ZeRO-1 shares out the optimizer's state, not weights and gradients": billions * (kept + spread) / (p * d),
            "that shares out gradients too, which is ZeRO-2": billions * (2 + 16 / d) / p,
            "you did not divide by the pipeline": billions * (kept + spread / d),
        },
    )


@kind("layer-activations", lesson=8, level=4, unit="GB", source=KORTHIKANTI)
def layer_activations(rng: random.Random) -> Drawn:
    heads, head_size = rng.choice([16, 32, 64]), 128
    s, b, h, t = rng.choice([1024, 2048, 4096]), rng.choice([1, 2, 4]), heads * head_size, rng.choice([1, 2, 4, 8])
    scores = 5 * heads * s / h
    whole = s * b * h / 1e9
    answer = whole * (10 + 24 / t + scores / t)
    return Drawn(
        {"s": s, "b": b, "h": h, "a": heads, "t": t},
        f"A transformer layer in 16 bits, scores stored (no fused attention): s = {s} tokens, b = {b}, h = {h}, a = "
        f"{heads} heads, tensor-parallel size {t} without sequence parallelism. How many GB (10⁹ bytes) of "
        "activations does it keep for a microbatch?",
        answer,
        f"s b h (10 + 24 ÷ t + 5 a s ÷ (h t)) = {shown(whole)} · (10 + {24 / t:g} + {scores / t:g}) GB.",
        {
            "you forgot the attention scores, 5 a s² b": whole * (10 + 24 / t),
            "the inputs and the layer norms are not split: 10 s b h stay on every rank": whole * (34 + scores) / t,
            "that is without tensor parallelism": whole * (34 + scores),
            "you forgot that a microbatch has several sequences": answer / b,
        },
    )
