"""A batch and its microbatches."""

import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.utils._pytree import tree_map

from ppcourse.runtime.stages.stage import End
from ppcourse.runtime.values.extras import Whole
from ppcourse.runtime.values.handed_on import tensors_of


class Batch(NamedTuple):
    """What each microbatch begins with and ends in, and its extras by name."""

    inputs: Sequence[Any]
    ends: Sequence[End]
    extras: Sequence[dict[str, Any]]


def rows_of(value: Any, what: str) -> int:
    """The number of rows of a batch: dimension 0 of its first tensor. Raises ValueError if it has none."""
    tensors = [tensor for tensor in tensors_of(value) if tensor.dim() > 0]
    if not tensors:
        raise ValueError(f"{what} hold no tensor with rows, but a batch is split into microbatches along dimension 0.")
    rows = max(tensor.shape[0] for tensor in tensors)
    for tensor in tensors:
        if tensor.shape[0] not in (1, rows):
            raise ValueError(
                f"{what} hold tensors with {rows} and with {tensor.shape[0]} rows; all need the same number, or 1."
            )
    return rows


def split(value: Any, m: int, rows: int) -> list[Any]:
    """`m` microbatches, cut along dimension 0 as torch.tensor_split does: the first ones get the remainder.

    Every microbatch gets tensors with other than `rows` rows (masks for all, scalars) and everything that is no
    tensor as it is.
    """

    def part(leaf: Any, i: int) -> Any:
        if not isinstance(leaf, Tensor) or leaf.dim() == 0 or leaf.shape[0] != rows:
            return leaf
        return torch.tensor_split(leaf, m)[i].clone()  # a view would take the whole batch to its rank

    return [tree_map(lambda leaf, i=i: part(leaf, i), value) for i in range(m)]


def whole_of(parts: Iterable[Any]) -> list[Tensor]:
    """The tensors that more than one of the microbatches' parts have: those that were not split."""
    every = [tensor for part in parts for tensor in {id(x): x for x in tensors_of(part)}.values()]
    counts = Counter(map(id, every))
    return list({id(tensor): tensor for tensor in every if counts[id(tensor)] > 1}.values())


def split_batch(inputs: Any, targets: Any, m: int) -> tuple[list[Any], list[Any]]:
    """Inputs and targets in `m` microbatches of at least one row each.

    Raises ValueError for fewer rows than microbatches, or targets of another length.
    """
    rows = rows_of(inputs, "inputs")
    if rows == 0:
        raise ValueError(f"The batch has no rows; {m} microbatches need at least {m} of them.")
    if rows < m:
        raise ValueError(
            f"The batch has {rows} rows, too few for {m} microbatches; take m from 1 to {rows}, or more rows."
        )
    if targets is None:
        return split(inputs, m, rows), [None] * m
    target_rows = rows_of(targets, "targets")
    if target_rows != rows:
        raise ValueError(f"targets have {target_rows} rows, but inputs have {rows}; each input row needs its target.")
    return split(inputs, m, rows), split(targets, m, rows)


def split_extras(extras: Mapping[str, Any], m: int, inputs: Any) -> list[dict[str, Any]]:
    """Of each microbatch: its rows of what has as many rows as `inputs`, and all of anything else, or of a Whole."""
    rows = rows_of(inputs, "inputs")
    parts = {
        name: [extra.value] * m if isinstance(extra, Whole) else split(extra, m, rows) for name, extra in extras.items()
    }
    return [{name: part[i] for name, part in parts.items()} for i in range(m)]


def batch_of(
    inputs: Any,
    targets: Any,
    extras: Mapping[str, Any],
    m: int,
    reduction: str,
    weight: Callable[[Any], float] | None,
) -> Batch:
    """A batch in `m` microbatches, ready for a step. Raises ValueError for what cannot be one."""
    xs, ys = split_batch(inputs, targets, m)
    return Batch(xs, ends_of(ys, reduction, weight), split_extras(extras, m, inputs))


def reduction_of(loss_fn: Callable[..., Any], given: str | None) -> str:
    """Either mean or sum: as given, else what the loss function says of itself, else mean."""
    own = getattr(loss_fn, "keywords", {}).get("reduction")  # functools.partial(cross_entropy, reduction="sum")
    reduction = given or own or getattr(loss_fn, "reduction", "mean")
    if reduction not in ("mean", "sum"):
        raise ValueError(f"reduction is {reduction!r}; a loss over microbatches is put together by 'mean' or by 'sum'.")
    return str(reduction)


def ends_of(targets: list[Any], reduction: str, weight: Callable[[Any], float] | None) -> list[End]:
    """Each microbatch's target and what its loss counts: wᵢ ÷ Σw for a mean, 1 for a sum.

    So loss and gradients do not depend on the number of microbatches. `weight` gives wᵢ from a target; by
    default it is the number of rows. Raises ValueError if the weights do not add up to something above 0.
    """
    if reduction == "sum":
        return [End(target, 1.0) for target in targets]
    if weight is not None and not callable(weight):
        raise ValueError(f"weight is {weight!r}, but it must be a function of a target, for example len.")
    weights = [float(weight(target) if weight else rows_of(target, "targets")) for target in targets]
    total = sum(weights)
    if not 0 < total < math.inf:
        raise ValueError(f"weight gives {weights} for the microbatches; their sum must be a number above 0.")
    return [End(target, one / total) for target, one in zip(targets, weights, strict=True)]


def join(parts: list[Any]) -> Any:
    """The outputs of all microbatches as one: tensors along dimension 0, in tuples place by place; of
    anything else that differs, a list."""
    first = parts[0]
    if isinstance(first, Tensor):
        return torch.cat(parts) if first.dim() else torch.stack(parts)
    if isinstance(first, tuple | list):
        columns = [join(list(column)) for column in zip(*parts, strict=True)]
        return first._make(columns) if hasattr(first, "_make") else type(first)(columns)
    if isinstance(first, dict):
        return {key: join([part[key] for part in parts]) for key in first}
    return first if all(part is first or part == first for part in parts) else parts
