"""A candidate that is short of memory, cut again: layers move to ranks that have room, at the least cost in time."""

from dataclasses import replace

from ppcourse.analysis.candidate import SEARCH, Candidate
from ppcourse.analysis.partition import partition


def leaner(candidate: Candidate) -> Candidate | None:
    """The same with the fastest cut that fits; None if none was found.

    A rank is taken to hold as many microbatches of its layers as with the first cut. So it is where a rank has one
    stage and B is whole: then None means that there is none. Elsewhere it is near, and the ledger has the last word.
    """
    place, usable = candidate.placement, candidate.cluster.usable
    work = candidate.shape.work(candidate.microbatch, candidate.recompute)
    sizes = candidate.sizes
    each = sizes.weight_bytes + sizes.gradient_bytes + sizes.optimizer_bytes
    weights, stashed = [layer.parameters * each for layer in work], [layer.stashed for layer in work]
    copies, stages = 2 if place.opposite else 1, len(place.stages_of(0))
    if copies * (sum(weights) + sum(stashed) / stages) > candidate.p * usable:
        return None  # a rank holds one microbatch of one stage at least
    held, limits = _room(candidate)
    if min(limits) < 0:
        return None
    times = [layer.total for layer in work]
    try:
        cut = partition(
            times, place.num_stages, placement=place, patience=SEARCH,
            layer_memory=weights, layer_stashed=stashed, held=held, limits=limits,
        )  # fmt: skip
    except ValueError:
        return None
    found = replace(candidate, cut=cut)
    return None if found.shortage else found


def _room(candidate: Candidate) -> tuple[list[float], list[float]]:
    """For each rank, the microbatches that it holds, and the bytes that are left beside what messages take."""
    stashed, held, limits = candidate.sizes.of("stashed", candidate.num_stages), [], []
    for rank, row in enumerate(candidate.ledger.rows):
        whole = sum(stashed[stage] for stage in candidate.placement.stages_of(rank))
        held.append(round((row["activations"] + row["kept for W"]) / whole, 9))  # a count, where it is one
        limits.append(candidate.cluster.usable - row["receive buffers"] - row["sent outputs"])
    return held, limits
