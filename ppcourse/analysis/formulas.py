"""The closed forms, each with the conditions under which it is exact; outside them the simulator decides.

    p  ranks          v         stages a rank
    m  microbatches   t_f, t_b  forward and full backward of one rank's layers

All hold for equal stages and free hops (t_f and t_b may differ from each other), from the first start to
the last end. Each raises ValueError for a p, m or v that is no whole number of at least 1.
"""

from ppcourse.analysis.counted import counted


@counted
def ideal_time(m: int, forward: float, backward: float) -> float:
    """m (t_f + t_b): a step without any bubble, on every rank. Narayanan et al. 2021, §2.2."""
    return m * (forward + backward)


@counted
def bubble_time(p: int, forward: float, backward: float, v: int = 1) -> float:
    """(p − 1)(t_f + t_b) ÷ v: the idle time of every rank in GPipe and 1F1B (v = 1) and interleaved 1F1B.

    On the last rank (p − 1) t_f before its first action and (p − 1) t_b after its last. With v > 1, m must
    be a multiple of p. Narayanan et al. 2021, §2.2.
    """
    return (p - 1) * (forward + backward) / v


@counted
def step_time(p: int, m: int, forward: float, backward: float, v: int = 1) -> float:
    """(m + (p − 1) ÷ v)(t_f + t_b): ideal time and bubble. Conditions as for bubble_time."""
    return ideal_time(m, forward, backward) + bubble_time(p, forward, backward, v)


@counted
def naive_step_time(p: int, m: int, forward: float, backward: float) -> float:
    """p m (t_f + t_b): no two ranks ever work at the same time."""
    return p * m * (forward + backward)


@counted
def bubble_overhead(p: int, m: int, v: int = 1) -> float:
    """(p − 1) ÷ (v m): idle ÷ busy time. Narayanan et al. 2021, §2.2. Conditions as for bubble_time."""
    return (p - 1) / (v * m)


@counted
def bubble_rate(p: int, m: int, v: int = 1) -> float:
    """(p − 1) ÷ (v m + p − 1): idle ÷ all time; o ÷ (1 + o) for an overhead o. Huang et al. 2019, §2.3."""
    return (p - 1) / (v * m + p - 1)


@counted
def efficiency(p: int, m: int, v: int = 1) -> float:
    """v m ÷ (v m + p − 1): busy ÷ all time, 1 − bubble_rate."""
    return v * m / (v * m + p - 1)


@counted
def speed_up(p: int, m: int, v: int = 1) -> float:
    """p v m ÷ (v m + p − 1): one rank's time for the whole step ÷ the pipeline's; p times the efficiency."""
    return p * efficiency(p, m, v)


@counted
def microbatches_for_rate(p: int, rate: float) -> float:
    """The m from which on the bubble rate of GPipe and 1F1B is at most `rate`: (p − 1)(1 ÷ rate − 1).

    Raises ValueError for a rate that is not above 0 and at most 1.
    """
    if not 0 < rate <= 1:
        raise ValueError(f"rate is {rate!r}; it must be a share above 0 and at most 1: 0.05 for 5%.")
    return (p - 1) * (1 / rate - 1)


@counted
def gpipe_in_flight(p: int, m: int) -> tuple[int, ...]:
    """m on every rank: all forwards come before the first backward."""
    return (m,) * p


@counted
def one_f_one_b_in_flight(p: int, m: int) -> tuple[int, ...]:
    """min(m, p − rank): the warm-up and one more. Narayanan et al. 2021, §2.2."""
    return tuple(min(m, p - rank) for rank in range(p))


@counted
def interleaved_in_flight(p: int, m: int, v: int) -> tuple[float, ...]:
    """In microbatches of a rank's full activation: the warm-up's 2 (p − 1 − rank) + (v − 1) p chunks and one more,
    but no more than the v m there are; a chunk is 1 ÷ v of it.

    On rank 0 that is 1 + (p − 1) ÷ (p v) of 1F1B's p (Korthikanti et al. 2022, §4.2.3). m a multiple of p.
    """
    chunks = (min(v * m, 2 * (p - 1 - rank) + (v - 1) * p + 1) for rank in range(p))
    return tuple(held / v for held in chunks)


@counted
def zb_h1_bubble_time(p: int, forward: float, input_grad: float, weight_grad: float) -> float:
    """(p − 1)(t_f + t_i − t_w): the bubble of ZB-H1, within the longest stage time and within the makespan.

    Exact for equal stages, free hops, t_w ≤ min(t_f, t_i) and m ≥ 2p. Qi et al. 2024 (Zero Bubble), §2, which
    writes T_B for our t_i.
    """
    return (p - 1) * (forward + input_grad - weight_grad)


@counted
def zb_h2_bubble_time(p: int, forward: float, input_grad: float, weight_grad: float) -> float:
    """(p − 1)(t_f + t_i − 2 t_w): the bubble of ZB-H2 within the longest stage time. Conditions and source as for
    ZB-H1."""
    return (p - 1) * (forward + input_grad - 2 * weight_grad)


@counted
def dualpipe_bubble_time(p: int, backward: float, weight_grad: float, overlap: float) -> float:
    """(p ÷ 2 − 1)(F&B + B − 3 W): the bubble of DualPipe; B is the full backward, F&B an overlapped pair.

    p is the number of stages (twice the ranks in DualPipeV). Of the rank with the largest bubble, with free hops
    and F&B ≤ F + B: exact if F = B − W = W, an upper bound if neither F nor W is longer than B − W (in all cases
    tried); elsewhere it can be too low. DeepSeek-V3 report, §3.2.1, Table 2.
    """
    return (p / 2 - 1) * (overlap + backward - 3 * weight_grad)
