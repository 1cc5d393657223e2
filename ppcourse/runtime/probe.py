"""A look ahead: does every layer hand on what the next one can take?

Before a run, a process of its own passes one microbatch forward through the whole model and the loss function,
so that a layer that returns no tensor is a sentence and not a failed step. What cannot be seen that way (the
model is large, or the code fails, ends its process, or takes long) is left to the run, which reports it with
rank and action.
"""

from collections.abc import Sequence
from typing import Any

from torch import nn

from ppcourse.runtime.errors import RankError
from ppcourse.runtime.ranks import in_use, pool_of
from ppcourse.runtime.shipping import check_travels, order
from ppcourse.runtime.stage import LossFunction

PATIENCE = 1.0  # seconds that the look may take
LARGE = 32 * 2**20  # bytes of weights and buffers from which on nobody looks ahead


def probe(layers: Sequence[nn.Module], inputs: Any, target: Any, loss_fn: LossFunction | None) -> None:
    """Raise ValueError if a layer returns no tensor, or the loss function not one number."""
    try:
        if sum(t.numel() * t.itemsize for layer in layers for t in layer.state_dict().values()) > LARGE:
            return
        asked = order("look", list(layers), inputs, target, loss_fn)
    except Exception:
        check_travels({"inputs": inputs, "targets": target})
        return
    with in_use:
        pool = pool_of(1)
        try:
            (complaint,) = pool.call([asked], timeout=PATIENCE)
        except RankError:
            return
        finally:
            pool.say()  # what layers print belongs to the run
    if complaint:
        raise ValueError(complaint)
