"""What runs where, in which order. Pure Python: no torch, no numpy, no times."""

import difflib
import inspect
from collections.abc import Callable
from numbers import Integral

from ppcourse.schedules.breadth_first import breadth_first
from ppcourse.schedules.bulk import collector_paused
from ppcourse.schedules.costs import Costs
from ppcourse.schedules.dualpipe import dualpipe, dualpipe_v
from ppcourse.schedules.gpipe import gpipe
from ppcourse.schedules.interleaved import interleaved
from ppcourse.schedules.naive import naive
from ppcourse.schedules.one_f_one_b import one_f_one_b
from ppcourse.schedules.schedule import Schedule
from ppcourse.schedules.v_half import v_half
from ppcourse.schedules.v_min import v_min
from ppcourse.schedules.zb_auto import zb_auto
from ppcourse.schedules.zb_v import zb_v
from ppcourse.schedules.zero_bubble import zb_h1, zb_h2

SCHEDULES: dict[str, Callable[..., Schedule]] = {
    "naive": naive,
    "gpipe": gpipe,
    "1f1b": one_f_one_b,
    "interleaved": interleaved,
    "breadth-first": breadth_first,
    "zb-h1": zb_h1,
    "zb-h2": zb_h2,
    "zb-auto": zb_auto,
    "zb-v": zb_v,
    "v-half": v_half,
    "v-min": v_min,
    "dualpipe": dualpipe,
    "dualpipe-v": dualpipe_v,
}

TWO_STAGES = ("zb-v", "v-half", "v-min", "dualpipe", "dualpipe-v")  # always two stages a rank


def build(
    name: str,
    p: int,
    m: int,
    v: int | None = None,
    *,
    costs: Costs | None = None,
    memory_limit: float | None = None,
    kept_for_w: float | None = None,
) -> Schedule:
    """The plan of the schedule `name` for `p` ranks, `m` microbatches and `v` stages a rank.

    v              any number for interleaved and breadth-first (2 by default); fixed for all others
    costs          what the plan is made for; zb-auto only, like the two that follow
    memory_limit   the most a rank may hold, in microbatches of one rank's full activation; p by default
    kept_for_w     the share of it that stays from I until W; 1 by default

    Raises ValueError for an unknown name, for counts that the schedule cannot have, naming valid ones, and for
    arguments that it has no use for.
    """
    builder = _named(name)
    for count, what in ((p, "p, the number of ranks,"), (m, "m, the number of microbatches,"), (v, "v")):
        if count is None and what == "v":
            continue
        if isinstance(count, bool) or not isinstance(count, Integral) or count < 1:
            raise ValueError(f"{what} is {count!r}; it must be a whole number of at least 1.")
    takes = inspect.signature(builder).parameters
    planned = {"costs": costs, "memory_limit": memory_limit, "kept_for_w": kept_for_w}
    options = {word: value for word, value in planned.items() if value is not None}
    for word in options:
        if word not in takes:
            raise ValueError(f"{name} is not planned for {word}; leave it out, or take zb-auto, which is.")
    if "v" in takes:
        options |= {} if v is None else {"v": int(v)}
    elif v not in (None, fixed := 2 if name in TWO_STAGES else 1):
        stages = "two stages" if fixed == 2 else "one stage"
        raise ValueError(f"v is {v}, but {name} has {stages} a rank; leave v out, or give v={fixed}.")
    with collector_paused():
        return builder(int(p), int(m), **options)


def _named(name: str) -> Callable[..., Schedule]:
    if not isinstance(name, str) or name not in SCHEDULES:
        typed = name.lower() if isinstance(name, str) else ""
        near = difflib.get_close_matches(typed, SCHEDULES, n=1, cutoff=0.4)
        hint = f" Did you mean {near[0]!r}?" if near else ""
        raise ValueError(f"There is no schedule {name!r}; the schedules are {', '.join(SCHEDULES)}.{hint}")
    return SCHEDULES[name]
