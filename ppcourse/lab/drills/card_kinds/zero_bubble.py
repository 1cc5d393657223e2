"""Cards on the split backward and on pipelines bent back: ZB-H1, ZB-H2, V-Half, V-Min, DualPipe."""

import random

from ppcourse.analysis import formulas
from ppcourse.lab.drills.kind import Drawn, kind

ZERO_BUBBLE = "Qi et al. 2024 (Zero Bubble, arXiv 2401.10241), §2"
CONTROLLABLE = "Qi et al. 2024 (controllable memory, arXiv 2405.15362)"
DUALPIPE = "DeepSeek-V3 report, §3.2.1, Table 2"

BACK_IN_FULL = "you put the full backward where the gradient of the input alone stands"


def _times(rng: random.Random) -> tuple[int, int, int, int, int]:
    """p, m ≥ 2p, and times with t_w < min(t_f, t_i), where the closed forms are exact."""
    p = rng.choice([3, 4, 6, 8])
    t_f, t_i = rng.randint(6, 12), rng.randint(6, 12)
    return p, 2 * p + rng.randint(0, 8), t_f, t_i, rng.randint(4, min(t_f, t_i) - 1)


def _given(p: int, m: int, t_f: int, t_i: int, t_w: int) -> str:
    return (
        f"p = {p}, m = {m}, equal stages, free hops: F takes {t_f} ms, I (gradient of the input) {t_i} ms, W "
        f"(gradient of the weights) {t_w} ms"
    )


@kind("zb-h1-bubble", lesson=6, level=2, unit="ms", source=ZERO_BUBBLE)
def zb_h1_bubble(rng: random.Random) -> Drawn:
    p, m, t_f, t_i, t_w = _times(rng)
    return Drawn(
        {"p": p, "m": m, "t_f": t_f, "t_i": t_i, "t_w": t_w},
        f"ZB-H1, {_given(p, m, t_f, t_i, t_w)}. How long is the bubble, the idle time of a rank?",
        formulas.zb_h1_bubble_time(p, t_f, t_i, t_w),
        f"(p − 1)(t_f + t_i − t_w) = {p - 1} · {t_f + t_i - t_w} ms; t_w ≤ min(t_f, t_i) and m ≥ 2p hold.",
        {
            "that is 1F1B's": formulas.bubble_time(p, t_f, t_i + t_w),
            "that is ZB-H2's, within its longest stage time": formulas.zb_h2_bubble_time(p, t_f, t_i, t_w),
            BACK_IN_FULL: (p - 1) * (t_f + t_i),
            "you took p where p − 1 stands": p * (t_f + t_i - t_w),
        },
    )


@kind("zb-h2-bubble", lesson=6, level=3, unit="ms", source=ZERO_BUBBLE)
def zb_h2_bubble(rng: random.Random) -> Drawn:
    p, m, t_f, t_i, t_w = _times(rng)
    return Drawn(
        {"p": p, "m": m, "t_f": t_f, "t_i": t_i, "t_w": t_w},
        f"ZB-H2, {_given(p, m, t_f, t_i, t_w)}. How long is the bubble within the longest stage time, the one that "
        "counts when the optimizer's synchronisation is bypassed?",
        formulas.zb_h2_bubble_time(p, t_f, t_i, t_w),
        f"(p − 1)(t_f + t_i − 2 t_w) = {p - 1} · {t_f + t_i - 2 * t_w} ms; t_w ≤ min(t_f, t_i) and m ≥ 2p hold.",
        {
            "that is 1F1B's": formulas.bubble_time(p, t_f, t_i + t_w),
            "that is ZB-H1's, and ZB-H2's within the makespan": formulas.zb_h1_bubble_time(p, t_f, t_i, t_w),
            "zero bubble is a name; it is zero only if t_f + t_i = 2 t_w": 0,
            "you took p where p − 1 stands": p * (t_f + t_i - 2 * t_w),
        },
    )


@kind("zb-h1-step", lesson=6, level=3, unit="ms", source=ZERO_BUBBLE)
def zb_h1_step(rng: random.Random) -> Drawn:
    p, m, t_f, t_i, t_w = _times(rng)
    work, bubble = m * (t_f + t_i + t_w), formulas.zb_h1_bubble_time(p, t_f, t_i, t_w)
    return Drawn(
        {"p": p, "m": m, "t_f": t_f, "t_i": t_i, "t_w": t_w},
        f"ZB-H1, {_given(p, m, t_f, t_i, t_w)}. How long is the step (makespan)?",
        work + bubble,
        f"m (t_f + t_i + t_w) + (p − 1)(t_f + t_i − t_w) = {work} + {bubble:g} ms.",
        {
            "that is 1F1B's": formulas.step_time(p, m, t_f, t_i + t_w),
            "that is the work alone": work,
            "that is ZB-H2's longest stage time": work + formulas.zb_h2_bubble_time(p, t_f, t_i, t_w),
        },
    )


@kind("zb-h2-held", lesson=6, level=2, unit="microbatches", source=ZERO_BUBBLE, count=True)
def zb_h2_held(rng: random.Random) -> Drawn:
    p = rng.choice([2, 3, 4, 6, 8, 12])
    m = 2 * p + rng.randint(0, 8)
    return Drawn(
        {"p": p, "m": m},
        f"ZB-H2, p = {p}, m = {m}. How many microbatches does rank 0 hold at its peak?",
        2 * p - 1,
        f"Its warm-up is 2 (p − 1) = {2 * p - 2} forwards, and one more comes before the first I.",
        {
            "that is 1F1B and ZB-H1": p,
            "that is the warm-up; one more F comes before the first I": 2 * p - 2,
            "the warm-up doubles, not the one F that comes after it": 2 * p,
            "that is GPipe, which holds all": m,
        },
    )


@kind("v-shape-held", lesson=7, level=4, unit="microbatches", source=CONTROLLABLE, count=True)
def v_shape_held(rng: random.Random) -> Drawn:
    p, half = rng.randint(4, 16), rng.random() < 0.5
    m = 2 * p + rng.randint(0, 8)
    v_half, v_min = (p + 2) // 2, (p + 4) // 3
    return Drawn(
        {"p": p, "m": m, "half": half},
        f"{'V-Half' if half else 'V-Min'}, p = {p}, m = {m}. At its peak, how much does the rank that holds most hold, "
        "in microbatches of its full activation (both its stages)?",
        v_half if half else v_min,
        f"(p + 2) ÷ 2 = {(p + 2) / 2:g}, rounded down." if half else f"(p + 4) ÷ 3 = {(p + 4) / 3:.4g}, rounded down.",
        {
            "that is V-Min" if half else "that is V-Half": v_min if half else v_half,
            "that is 1F1B and ZB-V": p,
            "you forgot what is added above the line": p // 2 if half else p // 3,
        },
    )


@kind("dualpipe-bubble", lesson=7, level=4, unit="ms", source=DUALPIPE)
def dualpipe_bubble(rng: random.Random) -> Drawn:
    p, each = rng.choice([4, 6, 8, 12, 16]), rng.randint(4, 12)
    m, pair, back = 2 * p + 2 * rng.randint(0, 4), rng.randint(2 * each, 3 * each), 2 * each
    return Drawn(
        {"p": p, "m": m, "each": each, "pair": pair},
        f"DualPipe, p = {p}, m = {m} (both directions together), free hops: F takes {each} ms, the full backward B "
        f"{back}, its weight part W {each}, a forward and a backward overlapped {pair}. How long is the bubble of the "
        "rank that waits longest?",
        formulas.dualpipe_bubble_time(p, back, each, pair),
        f"(p ÷ 2 − 1)(F&B + B − 3 W) = {p // 2 - 1} · {pair + back - 3 * each} ms, exact as F = B − W = W.",
        {
            "p ÷ 2 − 1, not p − 1: it is fed from both ends": (p - 1) * (pair + back - 3 * each),
            "that takes F and B one after the other for an overlapped pair": formulas.dualpipe_bubble_time(
                p, back, each, each + back
            ),
            "that is 1F1B's": formulas.bubble_time(p, each, back),
            "that is ZB-H1's (ZB1P in the report)": (p - 1) * (each + back - 2 * each),
            "B is the full backward there; you put the input part": (p / 2 - 1) * (pair + back - each - 3 * each),
        },
    )
