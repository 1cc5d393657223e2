"""Sparse gradients: those of an Embedding(sparse=True), which has some rows of its weight and not the others."""

from typing import Any, NamedTuple

import torch
from torch import Tensor


class Parts(NamedTuple):
    """A sparse gradient on its way from a rank, as tensors that can cross."""

    indices: Tensor
    values: Tensor
    shape: tuple[int, ...]

    def joined(self) -> Tensor:
        return torch.sparse_coo_tensor(self.indices, self.values, self.shape, is_coalesced=True, check_invariants=False)


def parted(grad: Tensor | None) -> Any:
    """Parts of a sparse gradient, each row once; any other as it is."""
    if grad is None or not grad.is_sparse:
        return grad
    whole = grad.coalesce()
    return Parts(whole.indices(), whole.values(), tuple(whole.shape))


def joined(grad: Any) -> Tensor | None:
    return grad.joined() if isinstance(grad, Parts) else grad


def total(grads: list[Tensor]) -> Tensor | None:
    """The sum, sparse if all are: torch adds a sparse one to a dense one only."""
    dense_first = sorted(grads, key=lambda grad: grad.is_sparse)
    return sum(dense_first[1:], start=dense_first[0]) if dense_first else None


def rows_of(grad: Tensor) -> Tensor:
    """For each row of the weight, 1.0 if a sparse gradient has it."""
    rows = torch.zeros(grad.shape[0], device=grad.device)
    rows[grad.coalesce().indices()[0]] = 1.0
    return rows


def with_rows(dense: Tensor, rows: Tensor) -> Tensor:
    """A sparse gradient of these rows."""
    places = rows.nonzero().flatten()
    return torch.sparse_coo_tensor(places[None], dense[places], dense.shape, is_coalesced=True, check_invariants=False)
