"""Where a stage hands over to the next on its own rank (the turn of a vee): nothing is copied, and nothing is sent.

What both keep, one of its output and the other of its input, is there once, as are gradients that pass a stage
unchanged. And what is handed over waits on the rank until it is used.

Stages are looked at two by two. So of three in a row on one rank, what the first and the third share counts twice while
the second does not keep it: after its I, where a plan of one's own puts off the W of the third. A ledger then says too
much, never too little; no schedule here has three stages in a row on a rank and splits the backward.
"""

from collections.abc import Sequence
from typing import NamedTuple

from ppcourse.schedules.action import Action, Op
from ppcourse.schedules.schedule import Schedule

STASHED, OWED, DONE = "stashed", "owed", "done"


class Turn(NamedTuple):
    """A stage and the one before it on one rank: by how many bytes they take more, or less, than each for itself.

    waits      more, after F of the stage before, until F: what is handed over and not kept there
    shared     less, after both F's: what both keep
    between    more, after I, until the backward of the stage before: the gradient that waits, above all
    for_w      less, in the same time: what of kept_for_w the stage before has anyway, or is counted there
    owed       less, after both I's: what both keep for W
    returned   more, after B or W, until the backward of the stage before: the gradient that waits
    """

    waits: float = 0.0
    shared: float = 0.0
    between: float = 0.0
    for_w: float = 0.0
    owed: float = 0.0
    returned: float = 0.0


class Sharing:
    """Along one row, what comes on top of what each stage keeps for itself, or goes off."""

    def __init__(self, plan: Schedule, turns: Sequence[Turn]) -> None:
        self._plan, self._turns = plan, turns
        self._state: dict[tuple[int, int], str] = {}

    def after(self, action: Action) -> tuple[float, float]:
        """What the action changes of what waits for B or I, and of what waits for W."""
        stage, op, microbatch = action
        pairs = [(second, microbatch) for second in (stage, stage + 1) if self._on_one_rank(second, microbatch)]
        before = [self._extra(*pair) for pair in pairs]
        self._state[stage, microbatch] = {Op.F: STASHED, Op.I: OWED}.get(op, DONE)
        now = [self._extra(*pair) for pair in pairs]
        whole, rest = (sum(new[n] - old[n] for new, old in zip(now, before, strict=True)) for n in (0, 1))
        return whole, rest

    def _on_one_rank(self, second: int, microbatch: int) -> bool:
        homes = self._plan.placement.homes(microbatch)
        return 0 < second < len(homes) and homes[second - 1] == homes[second]

    def _extra(self, second: int, microbatch: int) -> tuple[float, float]:
        turn = self._turns[second]
        first, then = self._state.get((second - 1, microbatch)), self._state.get((second, microbatch))
        if first == STASHED:
            extras = {None: (turn.waits, 0.0), STASHED: (-turn.shared, 0.0), OWED: (turn.between, -turn.for_w)}
            return extras.get(then, (turn.returned, 0.0))
        return (0.0, -turn.owed) if first == then == OWED else (0.0, 0.0)
