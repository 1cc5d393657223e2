"""Which rank holds a stage."""

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Placement:
    """Where the stages live: `ranks[stage]` is the rank that holds the stage."""

    num_ranks: int
    ranks: tuple[int, ...]

    @property
    def num_stages(self) -> int:
        return len(self.ranks)

    def rank_of(self, stage: int, microbatch: int) -> int:
        """The rank that runs `stage` for `microbatch`."""
        return self.ranks[stage]

    def stages_of(self, rank: int) -> tuple[int, ...]:
        """The stages that `rank` holds; their places in this tuple are its chunks."""
        return tuple(stage for stage, owner in enumerate(self.ranks) if owner == rank)


def loop(p: int, v: int = 1) -> Placement:
    """Stage s on rank s mod p: once round the ranks for each chunk.

        p = 3, v = 2     rank 0: stages 0 3     rank 1: stages 1 4     rank 2: stages 2 5

    Source: Narayanan et al. 2021, §2.2.
    """
    return Placement(p, tuple(stage % p for stage in range(p * v)))


def table(ranks: Sequence[int], num_ranks: int) -> Placement:
    """Any placement, given as the rank of each stage."""
    return Placement(num_ranks, tuple(ranks))
