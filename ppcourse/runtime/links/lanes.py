"""On which streams of a GPU a rank computes, so that the two actions of an overlapped pair really run side by side.

All work is on one stream, the trunk, unless the row has overlapped pairs. Then every stage has a stream of its own, a
lane, because autograd runs a backward on the stream of its forward:

    trunk  ──wait for inputs──start──┬───────────────────────┬──end──►
    lane of stage 5                  ├── F of microbatch 4 ──┤
    lane of stage 2                  └── B of microbatch 1 ──┘

So whatever is not its partner stays in the row's order, and links and the clock know the trunk only.
"""

from contextlib import AbstractContextManager, nullcontext
from typing import Any

from ppcourse.runtime.machine.streams import Streams
from ppcourse.runtime.values.handed_on import tensors_of


class Lanes:
    """No lanes: all work is on the trunk (and on a CPU there is nothing else)."""

    def fork(self) -> None:
        """What was told so far comes before the work of the next actions."""

    def of(self, stage: int, given: Any) -> AbstractContextManager[None]:
        """A context for the work of an action of `stage` on what it is `given`."""
        return nullcontext()

    def join(self) -> None:
        """What is told from now on comes after the work since the fork."""


class StreamLanes(Lanes):
    """A lane for each stage."""

    def __init__(self, streams: Streams) -> None:
        self._streams = streams
        self._used: list[int] = []

    def fork(self) -> None:
        self._fork, self._used = self._streams.mark(), []

    def of(self, stage: int, given: Any) -> AbstractContextManager[None]:
        lane: AbstractContextManager[None] = self._streams.aside(stage)
        with lane:
            self._streams.wait(self._fork)
            for tensor in tensors_of(given):
                if self._streams.holds(tensor):
                    self._streams.uses(tensor)
        self._used.append(stage)
        return self._streams.aside(stage)  # type: ignore[no-any-return]

    def join(self) -> None:
        for stage in self._used:
            with self._streams.aside(stage):
                done = self._streams.mark()
            self._streams.wait(done)
