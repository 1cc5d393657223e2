"""A plan for evaluation."""

from ppcourse.schedules.action import Op
from ppcourse.schedules.schedule import Schedule
from ppcourse.schedules.validate import demand_schedule


def forward_only(plan: Schedule) -> Schedule:
    """The same order without backward, for evaluation. Raises ValueError for what is no Schedule."""
    demand_schedule(plan)
    rows = tuple(tuple(action for action in row if action.op == Op.F) for row in plan.rows)
    return Schedule(f"{plan.name} (forward only)", plan.placement, plan.num_microbatches, rows)
