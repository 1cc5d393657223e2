"""Every schedule over the staged link: gradients against one process without a pipeline, and messages counted."""

import functools
from typing import NamedTuple

from torch import Tensor

from ppcourse.lab.gpu_check import tasks
from ppcourse.lab.gpu_check.allowance import Allowance
from ppcourse.lab.gpu_check.finding import Finding, judged
from ppcourse.lab.gpu_check.setting import Setting
from ppcourse.runtime.reference import reference_step
from ppcourse.runtime.result import Result
from ppcourse.schedules import build
from ppcourse.schedules.channels import channels

NEAR = 1e-9  # of a weight's largest gradient: float64, added up in another order, differs by some 1e-15 of it
NOISE = 1e-12  # of the model's largest gradient: what is zero by mathematics is not zero in arithmetic
HEAD = ("schedule", "p", "m", "link", "channels", "messages", "largest difference")


class Line(NamedTuple):
    """What came of one schedule: its line of the table, and what was wrong with it, "" for nothing."""

    cells: tuple[str, ...]
    wrong: str


def gradients(setting: Setting, allowance: Allowance) -> Finding:
    """A GPT in float64, on the device with every schedule, and on the CPU without one."""
    said = same_masks(setting)  # first, because ranks start with it, and how long that takes says nothing of others
    lines = [compared(setting, name, tasks.P, tasks.M, "staged") for name in allowance.each(setting.schedules)]
    wrong = [*filter(None, [said, *(line.wrong for line in lines)])]
    right = (
        f"{len(lines)} schedules: loss and every weight's gradient are those of one process on the CPU, to {NEAR:g} of"
        " the weight's largest, and no message is missing. With dropout, two schedules draw the same masks."
    )
    return judged(wrong, right, table=[HEAD, *(line.cells for line in lines)], cut=allowance.cut)


def compared(setting: Setting, name: str, p: int, m: int, link: str) -> Line:
    """One step of a schedule beside one process on the CPU."""
    plan = build(name, p, m)
    task, right = alone(m, plan.num_stages)
    result = setting.run(plan, task, link)
    off, where = apart(result, right)
    traffic = channels(plan)
    due = sum(len(each.sent) for each in traffic.values())
    wrong = []
    if not off <= NEAR:
        wrong.append(f"{name}: {where} differs by {off:.1g} of its size from that of one process.")
    if result.messages != due:
        wrong.append(f"{name}: {result.messages} messages were sent, and the plan has {due}.")
    if not setting.dry and result.link.partition(":")[0] != link:
        wrong.append(f"{name}: the link was {result.link!r}, not {link}.")
    if result.device.partition(":")[0] != setting.device:
        wrong.append(f"{name}: the ranks ran on {result.device!r}, not on {setting.device}.")
    used = result.link.partition(":")[0]
    cells = (name, str(p), str(m), used, str(len(traffic)), f"{result.messages} of {due}", f"{off:.1g}")
    return Line(cells, " ".join(wrong))


@functools.cache
def alone(m: int, blocks: int) -> tuple[tasks.Task, Result]:
    """A GPT, and its step in this process on the CPU, without a pipeline."""
    task = tasks.small_gpt(m, blocks)
    return task, reference_step(task.model, task.inputs, task.targets, loss_fn=task.loss_fn, m=m)


def apart(result: Result, right: Result) -> tuple[float, str]:
    """The largest relative difference of a gradient, or of the loss, and where it is."""
    largest = max((float(grad.abs().max()) for grad in right.grads.values() if grad is not None), default=0.0)
    worst = (abs(result.loss - right.loss) / abs(right.loss), "the loss")
    for name, due in right.grads.items():
        worst = max(worst, (_apart(result.grads.get(name), due, NOISE / NEAR * largest), f"the gradient of {name}"))
    return worst


def _apart(got: Tensor | None, due: Tensor | None, floor: float) -> float:
    """The largest entry of the difference, in shares of the largest of `due`, or of `floor` if that is more."""
    if got is None or due is None:
        return 0.0 if got is due else float("inf")
    if got.shape != due.shape or got.device != due.device or not bool(got.isfinite().all()):
        return float("inf")
    return float((got - due).abs().max()) / max(float(due.abs().max()), floor)


def same_masks(setting: Setting) -> str:
    """Dropout draws by layer and microbatch, whatever the schedule and the number of ranks; what is wrong, or ""."""
    task = tasks.small_mlp(dropout=0.5)
    one, other = (setting.run(build(name, p, 4), task, "staged") for name, p in (("gpipe", 2), ("zb-h1", 4)))
    plain = setting.run(build("gpipe", 2, 4), tasks.small_mlp(), "staged")
    if abs(plain.loss - one.loss) < NEAR * plain.loss:
        return "Dropout changes nothing."
    off, where = apart(one, other)
    return "" if off <= NEAR else f"With dropout {where} differs by {off:.1g} between gpipe, p = 2, and zb-h1, p = 4."
