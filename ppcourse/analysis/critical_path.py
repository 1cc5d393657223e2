"""Why a step takes as long as it does: the chain of actions that each start when the one before lets them."""

import math
from collections.abc import Iterator
from typing import Literal, NamedTuple, TypeAlias

from ppcourse.analysis.timeline import Span, Timeline
from ppcourse.schedules.action import Action
from ppcourse.schedules.dependencies import RESULTS, RULES, Result
from ppcourse.schedules.schedule import Schedule
from ppcourse.schedules.validate import check

Reason: TypeAlias = Literal["start", "rank", "message"]


class Link(NamedTuple):
    """Why a span starts when it does.

    span     of an overlapped pair that waits for a message, the one of its two that needs it
    reason   start     the first of its rank, and it needs nothing from another one
             rank      its rank was busy until then
             message   what it needs was made on another rank, and had to travel
    after    the span that let it start; None for the reason "start"
    waited   from the end of `after` (or the start of the timeline) to the start of `span`: for a message,
             how long it was on its way. In the unit of the timeline
    """

    span: Span
    reason: Reason
    after: Span | None
    waited: float


def critical_path(plan: Schedule, timeline: Timeline) -> tuple[Span, ...]:
    """The spans that make the step as long as it is, first to last.

    Unless one of them, or a hop between two of them, gets shorter, the step does not.

        1f1b, p = 2, m = 2     rank 0  F0 F1 .. .. B0--- .. B1---     0F0 1F0 1B0 1F1 1B1 0B1
                               rank 1  .. F0 B0--- F1 B1--- .. ..

    The last one ends the makespan; each one before it is what the next one waited for last: the action before
    it on its rank, or one whose result came from another rank. Simulated times add up: the spans and, for each
    step from rank to rank, `Costs.comm` make the makespan. Where two were waited for until the same moment
    (there may be several critical paths), the one on the same rank is taken.

    For how this is told from measured times, and what is refused, see `causes`.
    """
    return tuple(link.span for link in critical_links(plan, timeline))


def critical_links(plan: Schedule, timeline: Timeline) -> tuple[Link, ...]:
    """The critical path with the reason for each of its spans.

    The lengths of the spans and the times waited add up to the makespan, in measured timelines too.
    """
    why = causes(plan, timeline)
    link = max(why.values(), key=lambda link: link.span.end, default=None)
    path = []
    while link:
        path.append(link)
        link = why[link.after.action] if link.after else None
    return tuple(reversed(path))


def causes(plan: Schedule, timeline: Timeline) -> dict[Action, Link]:
    """For each action, rank by rank and in the order of the rows, why it starts when it does.

    In a simulated or a paced timeline an action starts exactly when it may: if that is later than its rank is
    free, it waits for a message. Measured, an action always starts a little later than its rank is free. Then
    it is said to wait for whichever came last, the end of the action before it or the message; a message is
    taken to arrive one hop after its maker's end, a hop being the shortest there is in this timeline.

    Linear in the number of spans. Raises ScheduleError for a plan that breaks a rule, and ValueError for a
    timeline that is not of this plan.
    """
    rows = _rows(plan, timeline)
    makers = {user.action: maker for maker, user in messages(timeline)}
    hop = math.inf  # exact: whoever starts later than its rank is free waits for a message, however long its way
    if timeline.source == "measured":
        hop = max(0.0, min((user.start - maker.end for maker, user in messages(timeline)), default=0.0))
    why: dict[Action, Link] = {}
    for rank, row in enumerate(rows):
        before: Span | None = None
        for together in _starting_together(plan, rank, row):
            waits = [Link(s, "message", m, s.start - m.end) for s in together if (m := makers.get(s.action))]
            message = max(waits, key=_sent, default=None)
            for span in together:
                if message and (before is None or span.start > before.end < _sent(message) + hop):
                    why[span.action] = message
                elif before:
                    why[span.action] = Link(span, "rank", before, span.start - before.end)
                else:
                    why[span.action] = Link(span, "start", None, span.start - timeline.start)
            before = together[-1]
    return why


def messages(timeline: Timeline) -> Iterator[tuple[Span, Span]]:
    """Pairs (maker, user): what `user` needs was made by `maker` on another rank. One at most for each user."""
    made: list[dict[tuple[int, int], Span]] = [{} for _ in Result]
    for span in timeline.spans:
        stage, op, microbatch = span.action
        for result in RESULTS[op]:
            made[result][stage, microbatch] = span
    for user in timeline.spans:
        stage, op, microbatch = user.action
        for offset, result in RULES[op]:
            maker = made[result].get((stage + offset, microbatch))
            if maker and maker.rank != user.rank:
                yield maker, user


def _sent(message: Link) -> float:
    assert message.after
    return message.after.end


def _starting_together(plan: Schedule, rank: int, row: list[Span]) -> Iterator[list[Span]]:
    """The spans of a row one by one, and an overlapped pair as one if it ran as one."""
    together: list[Span] = []
    for position, span in enumerate(row):
        joined = together and (rank, position - 1) in plan.overlapped and together[-1][2:] == span[2:]
        if together and not joined:
            yield together
            together = []
        together.append(span)
    if together:
        yield together


def _rows(plan: Schedule, timeline: Timeline) -> list[list[Span]]:
    """The spans of each rank in the order of the plan's row. Raises if the timeline is not of this plan."""
    for thing, kind in ((plan, Schedule), (timeline, Timeline)):
        if not isinstance(thing, kind):
            right = f"a {kind.__name__} belongs: give the plan first, and then its timeline"
            raise ValueError(f"A {type(thing).__name__} stands where {right}.")
    check(plan)
    right = "give the timeline of this plan"
    found = {(span.rank, span.action): span for span in timeline.spans}
    if len(found) < len(timeline.spans):
        raise ValueError("The timeline has an action twice on a rank; give the timeline of one step.")
    rows: list[list[Span]] = []
    for rank, row in enumerate(plan.rows):
        rows.append([])
        for action in row:
            span = found.pop((rank, action), None)
            if span is None:
                raise ValueError(f"In this timeline rank {rank} does not run {action}, in the plan it does; {right}.")
            if rows[-1] and span.start < rows[-1][-1].start:
                order = f"{action} starts before {rows[-1][-1].action}, in the plan after it"
                raise ValueError(f"In this timeline {order}, on rank {rank}; {right}.")
            rows[-1].append(span)
    for rank, action in found:
        raise ValueError(f"In this timeline rank {rank} runs {action}, in the plan it does not; {right}.")
    return rows
