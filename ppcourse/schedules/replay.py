"""One execution of a plan, in an order that its rules allow."""

from collections.abc import Iterator

from ppcourse.schedules.dependencies import Numbering
from ppcourse.schedules.schedule import Schedule


class Replay:
    """Iterate to execute `plan`: each rank goes through its row and waits where what it needs is not done.

    Yields (rank, position, needs): what ran, and the numbers (see Numbering) that it needed, all of which
    ran before. An overlapped pair is yielded once, at its F, with the needs of both. Ends when no rank can
    go on: `stopped[rank]` is then the position at which the rank stands, the length of its row if it
    finished.

    Linear in the number of actions. Every action must be in range (validate makes sure of it first).
    """

    def __init__(self, plan: Schedule) -> None:
        self.plan = plan
        self.numbering = Numbering(plan.num_stages, plan.num_microbatches)
        self.stopped = [0] * plan.num_ranks

    def __iter__(self) -> Iterator[tuple[int, int, list[int]]]:
        done = bytearray(self.numbering.size)
        sleepers: dict[int, list[int]] = {}  # number → ranks that wait for it
        awake = list(reversed(range(self.plan.num_ranks)))
        while awake:
            rank = awake.pop()
            end = len(self.plan.rows[rank])
            while (position := self.stopped[rank]) < end:
                results, needs = self.look(rank, position)
                missing = next((need for need in needs if not done[need]), None)
                if missing is not None:
                    sleepers.setdefault(missing, []).append(rank)
                    break
                self.stopped[rank] = position + self.size(rank, position)
                yield rank, position, needs
                for number in results:
                    done[number] = 1
                    if number in sleepers:
                        awake += sleepers.pop(number)

    def size(self, rank: int, position: int) -> int:
        """How many actions start together at `position`: 2 for an overlapped pair."""
        return 2 if self.plan.overlapped and (rank, position) in self.plan.overlapped else 1

    def look(self, rank: int, position: int) -> tuple[list[int], list[int]]:
        """What the action at `position` leaves behind, and what it needs; for an overlapped pair, of both."""
        row = self.plan.rows[rank]
        action = row[position]
        results, needs = self.numbering.results(action), self.numbering.needs(action)
        if self.size(rank, position) == 2:
            other = row[position + 1]
            return results + self.numbering.results(other), needs + self.numbering.needs(other)
        return results, needs

    def missing(self) -> dict[int, list[int]]:
        """After the end: for each rank that stands still, what it waits for."""
        if all(at == len(row) for at, row in zip(self.stopped, self.plan.rows, strict=True)):
            return {}
        done: set[int] = set()
        for rank, row in enumerate(self.plan.rows):
            for action in row[: self.stopped[rank]]:
                done.update(self.numbering.results(action))
        return {
            rank: [need for need in self.look(rank, position)[1] if need not in done]
            for rank, position in enumerate(self.stopped)
            if position < len(self.plan.rows[rank])
        }
