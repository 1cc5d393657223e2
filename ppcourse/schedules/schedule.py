"""A schedule is plain data: for each rank, a row of actions."""

import csv
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeAlias

from ppcourse.schedules.action import Action, Op
from ppcourse.schedules.placement import Placement, bidirectional, table

Row: TypeAlias = str | Iterable[str | Action]
"""What a learner may type for one rank: `"0F0 0F1 0B0 0B1"`, `["0F0", "0F1"]`, or actions."""

ReadRow: TypeAlias = tuple[list[Action], set[int]]
"""The actions of one row, and the positions of the F of each overlapped pair."""

OVERLAP_CELL = re.compile(r"\(([^;()]+);([^;()]+)\)OVERLAP_F_B")
IDLE = "."
BETWEEN_ACTIONS = re.compile(r"\d+(UNSHARD|RESHARD|REDUCE_GRAD|(SEND|RECV)_[FB]\d+)")  # what PyTorch adds


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

    def __post_init__(self) -> None:
        # what was found out about a plan is kept (see validate), so nobody may change its rows afterwards
        object.__setattr__(self, "rows", tuple(map(tuple, self.rows)))

    @property
    def num_ranks(self) -> int:
        return len(self.rows)

    @property
    def num_stages(self) -> int:
        return self.placement.num_stages

    @property
    def stages_per_rank(self) -> int:
        """The most stages that a rank holds."""
        ranks, opposite = self.placement.ranks, self.placement.opposite
        return max(Counter(rank for homes in zip(ranks, opposite or ranks, strict=True) for rank in {*homes}).values())

    @property
    def trains(self) -> bool:
        """False if the plan has forwards only."""
        return any(action.op != Op.F for row in self.rows for action in row)

    @property
    def pairs(self) -> list[set[int]]:
        """For each rank, the positions of the F of its overlapped pairs."""
        found: list[set[int]] = [set() for _ in self.rows]
        for rank, position in self.overlapped:
            found[rank].add(position)
        return found

    def rank_of(self, stage: int, microbatch: int) -> int:
        """The rank that runs `stage` for `microbatch`."""
        return self.placement.rank_of(stage, microbatch)

    def __str__(self) -> str:
        return self.to_text()

    def to_text(self) -> str:
        """One line a rank, actions separated by blanks; an overlapped pair is written `0F4+3B1`."""
        return "\n".join(" ".join(self._cells(rank, "{}+{}")) or IDLE for rank in range(self.num_ranks))

    @classmethod
    def from_text(cls, text: str, name: str = "mine") -> "Schedule":
        """The plan that `text` writes down, one line a rank; blank lines, `# remarks` and dots (idle slots, as
        in a drawing) are skipped.

        Counts and placement are taken from the actions. Raises ScheduleError for what is not an action;
        whether the plan obeys the rules is for `validate` to say.
        """
        if not isinstance(text, str):
            raise ScheduleError(f"from_text takes text, not {type(text).__name__}; for rows take from_rows.")
        lines = (line.partition("#")[0].strip() for line in text.splitlines())
        return cls.from_rows([line for line in lines if line], name)

    @classmethod
    def from_rows(cls, rows: Sequence[Row], name: str = "mine") -> "Schedule":
        """The plan in `rows`, one a rank, counts and placement taken from the actions.

        Raises ScheduleError for what is not a list of rows of actions.
        """
        try:
            if isinstance(rows, str):
                raise TypeError
            cells = [row.split() if isinstance(row, str) else list(row) for row in rows]
        except TypeError:
            right = 'a list with a row for each rank, as in ["0F0 0B0", "1F0 1B0"]; for one text take from_text'
            raise ScheduleError(f"Rows are {right}.") from None
        read = [_read_row(row, f"rank {rank}") for rank, row in enumerate(cells)]
        return _inferred(name, read)

    def to_csv(self, path: str | Path) -> None:
        """Write torch.distributed.pipelining's compute-only CSV: one line a rank, one cell an action.

        Raises ScheduleError, and writes nothing, for a plan that torch would refuse or run wrongly: with a stage on
        two ranks, a rank that does nothing, no backward, or losses in another order than the microbatches.
        """
        if misfit := self._misfit():
            raise ScheduleError(f"{misfit}, so {self.name} cannot be written as PyTorch's CSV.")
        with Path(path).open("w", newline="", encoding="ascii") as file:
            writer = csv.writer(file)
            writer.writerows(self._cells(rank, "({};{})OVERLAP_F_B") for rank in range(self.num_ranks))

    @classmethod
    def from_csv(cls, path: str | Path, name: str | None = None) -> "Schedule":
        """Read what torch's schedules dump, compute-only or with communication.

        Skipped are idle slots, blank lines, and what torch adds between actions: sends and receives, which follow
        from the actions, and what it does to a stage's weights. Raises ScheduleError for a file without actions,
        and, naming line and column, for a cell that torch would not write.
        """
        path = Path(path)
        read = [_read_row(cells, f"{path.name}, line {line}", "column") for line, cells in _lines(path)]
        if not any(actions for actions, _ in read):
            raise ScheduleError(f"{path.name} has no actions; write one line a rank and one cell an action: `0F0,0B0`.")
        return _inferred(name or path.stem, read)

    def _misfit(self) -> str | None:
        """What PyTorch has no place for, as the start of a sentence."""
        if self.placement.opposite:
            homes = f"{self.placement.ranks[0]} and {self.placement.opposite[0]}"
            return f"Stage 0 lives on ranks {homes}, and PyTorch has one rank for a stage"
        if () in self.rows:
            return f"Rank {self.rows.index(())} does nothing, and PyTorch takes no empty rows"
        if not self.trains:
            return "There is no backward, and PyTorch takes no plan without one"
        last = self.num_stages - 1
        losses = [i for row in self.rows for stage, op, i in row if (stage, op) == (last, Op.F)]
        if losses != sorted(losses):
            return f"Stage {last} runs its forwards out of order, and PyTorch takes the first loss for microbatch 0's"
        return None

    def _cells(self, rank: int, pair: str) -> list[str]:
        cells, row = [], iter(enumerate(self.rows[rank]))
        for position, action in row:
            joined = (rank, position) in self.overlapped
            partner = next(row, None) if joined else None
            cells.append(pair.format(action, partner[1]) if partner else str(action))
        return cells


def _lines(path: Path) -> list[tuple[int, list[str]]]:
    """The lines of a CSV and their numbers; without blank ones, and without what is between actions."""
    try:
        with path.open(encoding="utf-8-sig") as file:  # spreadsheets put a mark at its beginning
            lines = list(enumerate(csv.reader(file), 1))
    except UnicodeDecodeError:
        raise ScheduleError(f"{path.name} is not text in UTF-8; save it as that.") from None
    except csv.Error as error:
        raise ScheduleError(f"{path.name} is not a CSV: {error}.") from None
    return [
        (line, ["" if BETWEEN_ACTIONS.fullmatch(cell.strip()) else cell for cell in cells])
        for line, cells in lines
        if len(cells) > 1 or "".join(cells).strip()
    ]


def _read_row(cells: Sequence[str | Action], where: str, unit: str = "position") -> ReadRow:
    actions: list[Action] = []
    pairs: set[int] = set()
    first = 1 if unit == "column" else 0
    for place, cell in enumerate(cells, first):
        try:
            read = _read_cell(cell)
        except ValueError as error:
            glued = unit == "position" and isinstance(cell, str) and {*cell} & {*",;|"}
            hint = " Between actions stand blanks." if glued else ""
            raise ScheduleError(f"{where}, {unit} {place}: {error}{hint}") from None
        if len(read) == 2:
            pairs.add(len(actions))
        actions += read
    return actions, pairs


def _read_cell(cell: str | Action) -> list[Action]:
    """The action in a cell, the two of an overlapped pair, or none if the cell is empty."""
    if isinstance(cell, Action):
        return [cell.checked()]
    text = str(cell).strip()
    if text in ("", IDLE):
        return []
    joined = OVERLAP_CELL.fullmatch(text)
    parts = joined.groups() if joined else text.split("+", 1)
    return [Action.parse(part) for part in parts]


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
    overlapped = frozenset((rank, place) for rank, (_, pairs) in enumerate(read) for place in pairs)
    m = 1 + max(action.microbatch for action in everything)
    return Schedule(name, _placement(rows, m), m, rows, overlapped)


def _placement(rows: tuple[tuple[Action, ...], ...], m: int) -> Placement:
    """Where the stages live, so that one slip in the rows does not move a stage.

    A rank holds a stage if it runs most of the stage's forwards; unless more forwards, and more actions, are in
    their place if every stage lives on two ranks, as in DualPipe.
    """
    everything = [(action, rank) for rank, row in enumerate(rows) for action in row]
    forwards = [(action, rank) for action, rank in everything if action.op is Op.F]
    named, most = (Counter((a.stage, rank) for a, rank in some) for some in (everything, forwards))
    homes = dict(sorted(named, key=lambda home: (most[home], named[home], -home[1])))
    one = table([homes.get(stage, stage % len(rows)) for stage in range(1 + max(homes))], len(rows))
    if one.num_stages != one.num_ranks:
        return one
    two = bidirectional(len(rows), m)

    def in_place(placement: Placement, some: list[tuple[Action, int]]) -> int:
        return sum(placement.rank_of(a.stage, a.microbatch) == rank for a, rank in some)

    return two if all(in_place(two, some) > in_place(one, some) for some in (forwards, everything)) else one
