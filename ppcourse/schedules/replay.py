"""One execution of a plan, in an order that its rules allow."""

from collections.abc import Iterator

from ppcourse.schedules.action import Action
from ppcourse.schedules.dependencies import Numbering
from ppcourse.schedules.schedule import Schedule


class Replay:
    """Iterate to execute `plan`: each rank goes through its row and waits where what it needs is not done.

    Yields (rank, stretch): the positions, a range, that a rank runs before it waits again or is done. All that
    they need comes earlier in the same stretch or in a stretch before. An overlapped pair runs when both its
    actions may. Ends when no rank can go on: `stopped[rank]` is then the position at which the rank stands,
    the length of its row if it finished.

    Linear in the number of actions. Every action must be in range (validate makes sure of it first).
    """

    def __init__(self, plan: Schedule) -> None:
        self.plan = plan
        self.numbering = Numbering(plan.num_stages, plan.num_microbatches)
        self.stopped = [0] * plan.num_ranks
        self.pairs = plan.pairs

    def __iter__(self) -> Iterator[tuple[int, range]]:
        bases = self.numbering.bases
        done = bytearray(self.numbering.room)
        done[self.numbering.size :] = b"\1" * (self.numbering.room - self.numbering.size)
        sleepers: dict[int, list[int]] = {}  # number → ranks that wait for it
        awake = list(reversed(range(self.plan.num_ranks)))
        while awake:
            rank = awake.pop()
            row, pairs, begin = self.plan.rows[rank], self.pairs[rank], self.stopped[rank]
            position = begin
            for position in range(begin, len(row)):
                stage, op, i = row[position]
                own, across, leaves = bases[op][stage]
                need = across + i
                if done[need]:
                    need = own + i
                if pairs and position in pairs:
                    need = next((need for need in self.needs(rank, position) if not done[need]), need)
                if not done[need]:
                    sleepers.setdefault(need, []).append(rank)
                    break
                number = leaves + i
                done[number] = 1
                if number in sleepers:
                    awake += sleepers.pop(number)
            else:
                position = len(row)
            self.stopped[rank] = position
            yield rank, range(begin, position)

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
