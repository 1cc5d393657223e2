"""Bytes by rank and kind: one type for what is predicted and what is measured."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

Origin: TypeAlias = Literal["formula", "simulated", "measured"]

KINDS = ("parameters", "gradients", "optimizer", "activations", "kept for W", "receive buffers", "sent outputs")
UNITS = (("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10))


@dataclass(frozen=True)
class Ledger:
    """Bytes by rank and kind; one type for what a formula says, what a plan makes of it, and what was measured.

    rows[rank]   bytes by kind. A formula and a plan have all of KINDS; a measurement has what it can tell apart
    origin       where the numbers are from

    Activations, and what is kept for W, are those of the moment at which the rank holds most of both together.
    """

    name: str
    rows: tuple[Mapping[str, float], ...]
    origin: Origin

    @property
    def num_ranks(self) -> int:
        return len(self.rows)

    @property
    def totals(self) -> tuple[float, ...]:
        """For each rank, all kinds together."""
        return tuple(sum(row.values()) for row in self.rows)

    @property
    def peak(self) -> float:
        """Of the rank that takes most."""
        return max(self.totals, default=0.0)

    def of(self, kind: str) -> tuple[float, ...]:
        """For each rank, the bytes of one kind."""
        return tuple(row.get(kind, 0.0) for row in self.rows)

    def __str__(self) -> str:
        kinds = list(dict.fromkeys(kind for row in self.rows for kind in row))
        shown = [kind for kind in kinds if any(self.of(kind))]
        cells = [["rank", *shown, "total"]]
        unit, scale = _unit(self.totals)
        for rank, row in enumerate(self.rows):
            numbers = [*(row.get(kind, 0.0) for kind in shown), self.totals[rank]]
            cells.append([str(rank), *(f"{number / scale:.2f}" for number in numbers)])
        return f"{self.name} ({self.origin}), {unit}\n{aligned(cells)}"

    __repr__ = __str__


def side_by_side(*ledgers: Ledger) -> str:
    """What each rank takes in all, as a table with a column a ledger: formula, simulated, measured.

    Raises ValueError for ledgers of different numbers of ranks, and for none.
    """
    ranks = {each.num_ranks for each in ledgers}
    if len(ranks) != 1:
        raise ValueError(f"Side by side go ledgers of the same ranks; these have {sorted(ranks) or 'none'}.")
    unit, scale = _unit([total for each in ledgers for total in each.totals])
    columns = [[f"{total / scale:.2f}" for total in each.totals] for each in ledgers]
    rows = [[str(rank), *row] for rank, row in enumerate(zip(*columns, strict=True))]
    return f"{unit} a rank\n{aligned([['rank', *(each.origin for each in ledgers)], *rows])}"


def aligned(cells: Sequence[Sequence[str]]) -> str:
    """Rows of text as a table, numbers to the right."""
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    return "\n".join("  ".join(c.rjust(w) for c, w in zip(row, widths, strict=True)).rstrip() for row in cells)


def _unit(numbers: Sequence[float]) -> tuple[str, float]:
    """The largest unit in which the largest number is at least 1."""
    largest = max(numbers, default=0.0)
    return next(((name, size) for name, size in UNITS if largest >= size), ("bytes", 1))
