"""Why a rank does nothing: every idle stretch of a timeline, with what ends it."""

from typing import NamedTuple

from ppcourse.analysis.critical_path import Link, causes
from ppcourse.analysis.timeline import Timeline
from ppcourse.schedules.action import Action
from ppcourse.schedules.schedule import Schedule

ROUNDING = 1e-9  # of the makespan: two times that are no further apart differ by rounding, and are no gap


class Gap(NamedTuple):
    """A stretch in which `rank` is idle, from `start` to `end` (as in the spans, in the timeline's unit).

    action     what the rank runs next; None if nothing is left
    needed     what `action` waits for, made on another rank; None if it waits for nothing
    hop        how much of the stretch `needed` has ended already, and its message is on its way
    sentence   the same in words, with times that count from the timeline's start
    """

    rank: int
    start: float
    end: float
    action: Action | None
    needed: Action | None
    hop: float
    sentence: str

    def __str__(self) -> str:
        return self.sentence


def gaps(plan: Schedule, timeline: Timeline) -> tuple[Gap, ...]:
    """The idle stretches of all ranks, rank by rank, each with its reason.

        1f1b, p = 2, m = 2     rank 0  F0 F1 .. .. B0--- .. B1---    rank 0 waits for 1B0, which rank 1 ends at 4
                               rank 1  .. F0 B0--- F1 B1--- .. ..    rank 1 waits for 0F0, which rank 0 ends at 1

    A rank is idle from the timeline's start to its first action, and from its last one to the timeline's end,
    too: the lengths of a rank's gaps add up to `timeline.idle[rank]`. In a simulated timeline a rank waits for
    a message, or it has nothing left to do; in a measured one it may also be late by itself. Which of these it
    is, is told as in `causes`, and the same is refused. Linear in the number of spans.
    """
    why = causes(plan, timeline)
    found = []
    least = ROUNDING * timeline.makespan
    for rank, row in enumerate(plan.rows):
        reached = timeline.start
        for action in row:
            link = why[action]
            if link.span.start > reached + least:
                found.append(_before(link, reached, timeline))
            reached = max(reached, link.span.end)
        if timeline.end > reached + least:
            sentence = f"rank {rank} has nothing {'left ' if row else ''}to do"
            found.append(Gap(rank, reached, timeline.end, None, None, 0.0, sentence))
    return tuple(found)


def _before(link: Link, start: float, timeline: Timeline) -> Gap:
    """The gap from `start` to the span that the link explains."""
    rank, action, end, _ = link.span
    if link.reason != "message" or link.after is None:
        late = f"rank {rank} starts {action} at {_clock(end, timeline)}, though nothing that it needs is late"
        return Gap(rank, start, end, action, None, 0.0, late)
    maker, needed, _, ended = link.after
    hop = min(end - ended, end - start)
    when, arrives = _clock(ended, timeline), _clock(end, timeline)
    if ended <= start:
        sentence = f"rank {rank} waits for the message of {needed}, which rank {maker} ended at {when}"
    else:
        sentence = f"rank {rank} waits for {needed}, which rank {maker} ends at {when}"
    if hop > 0:
        sentence += f"; it arrives at {arrives}"
    return Gap(rank, start, end, action, needed, hop, sentence)


def _clock(time: float, timeline: Timeline) -> str:
    """A moment, counted from the timeline's start: in the unit of the costs, or in ms if the times are seconds."""
    passed = time - timeline.start
    return f"{passed:g}" if timeline.source == "simulated" else f"{passed * 1e3:.2f} ms"
