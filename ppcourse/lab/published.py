"""Numbers that papers and their authors' programs give, for a lesson to reproduce."""

import json
from importlib.resources import files
from typing import NamedTuple

from ppcourse.schedules.costs import Costs


class Published(NamedTuple):
    """A row of the Zero Bubble paper's table of bubble rates, and the profiled times that it was computed from.

    p, m, v       ranks; microbatches; the stages a rank that its interleaved 1F1B has
    costs         of one rank's layers, in microseconds
    kept_for_w    the share of a microbatch's activations that stays from I until W
    bubble_rate   by schedule: 1F1B, 1F1B-I (interleaved), ZB-H1, ZB-H2, ZB-1p and ZB-2p (planned by the authors'
                  heuristic for a memory of p and of 2p microbatches); for the last three of the longest stage time
    interleaved   the makespan that 1F1B-I's rate comes from, in microseconds
    """

    model: str
    p: int
    m: int
    v: int
    costs: Costs
    kept_for_w: float
    bubble_rate: dict[str, float]
    interleaved: float


def zero_bubble_table() -> tuple[Published, ...]:
    """Twelve rows, from Qi et al. 2024 (Zero Bubble, ICLR), §5; the source is named in the file."""
    text = files("ppcourse.lab").joinpath("data/zero_bubble.json").read_text(encoding="utf-8")
    return tuple(
        Published(
            row["model"],
            row["p"],
            row["m"],
            row["v_interleave"],
            Costs(row["T_F"], row["T_B"], row["T_W"], comm=row["T_comm"]),
            32 * row["hidden"] / (34 * row["hidden"] + 5 * row["heads"] * row["seq"]),
            row["bubble_rate"],
            row["cost"]["1F1B-I"],
        )
        for row in json.loads(text)["rows"]
    )
