"""The look ahead of probe.py, in the process of its own."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import nn

from ppcourse.runtime.stage import HandOnError, LossFunction, check_loss, check_output


def look(layers: Sequence[nn.Module], value: Any, target: Any, loss_fn: LossFunction | None) -> str | None:
    """What is wrong, in a sentence, or None."""
    try:
        with torch.no_grad():
            for number, layer in enumerate(layers):
                value = layer(value)
                check_output(number, layer, value)
            if loss_fn is not None:
                check_loss(loss_fn(value, target))
    except HandOnError as error:
        return str(error)
    except Exception:
        return None
    return None
