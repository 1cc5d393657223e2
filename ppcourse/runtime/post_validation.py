"""An optimizer step that waits for nobody: made with what a rank knows, checked later, undone if it was wrong.

Whether a step is made, and with what factor, depends on the norm of the gradients of all ranks: is it NaN, does it
exceed the limit? An all-reduce that tells every rank before its step makes all of them wait for the last one. A
zero-bubble plan, in which the ranks start and end one after the other, would gain nothing. Instead two numbers travel:

    step      down the ranks   each adds its part to what the ranks before it know, and steps if that allows it
    settle    and back up      the whole comes back: most often the step was right, else it is undone

Only a rank whose own gradients are finite has ever anything to undo. Source: Qi et al. 2024 (Zero Bubble), §4.
"""

import math
from collections.abc import Iterable
from enum import StrEnum
from typing import Any

import torch
from torch import Tensor, nn


class Outcome(StrEnum):
    """What became of a rank's step once the whole norm was known."""

    KEPT = "kept"  # made at once, and right
    UNDONE = "undone"  # made at once; another rank has NaN or infinity
    REDONE = "redone"  # made at once; the whole norm exceeds the limit: undone, and made again with clipped gradients
    SKIPPED = "skipped"  # not made: it was known by then that the gradients are not finite
    LATE = "late"  # made only now, with clipped gradients: it was known by then that the norm exceeds the limit


class PostValidation:
    """The step of one rank. Its result is, to the last bit, that of a rank that knew the whole norm before its step.

    parameters   of this rank; from `step` to `settle` they keep their gradients, which a clipped step needs again
    optimizer    any that changes nothing but them and its own state, as torch's do
    clip_norm    the most that the norm of all gradients of all ranks may be; None: only NaN and infinity count

    From `step` to `settle` there is a copy of the weights and of the optimizer's state. Undoing by arithmetic needs
    none, but leaves rounding errors in both.
    """

    def __init__(
        self, parameters: Iterable[nn.Parameter], optimizer: torch.optim.Optimizer, clip_norm: float | None = None
    ) -> None:
        if clip_norm is not None and not clip_norm > 0:
            raise ValueError(f"clip_norm is {clip_norm!r}; it is a number above 0, or None for no limit.")
        self.parameters, self.optimizer, self.clip_norm = list(parameters), optimizer, clip_norm
        self.pending = False
        self.saved: list[tuple[Tensor, dict[str, Any] | None]] | None = None

    def step(self, before: float = 0.0) -> float:
        """Step, unless it is known already that this would be wrong.

        before   the sum of the squares of all gradients of the ranks before this one

        Returns that sum with this rank's own gradients in it: for the next rank; on the last one it is the whole.
        """
        if self.pending:
            raise RuntimeError("The step before has not been settled; call settle(whole) first.")
        known = before
        for parameter in self.parameters:
            if parameter.grad is not None:
                known += float(parameter.grad.double().pow(2).sum())
        self.pending = True
        if self._factor(known) == 1.0:
            self.saved = [self._copy(parameter) for parameter in self.parameters]
            self.optimizer.step()
        return known

    def settle(self, whole: float) -> Outcome:
        """Make good what `step` could not know, and drop the gradients.

        whole   the sum of the squares of all gradients of all ranks, which `step` returned on the last one

        To be called before the next backward. What was run forward in between on weights that are now undone has to be
        run again.
        """
        if not self.pending:
            raise RuntimeError("There is nothing to settle; call step first.")
        stepped, factor = self.saved is not None, self._factor(whole)
        if stepped and factor != 1.0:
            self._undo()
        if factor is not None and (factor != 1.0 or not stepped):
            for parameter in self.parameters:
                if parameter.grad is not None:
                    parameter.grad.mul_(factor)
            self.optimizer.step()
        self.pending, self.saved = False, None
        for parameter in self.parameters:
            parameter.grad = None
        if factor is None:
            return Outcome.UNDONE if stepped else Outcome.SKIPPED
        if factor == 1.0 and stepped:
            return Outcome.KEPT
        return Outcome.REDONE if stepped else Outcome.LATE

    def _factor(self, squares: float) -> float | None:
        """What the gradients are multiplied with; None: there is no step."""
        if not math.isfinite(squares):
            return None
        norm = math.sqrt(squares)
        return 1.0 if self.clip_norm is None or norm <= self.clip_norm else self.clip_norm / norm

    def _copy(self, parameter: nn.Parameter) -> tuple[Tensor, dict[str, Any] | None]:
        state = self.optimizer.state.get(parameter)
        copies = {name: x.clone() if isinstance(x, Tensor) else x for name, x in state.items()} if state else None
        return parameter.detach().clone(), copies

    def _undo(self) -> None:
        assert self.saved is not None
        for parameter, (weight, state) in zip(self.parameters, self.saved, strict=True):
            with torch.no_grad():
                parameter.copy_(weight)
            self.optimizer.state.pop(parameter, None)
            if state is not None:
                self.optimizer.state[parameter] = state
