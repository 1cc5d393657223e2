"""What two stages on one rank keep of a microbatch together: it is there once, whatever each counts for itself.

Where a stage hands over to the next on its own rank (the turn of a vee), nothing is copied. What one keeps of its
output and the other of its input is the same memory, as are gradients that pass a stage unchanged.
"""

from collections.abc import Sequence

from ppcourse.schedules.action import Action, Op

STASHED, OWED = "stashed", "owed"


class Sharing:
    """Along one row, the bytes that would be counted twice.

    stashed   stashed[s]: kept by stage s from F on, and by stage s - 1 as well
    for_w     for_w[s]: kept by stage s from I on, while stage s - 1 has its backward still before it
    owed      owed[s]: kept by both from I on
    """

    def __init__(self, stashed: Sequence[float], for_w: Sequence[float], owed: Sequence[float]) -> None:
        self._stashed, self._for_w, self._owed = stashed, for_w, owed
        self._state: dict[tuple[int, int], str] = {}

    def after(self, action: Action) -> tuple[float, float]:
        """How many more bytes the action makes twice of what waits for B or I, and of what waits for W."""
        stage, op, microbatch = action
        before = self._twice(stage, microbatch)
        if state := {Op.F: STASHED, Op.I: OWED}.get(op):
            self._state[stage, microbatch] = state
        else:
            self._state.pop((stage, microbatch), None)
        now = self._twice(stage, microbatch)
        return now[0] - before[0], now[1] - before[1]

    def _twice(self, stage: int, microbatch: int) -> tuple[float, float]:
        """With the stage before it and with the one after it."""
        whole = rest = 0.0
        for second in (stage, stage + 1):
            states = self._state.get((second - 1, microbatch)), self._state.get((second, microbatch))
            if states == (STASHED, STASHED):
                whole += self._stashed[second]
            elif states == (STASHED, OWED):
                rest += self._for_w[second]
            elif states == (OWED, OWED):
                rest += self._owed[second]
        return whole, rest
