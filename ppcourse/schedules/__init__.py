"""What runs where, in which order. Pure Python: no torch, no numpy, no times."""

import difflib
from collections.abc import Callable
from numbers import Integral

from ppcourse.schedules.gpipe import gpipe
from ppcourse.schedules.naive import naive
from ppcourse.schedules.one_f_one_b import one_f_one_b
from ppcourse.schedules.schedule import Schedule

SCHEDULES: dict[str, Callable[[int, int], Schedule]] = {
    "naive": naive,
    "gpipe": gpipe,
    "1f1b": one_f_one_b,
}


def build(name: str, p: int, m: int, v: int | None = None) -> Schedule:
    """The plan of the schedule `name` for `p` ranks, `m` microbatches and `v` stages a rank.

    Raises ValueError for an unknown name and for counts that the schedule cannot have, naming valid ones.
    """
    if name not in SCHEDULES:
        near = difflib.get_close_matches(str(name).lower(), SCHEDULES, n=1, cutoff=0.4)
        hint = f" Did you mean {near[0]!r}?" if near else ""
        raise ValueError(f"There is no schedule {name!r}; the schedules are {', '.join(SCHEDULES)}.{hint}")
    v = 1 if v is None else v
    for count, what in ((p, "p, the number of ranks,"), (m, "m, the number of microbatches,"), (v, "v")):
        if isinstance(count, bool) or not isinstance(count, Integral) or count < 1:
            raise ValueError(f"{what} is {count!r}; it must be a whole number of at least 1.")
    if v != 1:
        raise ValueError(f"v is {v}, but {name} has one stage a rank; leave v out, or give v=1.")
    return SCHEDULES[name](int(p), int(m))
