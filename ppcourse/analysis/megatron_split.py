"""How Megatron-LM cuts a transformer: equal numbers of decoder layers, and flags for the first and the last rank."""

from numbers import Integral


def megatron_split(
    num_layers: int,
    num_ranks: int,
    v: int = 1,
    *,
    first: int | None = None,
    last: int | None = None,
    embedding: bool = False,
    loss: bool = False,
) -> tuple[int, ...]:
    """Decoder layers per stage, in stage order; embedding and head come on top, in the first and the last stage.

    first, last   --decoder-first-pipeline-num-layers, --decoder-last-pipeline-num-layers: of the first and the last
                  rank, all its stages together
    embedding     --account-for-embedding-in-pipeline-split: the embedding counts as a layer
    loss          --account-for-loss-in-pipeline-split: so do head and loss

        megatron_split(12, 4)                    3 3 3 3
        megatron_split(16, 4, first=4, last=2)   4 5 5 2
        megatron_split(14, 4, embedding=True, loss=True)   3 4 4 3

    Raises ValueError for counts that it does not take: what is left must divide evenly.
    Source: Megatron-LM, megatron/training/arguments.py and get_num_layers_to_build in
    megatron/core/transformer/transformer_block.py.
    """
    _check_counts({"num_layers": num_layers, "num_ranks": num_ranks, "v": v, "first": first, "last": last})
    num_layers, embedding, loss = int(num_layers), bool(embedding), bool(loss)
    uneven = {rank: size for rank, size in ((0, first), (num_ranks - 1, last)) if size is not None}
    if uneven and (embedding or loss):
        raise ValueError("first and last say how many layers a rank gets; embedding and loss cannot count there too.")
    if len(uneven) < (first is not None) + (last is not None):
        raise ValueError("There is one rank, so first and last are the same one; leave one out.")
    rest = num_layers + embedding + loss - sum(uneven.values())
    ranks = num_ranks - len(uneven)
    if rest < 0:
        asked = sum(uneven.values())
        raise ValueError(f"first and last ask for {asked} of {num_layers} layers; take at most {num_layers - ranks}.")
    if rest % ranks if ranks else rest:
        raise ValueError(f"{rest} layers are left for {ranks} ranks; Megatron wants a multiple of {ranks}.")
    each = [uneven.get(rank, rest // ranks if ranks else 0) for rank in range(num_ranks)]
    for rank, size in enumerate(each):
        if size % v or size < v:
            raise ValueError(f"Rank {rank} gets {size} layers, which do not make {v} stages of equal size.")
    sizes = [each[stage % num_ranks] // v for stage in range(num_ranks * v)]
    sizes[0] -= embedding
    sizes[-1] -= loss
    return tuple(sizes)


def _check_counts(counts: dict[str, int | None]) -> None:
    """Raise ValueError for what is no count; only first and last may be left out."""
    for word, count in counts.items():
        if count is None and word in ("first", "last"):
            continue
        if isinstance(count, bool) or not isinstance(count, Integral) or count < 1:
            raise ValueError(f"{word} is {count!r}; it must be a whole number of at least 1.")
