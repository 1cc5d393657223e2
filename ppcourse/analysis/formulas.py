"""The closed forms, each with the conditions under which it is exact; outside them the simulator decides.

    p  ranks          v         stages a rank
    m  microbatches   t_f, t_b  forward and full backward of one rank's layers

All hold for equal stages and free hops (t_f and t_b may differ from each other), from the first start to
the last end.
"""


def ideal_time(m: int, forward: float, backward: float) -> float:
    """m (t_f + t_b): a step without any bubble, on every rank. Narayanan et al. 2021, §2.2."""
    return m * (forward + backward)


def bubble_time(p: int, forward: float, backward: float, v: int = 1) -> float:
    """(p − 1)(t_f + t_b) ÷ v: the idle time of every rank in GPipe and 1F1B (v = 1) and interleaved 1F1B.

    On the last rank (p − 1) t_f before its first action and (p − 1) t_b after its last. With v > 1, m must
    be a multiple of p. Narayanan et al. 2021, §2.2.
    """
    return (p - 1) * (forward + backward) / v


def step_time(p: int, m: int, forward: float, backward: float, v: int = 1) -> float:
    """(m + (p − 1) ÷ v)(t_f + t_b): ideal time and bubble. Conditions as for bubble_time."""
    return ideal_time(m, forward, backward) + bubble_time(p, forward, backward, v)


def naive_step_time(p: int, m: int, forward: float, backward: float) -> float:
    """p m (t_f + t_b): no two ranks ever work at the same time."""
    return p * m * (forward + backward)


def bubble_overhead(p: int, m: int, v: int = 1) -> float:
    """(p − 1) ÷ (v m): idle ÷ busy time. Narayanan et al. 2021, §2.2. Conditions as for bubble_time."""
    return (p - 1) / (v * m)


def bubble_rate(p: int, m: int, v: int = 1) -> float:
    """(p − 1) ÷ (v m + p − 1): idle ÷ all time; o ÷ (1 + o) for an overhead o. Huang et al. 2019, §2.3."""
    return (p - 1) / (v * m + p - 1)


def efficiency(p: int, m: int, v: int = 1) -> float:
    """v m ÷ (v m + p − 1): busy ÷ all time, 1 − bubble_rate."""
    return v * m / (v * m + p - 1)


def speed_up(p: int, m: int, v: int = 1) -> float:
    """p v m ÷ (v m + p − 1): one rank's time for the whole step ÷ the pipeline's; p times the efficiency."""
    return p * efficiency(p, m, v)


def microbatches_for_rate(p: int, rate: float) -> float:
    """The m from which on the bubble rate of GPipe and 1F1B is at most `rate`: (p − 1)(1 ÷ rate − 1)."""
    return (p - 1) * (1 / rate - 1)


def gpipe_in_flight(p: int, m: int) -> tuple[int, ...]:
    """m on every rank: all forwards come before the first backward."""
    return (m,) * p


def one_f_one_b_in_flight(p: int, m: int) -> tuple[int, ...]:
    """min(m, p − rank): the warm-up and one more. Narayanan et al. 2021, §2.2."""
    return tuple(min(m, p - rank) for rank in range(p))
