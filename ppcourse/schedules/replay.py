"""One execution of a plan, in an order that its rules allow."""

from collections.abc import Iterator

from ppcourse.schedules.action import Action
from ppcourse.schedules.schedule import Schedule
from ppcourse.schedules.waits import waits_of


class Replay:
    """Iterate to execute `plan`: each rank goes through its row and waits where what it needs is not done.

    Yields stretches: the places (see Waits), a range, that a rank runs before it waits again or is done. All that
    they need comes earlier in the same stretch or in a stretch before. An overlapped pair runs when both its
    actions may. Ends when no rank can go on: `stopped[rank]` is then the position at which the rank stands,
    the length of its row if it finished.

    Linear in the number of actions. Each must be in its place, and there once (validate makes sure of it first).
    """

    def __init__(self, plan: Schedule) -> None:
        self.plan, self.numbering = plan, waits_of(plan).numbering
        self.stopped = [0] * plan.num_ranks
        self.pairs = plan.pairs

    def __iter__(self) -> Iterator[range]:
        waits = waits_of(self.plan)
        maker, first = waits.maker, [row.start for row in waits.rows]
        reached = first.copy()
        joined = {first[rank] + position for rank, position in self.plan.overlapped}
        done = [False] * (waits.never + 1)
        for place in first:
            done[place - 1] = True
        asleep: list[int | None] = [None] * len(done)  # by place, the rank that waits for it
        awake = list(reversed(range(self.plan.num_ranks)))
        while awake:
            rank = awake.pop()
            begin = place = reached[rank]
            while done[maker[place]] and not (joined and place in joined and not done[maker[place + 1]]):
                done[place] = True
                if (sleeper := asleep[place]) is not None:
                    awake.append(sleeper)
                place += 1
            awaited = maker[place + 1] if done[maker[place]] else maker[place]
            asleep[awaited] = rank
            reached[rank] = place
            yield range(begin, place)
        self.stopped = [place - begin for place, begin in zip(reached, first, strict=True)]

    def together(self, rank: int, position: int) -> tuple[Action, ...]:
        """The actions that start together at `position`: two for an overlapped pair."""
        return self.plan.rows[rank][position : position + 1 + (position in self.pairs[rank])]

    def needs(self, rank: int, position: int) -> list[int]:
        """The numbers that must be done before what starts at `position` may start."""
        return [number for action in self.together(rank, position) for number in self.numbering.needs(action)]

    def missing(self) -> dict[int, list[int]]:
        """After the end: for each rank that stands still, what it waits for."""
        if all(at == len(row) for at, row in zip(self.stopped, self.plan.rows, strict=True)):
            return {}
        done: set[int] = set()
        for rank, row in enumerate(self.plan.rows):
            for action in row[: self.stopped[rank]]:
                done.update(self.numbering.results(action))
        return {
            rank: [need for need in self.needs(rank, position) if need not in done]
            for rank, position in enumerate(self.stopped)
            if position < len(self.plan.rows[rank])
        }
