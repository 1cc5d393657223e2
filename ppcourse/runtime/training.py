"""The optimizer step of a pipeline: tied weights, one global norm, then each rank updates its own weights."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor, nn

from ppcourse.runtime.values.sparse import rows_of, with_rows


class Tie(NamedTuple):
    """A weight that several ranks hold: this rank's name for it (None: it has none), whether it counts it in norms."""

    name: str | None
    counted: bool
    shape: tuple[int, ...]
    dtype: torch.dtype


@dataclass
class Trainer:
    """Every rank has one and calls `update` after every step, also a rank without weights: all ranks take part.

    optimizer   makes a torch optimizer of a rank's parameters
    clip_norm   the most the norm of all gradients of the whole model may be; None: no limit
    """

    optimizer: Callable[[Iterable[nn.Parameter]], torch.optim.Optimizer]
    clip_norm: float | None = None
    ties: tuple[Tie, ...] = ()
    parameters: dict[str, nn.Parameter] = field(default_factory=dict)
    made: Any = None
    _settings: list[dict[str, Any]] = field(default_factory=list)

    def open(self, model: nn.Module) -> None:
        self.parameters = {name: p for name, p in model.named_parameters() if p.requires_grad}
        self.made = self.optimizer(self.parameters.values()) if self.parameters else None
        if self.parameters and not isinstance(self.made, torch.optim.Optimizer):
            raise TypeError(f"optimizer returned {type(self.made).__name__}, but it must return a torch optimizer")
        self._settings = self._settings_now()

    def update(self) -> float:
        """One optimizer step; the global norm of the gradients before clipping (Pascanu et al. 2013)."""
        self._sum_ties()
        norm = self._global_norm()
        if self.clip_norm is not None and norm > self.clip_norm:
            for parameter in self.parameters.values():
                if parameter.grad is not None:
                    parameter.grad.mul_(self.clip_norm / norm)
        if self.made is not None:
            self.made.step()
        for parameter in self.parameters.values():  # also of those that the optimizer leaves out
            parameter.grad = None
        return norm

    def kept(self) -> dict[str, dict[str, Any]]:
        """By the weight's name, what the optimizer remembers of it from step to step."""
        state = {} if self.made is None else self.made.state
        return {name: state[parameter] for name, parameter in self.parameters.items() if parameter in state}

    def remember(self, kept: Mapping[str, dict[str, Any]]) -> None:
        """Let the optimizer go on from what `kept` gave once; each value is put where this optimizer wants it."""
        if self.made is None:
            return
        names = {parameter: name for name, parameter in self.parameters.items()}
        order = [parameter for group in self.made.param_groups for parameter in group["params"]]
        state = {number: kept[names[parameter]] for number, parameter in enumerate(order)}
        self.made.load_state_dict(self.made.state_dict() | {"state": {i: of for i, of in state.items() if of}})
        for number, values in state.items():
            own = self.made.state[order[number]] if values else {}
            for key, value in values.items():
                if isinstance(value, Tensor) and own[key].dtype != value.dtype:  # torch takes the weight's, and rounds
                    own[key] = value.to(own[key].device)

    def changed(self) -> str:
        """The first of the optimizer's settings that is not what it was when it was made, as lr; "" if all are."""
        both = zip(self._settings, self._settings_now(), strict=False)
        return next((name for was, now in both for name in was if was[name] != now.get(name)), "")

    def _settings_now(self) -> list[dict[str, Any]]:
        groups = [] if self.made is None else self.made.param_groups
        return [{name: str(value) for name, value in group.items() if name != "params"} for group in groups]

    def _sum_ties(self) -> None:
        """Every copy of a tied weight gets the sum of the copies' gradients, or None if none has one."""
        for tie in self.ties:
            weight = self.parameters.get(tie.name) if tie.name else None
            grad = None if weight is None else weight.grad
            sparse = grad is not None and grad.is_sparse
            holders = torch.tensor([float(grad is not None), float(sparse)])
            _all_sum(holders)
            total = torch.zeros(tie.shape, dtype=tie.dtype) if grad is None else grad.to_dense().contiguous()
            _all_sum(total)
            if holders[0] == holders[1] > 0:  # sparse in all copies, and so in the unsplit model
                rows = rows_of(grad) if grad is not None else torch.zeros(tie.shape[0])
                _all_sum(rows)
                total = with_rows(total, rows)
            if weight is not None and holders[0] > 0:
                weight.grad = total.to(weight.device)  # a rank without a gradient began with zeros on the CPU

    def _global_norm(self) -> float:
        """The square root of the sum of all squares, each weight of the model counted once."""
        uncounted = {tie.name for tie in self.ties if not tie.counted}
        grads = [p.grad for name, p in self.parameters.items() if p.grad is not None and name not in uncounted]
        square = torch.zeros((), dtype=torch.float64, device=grads[0].device if grads else None)
        for grad in grads:
            square += grad.double().pow(2).sum()
        _all_sum(square)
        return float(square.sqrt())


def _all_sum(value: Tensor) -> None:
    """Sum over all ranks, in place. Over gloo on the CPU, wherever `value` is: it works for ranks that share a GPU too,
    needs no communicator of all ranks on it, and what is summed once a step is small."""
    if dist.is_initialized() and dist.get_world_size() > 1:
        on_cpu = value.cpu()
        dist.all_reduce(on_cpu)
        value.copy_(on_cpu)  # itself, on the CPU
