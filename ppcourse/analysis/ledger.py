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

    Activations, and what is kept for W, are those of the moment at which the rank holds most of both together. Of the
    two kinds that messages take, each link shows what is its own, the most in a step:

                          receive buffers                                 sent outputs
        gloo              receives posted, until their messages are       from packed until gone, by channel
                          used, each with room for 16 KiB or more
        shared            what came before its turn: no receive is        from packed until received; of messages up
                          posted                                          to 32 KiB, until the system's socket has them
        nccl, staged      a measurement leaves out both: they are in the GPU's memory, where the allocator's peak
                          counts them with all the rest

    A plan knows the first to the byte; of the second it counts one message a channel, for how far a rank is behind is
    a matter of time, and a measurement finds as many as it was behind.
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
        """For each rank, the bytes of one kind. Raises ValueError for one that no rank knows: that is not nothing."""
        if self.rows and not self.tells(kind):
            known = ", ".join(dict.fromkeys(kind for row in self.rows for kind in row))
            raise ValueError(f"This ledger ({self.origin}) does not tell {kind!r}; it tells {known}.")
        return tuple(row.get(kind, 0.0) for row in self.rows)

    def tells(self, kind: str) -> bool:
        """Whether any rank knows the kind."""
        return any(kind in tuple(row) for row in self.rows)

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


def side_by_side(*ledgers: Ledger, kinds: Sequence[str] = ()) -> str:
    """What each rank takes, as a table with a column a ledger: formula, simulated, measured; with and without pipeline.

    kinds   a line for each of these that is not nothing, instead of one for all kinds together: KINDS, for example.
            "-" stands where a ledger does not know the kind

    Ledgers of several names get them into the heads of their columns. Raises ValueError if there is no ledger.
    """
    if not ledgers:
        raise ValueError("Side by side go one or more ledgers; there are none.")
    for each in ledgers:
        if not isinstance(each, Ledger):
            raise ValueError(
                f"Side by side go ledgers, and {each!r} is none; take result.ledger, or ledger(plan, sizes)."
            )
    several = len({each.name for each in ledgers}) > 1
    heads = [f"{each.name} {each.origin}" if several else str(each.origin) for each in ledgers]
    for kind in kinds:
        if kind not in KINDS and not any(each.tells(kind) for each in ledgers):
            raise ValueError(f"No ledger here tells {kind!r}; the kinds are {', '.join(KINDS)}.")
    something = (k for k in kinds if any(each.tells(k) and any(each.of(k)) for each in ledgers))
    shown: list[str | None] = list(something)
    unit, scale = _unit([total for each in ledgers for total in each.totals])
    cells = [["rank", *(["kind"] if kinds else []), *heads]]
    for rank in range(max(each.num_ranks for each in ledgers)):
        for line in shown or [None]:
            numbers = (_number(each, rank, line) for each in ledgers)
            told = ("-" if number is None else f"{number / scale:.2f}" for number in numbers)
            cells.append([str(rank), *([line or ""] if kinds else []), *told])
    return f"{unit} a rank\n{aligned(cells)}"


def _number(ledger: Ledger, rank: int, kind: str | None) -> float | None:
    """What the rank takes for a kind, or in all; None if there is no such rank or the kind is not told apart."""
    if rank >= ledger.num_ranks:
        return None
    return ledger.totals[rank] if kind is None else ledger.rows[rank].get(kind)


def aligned(cells: Sequence[Sequence[str]]) -> str:
    """Rows of text as a table, numbers to the right."""
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    return "\n".join("  ".join(c.rjust(w) for c, w in zip(row, widths, strict=True)).rstrip() for row in cells)


def sized(size: float) -> str:
    """Bytes in the largest unit in which there is at least one: 4.5 MiB."""
    unit, scale = _unit([size])
    return f"{size / scale:.1f} {unit}"


def _unit(numbers: Sequence[float]) -> tuple[str, float]:
    """The largest unit in which the largest number is at least 1."""
    largest = max(numbers, default=0.0)
    return next(((name, size) for name, size in UNITS if largest >= size), ("bytes", 1))
