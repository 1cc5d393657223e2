"""The look ahead of probe.py, in the process of its own."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import nn

from ppcourse.runtime.stages.stage import LossFunction
from ppcourse.runtime.values.extras import call, taken_by
from ppcourse.runtime.values.handed_on import HandOnError, check_crosses, check_loss, check_output


def look(
    stages: Sequence[Mapping[int, nn.Module]],
    value: Any,
    target: Any,
    extras: Mapping[str, Any],
    loss_fn: LossFunction | None,
) -> str | None:
    """What is wrong, in a sentence, or None."""
    try:
        with torch.no_grad():
            for stage in stages:
                for number, layer in stage.items():
                    value = call(number, layer, value, taken_by([layer]), extras)
                    check_output(number, layer, value)
                if stage is not stages[-1]:
                    _check_cut(number, layer, value)
            if loss_fn is not None:
                check_loss(loss_fn(value, target))
    except HandOnError as error:
        return str(error)
    except Exception:
        return None
    return None


def _check_cut(number: int, layer: nn.Module, value: Any) -> None:
    try:
        check_crosses(value)
    except TypeError as error:
        name = f"Layer {number} ({type(layer).__name__})"
        raise HandOnError(f"What {name} returned cannot go to the next stage: {error}") from None
