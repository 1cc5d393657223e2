"""The numbers in questions, as text: each one computed by a closed form or by the simulator."""

from functools import cache

from ppcourse.analysis import formulas
from ppcourse.analysis.in_flight import in_flight
from ppcourse.analysis.simulate import simulate
from ppcourse.analysis.timeline import Timeline
from ppcourse.schedules import build
from ppcourse.schedules.costs import Costs

CHOOSES_V = ("interleaved", "breadth-first")


def percent(share: float) -> str:
    """A share as a percentage: 27.3%, 80%."""
    return f"{round(100 * share, 1):g}%"


def overhead(p: int, m: int, v: int = 1) -> str:
    return percent(formulas.bubble_overhead(p, m, v))


def rate(p: int, m: int, v: int = 1) -> str:
    return percent(formulas.bubble_rate(p, m, v))


def efficiency(p: int, m: int) -> str:
    return percent(formulas.efficiency(p, m))


def speed_up(p: int, m: int) -> str:
    return f"{formulas.speed_up(p, m):.3g}"


@cache
def timeline(
    name: str,
    p: int,
    m: int,
    v: int = 1,
    hop: float = 0.0,
    slow: float = 1.0,
    each: tuple[float, float, float] = (1, 1, 1),
) -> Timeline:
    """A simulated step. F, I and W last `each` on a rank, `slow` times that on the last stage; a hop lasts `hop`."""
    plan = build(name, p, m, v if name in CHOOSES_V else None)
    share = p / plan.num_stages
    forward, input_grad, weight_grad = ([share * time] * (plan.num_stages - 1) + [slow * share * time] for time in each)
    return simulate(plan, Costs(forward, input_grad, weight_grad, comm=hop))


def makespan(name: str, p: int, m: int, v: int = 1, hop: float = 0.0, slow: float = 1.0) -> str:
    """In units of t_f, with t_b = 2 t_f."""
    return f"{timeline(name, p, m, v, hop, slow).makespan:.4g}"


def stage_time(name: str, p: int, m: int) -> str:
    return f"{timeline(name, p, m).longest_stage_time:.4g}"


def bubble(name: str, p: int, m: int, each: tuple[float, float, float]) -> str:
    """The idle time within the longest stage time, of the rank that has it."""
    one = timeline(name, p, m, each=each)
    return f"{one.longest_stage_time - one.busy[0]:.4g}"


def held(name: str, p: int, m: int, rank: int = 0, v: int | None = None) -> str:
    """What a rank holds at its peak, in microbatches of its full activation."""
    return f"{in_flight(build(name, p, m, v))[rank]:.4g}"


def state_gb(billions: float, bytes_each: float = 18, parts: int = 1) -> str:
    """Weights, gradients and optimizer state in GB of 10⁹ bytes."""
    return f"{billions * bytes_each / parts:.4g} GB"
