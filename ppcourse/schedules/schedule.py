"""A schedule is plain data: for each rank, a row of actions."""

import csv
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeAlias

from ppcourse.schedules.action import Action, Op
from ppcourse.schedules.placement import Placement, table

Row: TypeAlias = str | Iterable[str | Action]
"""What a learner may type for one rank: `"0F0 0F1 0B0 0B1"`, `["0F0", "0F1"]`, or actions."""

ReadRow: TypeAlias = tuple[list[Action], set[int]]
"""The actions of one row, and the positions of the F of each overlapped pair."""

OVERLAP_CELL = re.compile(r"\(([^;()]+);([^;()]+)\)OVERLAP_F_B")
NOT_AN_ACTION = re.compile(r"^\s*\d+(UNSHARD|RESHARD|REDUCE_GRAD)\s*$")


class ScheduleError(ValueError):
    """A plan that cannot be read or breaks a rule; the message is one sentence that says which and where."""


@dataclass(frozen=True)
class Schedule:
    """What runs where and in which order; no times.

    rows[rank]   the actions of a rank, in the order in which it runs them
    overlapped   pairs (rank, position): the F there runs joined to the B right after it
    """

    name: str
    placement: Placement
    num_microbatches: int
    rows: tuple[tuple[Action, ...], ...]
    overlapped: frozenset[tuple[int, int]] = field(default=frozenset())

    @property
    def num_ranks(self) -> int:
        return len(self.rows)

    @property
    def num_stages(self) -> int:
        return self.placement.num_stages

    @property
    def stages_per_rank(self) -> int:
        """The most stages that a rank holds."""
        return max(len(self.placement.stages_of(rank)) for rank in range(self.num_ranks))

    @property
    def trains(self) -> bool:
        """False if the plan has forwards only."""
        return any(action.op is not Op.F for row in self.rows for action in row)

    def rank_of(self, stage: int, microbatch: int) -> int:
        """The rank that runs `stage` for `microbatch`."""
        return self.placement.rank_of(stage, microbatch)

    def __str__(self) -> str:
        return self.to_text()

    def to_text(self) -> str:
        """One line a rank, actions separated by blanks; an overlapped pair is written `0F4+3B1`."""
        return "\n".join(" ".join(self._cells(rank, "{}+{}")) for rank in range(self.num_ranks))

    @classmethod
    def from_text(cls, text: str, name: str = "mine") -> "Schedule":
        """The plan that `text` writes down, one line a rank; blank lines and `# remarks` are skipped.

        Counts and placement are taken from the actions. Raises ScheduleError for what is not an action;
        whether the plan obeys the rules is for `validate` to say.
        """
        lines = (line.partition("#")[0].strip() for line in text.splitlines())
        return cls.from_rows([line for line in lines if line], name)

    @classmethod
    def from_rows(cls, rows: Sequence[Row], name: str = "mine") -> "Schedule":
        """The plan in `rows`, one a rank, counts and placement taken from the actions."""
        cells = [row.split() if isinstance(row, str) else list(row) for row in rows]
        read = [_read_row(row, f"rank {rank}") for rank, row in enumerate(cells)]
        return _inferred(name, read)

    def to_csv(self, path: str | Path) -> None:
        """Write torch.distributed.pipelining's compute-only CSV: one line a rank, one cell an action."""
        with Path(path).open("w", newline="") as file:
            writer = csv.writer(file)
            writer.writerows(self._cells(rank, "({};{})OVERLAP_F_B") for rank in range(self.num_ranks))

    @classmethod
    def from_csv(cls, path: str | Path, name: str | None = None) -> "Schedule":
        """Read what torch's schedules dump (compute-only).

        Skipped are empty cells, its idle slots, and what it does to a stage's weights between actions.
        Raises ScheduleError naming line and column of a cell that is not an action.
        """
        path = Path(path)
        with path.open(newline="") as file:
            lines = enumerate(csv.reader(file), 1)
            plain = ((line, [NOT_AN_ACTION.sub("", cell) for cell in cells]) for line, cells in lines)
            read = [_read_row(cells, f"{path.name}, line {line}", "column") for line, cells in plain]
        return _inferred(name or path.stem, read)

    def _cells(self, rank: int, pair: str) -> list[str]:
        cells, row = [], iter(enumerate(self.rows[rank]))
        for position, action in row:
            joined = (rank, position) in self.overlapped
            partner = next(row, None) if joined else None
            cells.append(pair.format(action, partner[1]) if partner else str(action))
        return cells


def forward_only(plan: Schedule) -> Schedule:
    """The same order without backward, for evaluation."""
    rows = tuple(tuple(action for action in row if action.op is Op.F) for row in plan.rows)
    return Schedule(f"{plan.name} (forward only)", plan.placement, plan.num_microbatches, rows)


def _read_row(cells: Sequence[str | Action], where: str, unit: str = "position") -> ReadRow:
    actions: list[Action] = []
    pairs: set[int] = set()
    first = 1 if unit == "column" else 0
    for place, cell in enumerate(cells, first):
        try:
            read = _read_cell(cell)
        except ValueError as error:
            raise ScheduleError(f"{where}, {unit} {place}: {error}") from None
        if len(read) == 2:
            pairs.add(len(actions))
        actions += read
    return actions, pairs


def _read_cell(cell: str | Action) -> list[Action]:
    """The action in a cell, the two of an overlapped pair, or none if the cell is empty."""
    if isinstance(cell, Action):
        return [cell._replace(op=Op(cell.op))]  # a learner may have written "F" for Op.F
    text = str(cell).strip()
    joined = OVERLAP_CELL.fullmatch(text)
    parts = joined.groups() if joined else text.split("+", 1)
    return [Action.parse(part) for part in parts] if text else []


def _inferred(name: str, read: Sequence[ReadRow]) -> Schedule:
    """A schedule whose counts and placement are those that its rows show."""
    rows = tuple(tuple(actions) for actions, _ in read)
    everything = [action for row in rows for action in row]
    if not everything:
        raise ScheduleError("The plan is empty; write one line of actions a rank, as in `0F0 0B0`.")
    last = max(everything, key=lambda action: max(action.stage, action.microbatch))
    if max(last.stage, last.microbatch) >= len(everything):
        counting = "stages and microbatches count from 0 without gaps"
        raise ScheduleError(f"The plan names {last}, but has too few actions to reach that far: {counting}.")
    # The rank that runs most forwards of a stage holds it, so that one slip does not move a stage.
    named = Counter((action.stage, rank) for rank, row in enumerate(rows) for action in row)
    forwards = Counter((a.stage, rank) for rank, row in enumerate(rows) for a in row if a.op is Op.F)
    homes = dict(sorted(named, key=lambda home: (forwards[home], named[home], -home[1])))
    ranks = [homes.get(stage, stage % len(rows)) for stage in range(1 + max(homes))]
    overlapped = frozenset((rank, place) for rank, (_, pairs) in enumerate(read) for place in pairs)
    m = 1 + max(action.microbatch for action in everything)
    return Schedule(name, table(ranks, len(rows)), m, rows, overlapped)
