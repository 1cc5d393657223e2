"""Does it train? The demo's GPT: the loss falls, and is what it is on the CPU."""

import functools

import torch

from ppcourse.lab.gpu_check import tasks
from ppcourse.lab.gpu_check.allowance import Allowance
from ppcourse.lab.gpu_check.finding import Finding, judged
from ppcourse.lab.gpu_check.setting import Setting
from ppcourse.runtime.data import batches, text_loss
from ppcourse.runtime.models import gpt
from ppcourse.runtime.train import train
from ppcourse.schedules import build

STEPS, CONTEXT, RATE = 10, 64, 2e-3
FALLS = 0.5  # nats a token, of the 5.5 that know nothing
NEAR = 1e-6  # of the loss: float64, and Adam carries on from step to step what rounding made of the last


def training(setting: Setting, allowance: Allowance) -> Finding:
    """1F1B with four ranks on the device, and one rank on the CPU, which needs no link."""
    model = gpt(context=CONTEXT).double()
    data = list(batches(tasks.M, CONTEXT, STEPS))
    adam = functools.partial(torch.optim.AdamW, lr=RATE)
    there = setting.train(build("1f1b", tasks.P, tasks.M), (model, text_loss), data, optimizer=adam, steps=STEPS)
    options = {"loss_fn": text_loss, "optimizer": adam, "steps": STEPS, "progress": False, "device": "cpu"}
    here = train("gpipe", model, data, p=1, m=1, **options)  # type: ignore[arg-type]
    off = max(abs(a - b) / abs(b) for a, b in zip(there.losses, here.losses, strict=True))
    first, last = there.losses[0], there.losses[-1]
    wrong = []
    if not last < first - FALLS:
        wrong.append(f"The loss went from {first:.3f} to {last:.3f} in {STEPS} steps, less than {FALLS} down.")
    if not off <= NEAR:
        wrong.append(f"The losses differ by {off:.1g} of their size from those of the CPU.")
    table = [("step", "1f1b, p = 4", "one rank on the CPU")]
    table += [(str(n), f"{a:.9f}", f"{b:.9f}") for n, (a, b) in enumerate(zip(there.losses, here.losses, strict=True))]
    right = f"The loss falls from {first:.3f} to {last:.3f}, and every step's is the CPU's to {off:.1g} of it."
    return judged(wrong, right, table=table)
