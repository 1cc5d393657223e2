"""When an action starts and ends on a rank: as it comes, or paced; on the CPU, or on a GPU that the host runs ahead of.

What `start` and `end` return are marks, which `seconds` reads after the step.
"""

import os
import time
from typing import Any

from ppcourse.runtime.machine.moments import Moments
from ppcourse.schedules.action import Action
from ppcourse.schedules.costs import Costs

AWAKE = 0.0002  # seconds


class Clock:
    """Spans as they come: from when the inputs are in hand to when the work is done.

    runs_ahead   marks may be of moments to come
    """

    runs_ahead = False

    def begin(self) -> None:
        """Before each step."""

    def start(self, arrived: float) -> Any:
        """The start of an action whose inputs arrived at `arrived` (0.0: they were here already)."""
        return time.perf_counter()

    def worked(self) -> None:
        """The work of the action that was started last is done."""
        self._worked = time.perf_counter()

    def end(self, *together: Action) -> Any:
        """The end of that action, or of an overlapped pair."""
        return self._worked

    def seconds(self, mark: Any) -> float:
        """A mark in seconds of perf_counter; waits until it is reached."""
        return float(mark)


class StreamClock(Clock):
    """Spans of a GPU's stream: the start is past the inputs, for which the stream has been told to wait.

    One moment at the start of each step is known on both clocks, the GPU's and the host's; all others are counted from
    it, so that ranks on several GPUs, or on one, share the host's clock.
    """

    runs_ahead = True

    def __init__(self, moments: Moments) -> None:
        self._moments = moments

    def begin(self) -> None:
        self._moments.wait(self._moments.record())  # work of before would make the next moment late
        before = time.perf_counter()
        self._zero = self._moments.record()
        self._moments.wait(self._zero)
        self._at = (before + time.perf_counter()) / 2

    def start(self, arrived: float) -> Any:
        return self._moments.record()

    def worked(self) -> None:
        """Nothing: the host does not know yet."""

    def end(self, *together: Action) -> Any:
        return self._moments.record()

    def seconds(self, mark: Any) -> float:
        self._moments.wait(mark)
        return self._at + self._moments.seconds(self._zero, mark)


class Pace(Clock):
    """Makes each action last its nominal time (in seconds); what the work leaves of it is slept.

    An action starts when its inputs have really arrived, or at its predecessor's deadline if they were there
    by then; its deadline is start + cost. So sleeping a little too long is not carried from action to action,
    but time really lost, by a late message or by work longer than its nominal time, is never made up.
    Nominal times do not travel from rank to rank: that would be the simulator again.

    moments   of the GPU that does the work; the host then waits for the end of each action's
    """

    def __init__(self, costs: Costs, num_stages: int, moments: Moments | None = None) -> None:
        self._moments = moments
        self._durations, self._overlaps = costs.durations(num_stages), costs.overlaps(num_stages)
        self.begin()

    def begin(self) -> None:
        self._start = self._free = 0.0

    def start(self, arrived: float) -> float:
        if self._caught_up():  # inputs that the GPU did not have yet have arrived just now
            arrived = max(arrived, time.perf_counter())
        _sleep_until(arrived)
        self._start = max(self._free, arrived) if self._free else time.perf_counter()
        give_way()
        return self._start

    def worked(self) -> None:
        self._caught_up()
        super().worked()

    def _caught_up(self) -> bool:
        """Let the host wait for the current stream; whether it had to."""
        if self._moments is None:
            return False
        now = self._moments.record()
        if self._moments.reached(now):
            return False
        self._moments.wait(now)
        return True

    def end(self, *together: Action) -> float:
        lasts = sum(self._durations[action.op][action.stage] for action in together)
        if len(together) > 1 and self._overlaps is not None:
            lasts = self._overlaps[together[0].stage]
        deadline = self._start + lasts
        _sleep_until(deadline)
        self._free = max(deadline, self._worked)
        return self._free


def give_way() -> None:
    """Where ranks outnumber cores, those that have something to send go before this one's work, which has time."""
    if hasattr(os, "sched_yield"):  # not on Windows
        os.sched_yield()


def _sleep_until(moment: float) -> None:
    """Sleep, but for the last moment: a process that sleeps is woken a little late, and lateness adds up over hops."""
    left = moment - time.perf_counter()
    if left > AWAKE:
        time.sleep(left - AWAKE)
    while time.perf_counter() < moment:
        pass
