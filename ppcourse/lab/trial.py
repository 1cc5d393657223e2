"""A learner's plan on real ranks: a small model, one paced step, and the gradients of one process beside it."""

from dataclasses import dataclass

from ppcourse.analysis.simulate import simulate
from ppcourse.analysis.timeline import Timeline
from ppcourse.runtime.result import Result
from ppcourse.schedules.action import Op
from ppcourse.schedules.costs import Costs
from ppcourse.schedules.schedule import Schedule

SLOT = 0.020  # seconds that a cost of 1 takes
LONGEST = 4.0  # seconds that a whole step may take; slots get shorter for it
WIDTH, ROWS = 16, 2  # of a layer, of a microbatch
TIMEOUT = 20.0  # seconds in which no rank gets on


@dataclass(frozen=True)
class Trial:
    """What the simulator said, in seconds, what ranks did, and the largest difference of a gradient's entry."""

    predicted: Timeline
    result: Result
    off: float

    def __str__(self) -> str:
        took, said = self.result.timeline.makespan, self.predicted.makespan
        same = "those of one process" if self.off < 1e-9 else f"off by {self.off:.1g} from those of one process"
        return (
            f"{self.predicted.num_ranks} real ranks took {took * 1e3:.0f} ms (paced), predicted {said * 1e3:.0f};"
            f" the gradients are {same}."
        )


def trial(plan: Schedule, costs: Costs) -> Trial:
    """One step of `plan` on real ranks, each action as long as `costs` (of a stage) say, in slots.

    Raises ValueError for a plan that cannot run, and RankError if a rank fails or stands still.
    """
    import torch  # seconds, which a grid that is only looked at need not wait for

    from ppcourse.runtime.launch import run
    from ppcourse.runtime.models import mlp
    from ppcourse.runtime.reference import reference_step

    slot = min(SLOT, LONGEST / max(simulate(plan, costs).makespan, 1e-9))
    pace = _in_slots(costs, plan, slot)
    model = mlp(plan.num_stages, WIDTH).double()
    drawn = torch.Generator().manual_seed(0)
    x, y = torch.randn(2, ROWS * plan.num_microbatches, WIDTH, generator=drawn, dtype=torch.float64)
    loss_fn = torch.nn.functional.mse_loss
    result = run(plan, model, x, y, loss_fn=loss_fn, pace=pace, timeout=TIMEOUT)
    right = reference_step(model, x, y, loss_fn=loss_fn, m=plan.num_microbatches).grads
    off = max(float((result.grads[name] - right[name]).abs().max()) for name in right)  # type: ignore[operator]
    return Trial(simulate(plan, pace), result, off)


def _in_slots(costs: Costs, plan: Schedule, slot: float) -> Costs:
    """The costs in seconds."""
    lasts = costs.durations(plan.num_stages)
    forward, input_grad, weight_grad = ([slot * cost for cost in lasts[op]] for op in (Op.F, Op.I, Op.W))
    return Costs(forward, input_grad, weight_grad, comm=slot * costs.comm)
