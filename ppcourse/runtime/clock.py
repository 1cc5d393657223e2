"""When an action starts and ends on a rank: as it comes, or paced."""

import time

from ppcourse.schedules.action import Action
from ppcourse.schedules.costs import Costs

AWAKE = 0.0002  # seconds


class Clock:
    """Spans as they come: from when the inputs are in hand to when the work is done (perf_counter seconds)."""

    def begin(self) -> None:
        """Before each step."""

    def start(self, arrived: float) -> float:
        """The start of an action whose inputs arrived at `arrived` (0.0: they were here already)."""
        return time.perf_counter()

    def worked(self) -> None:
        """The work of the action that was started last is done."""
        self._worked = time.perf_counter()

    def end(self, *together: Action) -> float:
        """The end of that action, or of an overlapped pair."""
        return self._worked


class Pace(Clock):
    """Makes each action last its nominal time (in seconds); what the work leaves of it is slept.

    An action starts when its inputs have really arrived, or at its predecessor's deadline if they were there
    by then; its deadline is start + cost. So sleeping a little too long is not carried from action to action,
    but time really lost, by a late message or by work longer than its nominal time, is never made up.
    Nominal times do not travel from rank to rank: that would be the simulator again.
    """

    def __init__(self, costs: Costs, num_stages: int) -> None:
        self._durations, self._overlaps = costs.durations(num_stages), costs.overlaps(num_stages)
        self.begin()

    def begin(self) -> None:
        self._start = self._free = 0.0

    def start(self, arrived: float) -> float:
        _sleep_until(arrived)
        self._start = max(self._free, arrived) if self._free else time.perf_counter()
        return self._start

    def end(self, *together: Action) -> float:
        lasts = sum(self._durations[action.op][action.stage] for action in together)
        if len(together) > 1 and self._overlaps is not None:
            lasts = self._overlaps[together[0].stage]
        deadline = self._start + lasts
        _sleep_until(deadline)
        self._free = max(deadline, self._worked)
        return self._free


def _sleep_until(moment: float) -> None:
    """Sleep, but for the last moment: a process that sleeps is woken a little late, and lateness adds up over hops."""
    left = moment - time.perf_counter()
    if left > AWAKE:
        time.sleep(left - AWAKE)
    while time.perf_counter() < moment:
        pass
