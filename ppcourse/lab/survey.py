"""All schedules side by side: `ppcourse schedules`."""

from collections.abc import Iterator

from ppcourse.analysis.in_flight import in_flight
from ppcourse.analysis.simulate import simulate
from ppcourse.schedules import SCHEDULES, build
from ppcourse.schedules.channels import channels
from ppcourse.schedules.costs import Costs
from ppcourse.schedules.names import ELSEWHERE

HEADS = ("schedule", "v", "makespan", "longest stage", "bubble rate", "held", "messages", "torch", "Megatron-LM")


def survey(p: int = 4, m: int = 8, comm: float = 0.0) -> str:
    """A table of every schedule for `p` ranks and `m` microbatches, as text that Markdown reads as a table.

    F, I and W of one rank's layers cost 1 each, however many stages they are cut into, and a hop `comm`. `held`
    is the most that a rank holds, in microbatches of a rank's full activation, all of it kept until W.
    """
    lines = [HEADS, ("---",) * len(HEADS), *(_line(name, p, m, comm) for name in SCHEDULES)]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return "\n".join(_row(line, widths) for line in lines)


def _line(name: str, p: int, m: int, comm: float) -> tuple[str, ...]:
    try:
        plan = build(name, p, m)
    except ValueError as error:
        return (name, *[""] * (len(HEADS) - 2), str(error))
    share = plan.num_ranks / plan.num_stages
    timeline = simulate(plan, Costs(share, share, share, comm=comm))
    names = ELSEWHERE[name]
    return (
        name,
        str(plan.stages_per_rank),
        f"{timeline.makespan:.4g}",
        f"{timeline.longest_stage_time:.4g}",
        f"{timeline.bubble_rate:.1%}",
        f"{max(in_flight(plan)):g}",
        str(sum(len(traffic.sent) for traffic in channels(plan).values())),
        names.torch or "",
        names.megatron or "",
    )


def _row(cells: tuple[str, ...], widths: list[int]) -> str:
    return "| " + " | ".join(_padded(cells, widths)) + " |"


def _padded(cells: tuple[str, ...], widths: list[int]) -> Iterator[str]:
    for cell, width in zip(cells, widths, strict=True):
        yield "-" * width if cell == "---" else cell.ljust(width)
