"""How long ranks take to start, and how far a paced run is from the simulator:  python bench/ranks.py

Everything is measured in one run on this machine; read the ratios, and the load, before the seconds.
"""

import os
import statistics
import subprocess
import sys
import time

import psutil
import torch
from torch import nn

import ppcourse as pp
from ppcourse.runtime.models import mlp
from ppcourse.runtime.processes import ranks

FIRST_RUN = """
import time
began = time.perf_counter()
import ppcourse as pp
from ppcourse.runtime.processes.server import warm_up
warm_up()  # as a notebook does at its import
import torch
layers = [torch.nn.Linear(8, 8) for _ in range(4)]
x = torch.randn(8, 8)
imported = time.perf_counter()
pp.run("1f1b", layers, x, x, loss_fn=torch.nn.functional.mse_loss, p=4, m=8)
print(time.perf_counter() - imported, time.perf_counter() - began)
"""
PACE = pp.Costs(forward=0.010, input_grad=0.010, weight_grad=0.010)  # seconds: F 10 ms, B 20 ms


def main() -> None:
    print(
        f"{os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}, {psutil.cpu_percent(0.5):.0f}% busy before the start"
    )
    runs = [first_run() for _ in range(5)]
    show("first run() in a fresh process", [run for run, _ in runs])
    show("the same, with the imports before it", [whole for _, whole in runs])
    ranks.pool_of(4)  # the server has imported torch from here on
    show("4 ranks up, the first time over", [four_ranks() for _ in range(5)])
    for p, m in ((4, 8), (8, 32)):
        for name in ("gpipe", "1f1b"):
            excess(name, p, m)


def first_run() -> tuple[float, float]:
    """Seconds of the run, and of all from the first import on."""
    done = subprocess.run([sys.executable, "-c", FIRST_RUN], capture_output=True, text=True, check=True)
    run, whole = map(float, done.stdout.split())
    return run, whole


def four_ranks() -> float:
    ranks.close_all()
    began = time.perf_counter()
    ranks.pool_of(4)
    return time.perf_counter() - began


def excess(name: str, p: int, m: int) -> None:
    """What a paced run takes beyond the simulated makespan."""
    plan, model = pp.build(name, p, m), mlp(layers=p, width=64)
    x = torch.randn(2 * m, 64)
    ideal = pp.simulate(plan, PACE).makespan
    runs = [pp.run(plan, model, x, x, loss_fn=nn.functional.mse_loss, pace=PACE).timeline.makespan for _ in range(5)]
    ratios = [run / ideal for run in runs]
    print(
        f"{name:6} p={p} m={m:2}: simulated {ideal * 1e3:.0f} ms; paced ÷ simulated: best of five {min(ratios):.3f},"
        f" median {statistics.median(ratios):.3f}"
    )


def show(what: str, seconds: list[float]) -> None:
    print(f"{what}: best {min(seconds):.2f} s, median {statistics.median(seconds):.2f} s of {len(seconds)}")


if __name__ == "__main__":
    main()
