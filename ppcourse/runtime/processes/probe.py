"""A look ahead: does every layer hand on what the next one can take?

Before a run, a process of its own passes one microbatch forward through the whole model and the loss function,
so that a layer that returns no tensor is a sentence and not a failed step. What cannot be seen that way (the
model is large, or the code fails, ends its process, or takes long) is left to the run, which reports it with
rank and action.
"""

from typing import Any

from ppcourse.runtime.errors import RankError
from ppcourse.runtime.prepare import Cut
from ppcourse.runtime.processes.ranks import done_with, in_use, pool_of
from ppcourse.runtime.processes.shipping import check_travels, order
from ppcourse.runtime.stages.batch import Batch
from ppcourse.runtime.stages.stage import LossFunction

PATIENCE = 1.0  # seconds that the look may take
LARGE = 32 * 2**20  # bytes of weights and buffers from which on nobody looks ahead


def probe(cut: Cut, batch: Batch, loss_fn: LossFunction | None) -> None:
    """Raise ValueError if a layer returns no tensor, a stage what cannot cross, or the loss function not one number."""
    first: dict[str, Any] = {"inputs": batch.inputs[0], "targets": batch.ends[0].target, "extras": batch.extras[0]}
    try:
        layers = [layer for stage in cut.stages for layer in stage.values()]
        if sum(t.numel() * t.itemsize for layer in layers for t in layer.state_dict().values()) > LARGE:
            return
        asked = order("look", cut.stages, *first.values(), loss_fn)
    except Exception:
        check_travels(first)
        return
    with in_use:
        pool = pool_of(1)
        try:
            (complaint,) = pool.call([asked], timeout=PATIENCE)
        except RankError:
            return
        finally:
            pool.say()  # what layers print belongs to the run
            done_with(pool)
    if complaint:
        raise ValueError(complaint)
