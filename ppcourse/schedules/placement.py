"""Which rank holds a stage."""

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Placement:
    """Where the stages live.

    ranks      ranks[stage] is the rank that holds the stage
    opposite   where stages live on two ranks: opposite[stage] holds the second copy, and runs the stage for the
               microbatches from `turn` on; empty where every stage lives on one rank
    """

    num_ranks: int
    ranks: tuple[int, ...]
    opposite: tuple[int, ...] = ()
    turn: int = 0

    @property
    def num_stages(self) -> int:
        return len(self.ranks)

    def rank_of(self, stage: int, microbatch: int) -> int:
        """The rank that runs `stage` for `microbatch`."""
        return self.homes(microbatch)[stage]

    def homes(self, microbatch: int) -> tuple[int, ...]:
        """The rank of each stage for `microbatch`."""
        return self.opposite if self.opposite and microbatch >= self.turn else self.ranks

    def stages_of(self, rank: int) -> tuple[int, ...]:
        """The stages that `rank` holds; their places in this tuple are its chunks."""
        return tuple(s for s in range(self.num_stages) if rank in (self.ranks[s], *self.opposite[s : s + 1]))


def loop(p: int, v: int = 1) -> Placement:
    """Stage s on rank s mod p: once round the ranks for each chunk.

        p = 3, v = 2     rank 0: stages 0 3     rank 1: stages 1 4     rank 2: stages 2 5

    Source: Narayanan et al. 2021, §2.2.
    """
    return Placement(p, tuple(stage % p for stage in range(p * v)))


def vee(p: int) -> Placement:
    """Down the ranks and up again: a rank holds two stages, and the first rank both ends of the model.

        p = 3     rank 0: stages 0 5     rank 1: stages 1 4     rank 2: stages 2 3

    Source: Qi et al. 2024 (Zero Bubble), §6.
    """
    return Placement(p, (*range(p), *reversed(range(p))))


def bidirectional(p: int, m: int) -> Placement:
    """Stage s twice: on rank s for the first half of the microbatches, on rank p-1-s for the second half.

        p = 4     rank 0: stages 0 3     rank 1: stages 1 2     rank 2: stages 1 2     rank 3: stages 0 3

    Source: DeepSeek-V3 report, §3.2.1.
    """
    return Placement(p, tuple(range(p)), tuple(reversed(range(p))), m // 2)


def table(ranks: Sequence[int], num_ranks: int) -> Placement:
    """Any placement, given as the rank of each stage."""
    return Placement(num_ranks, tuple(ranks))
