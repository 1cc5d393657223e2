"""Interleaving against 1F1B between two hosts, over a fast wire and over a slow one:  python bench/two_hosts.py

Each host has one rank, started by torchrun, and is a network namespace (hosts.py says what that needs). The ranks are
paced: F, I and W of a rank's layers last 20 ms each, so that with m = 4 a step of 1F1B has 300 ms of work and bubble,
and of interleaving with two stages a rank 270. A message has 262 kB, which takes 21 ms at 100 Mbit/s, and interleaving
sends three times as many of them.

The quickest step of all is compared, in turns: a busy machine only adds. Exits with 1 unless interleaving is quicker
over the fast wire and slower over the slow one, with 2 where no hosts can be made.
"""

import argparse
import os
import sys
import tempfile
from pathlib import Path

import psutil
from hosts import NoHostsError, best, held_to, on_two_hosts, wired

import ppcourse as pp

WORK = ("-m", "4", "--steps", "3", "--layers", "2", "--width", "128", "--context", "256", "--pace", "20")
PLANS = {"1f1b": ("--schedule", "1f1b", *WORK), "interleaved": ("--schedule", "interleaved", "-v", "2", *WORK)}
WIRES = {"10 Gbit/s": "10gbit", "100 Mbit/s": "100mbit"}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--turns", type=int, default=2)
    turns = parser.parse_args().turns
    print(
        f"{os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}, {psutil.cpu_percent(0.5):.0f}% busy before the start"
    )
    try:
        with wired(), tempfile.TemporaryDirectory() as folder:
            return compared(Path(folder) / "steps.json", turns)
    except NoHostsError as error:
        print(f"There are no two hosts here: {error}.")
        return 2


def compared(path: Path, turns: int) -> int:
    """Print a row a wire; 0 if interleaving wins over the first and loses over the last."""
    print(f"{'wire':10} {'1f1b':>8} {'interleaved':>12} {'ratio':>6} {'bytes':>6}")
    free = [predicted("1f1b", 1), predicted("interleaved", 2)]
    print(f"{'simulated':10} {free[0] * 1e3:5.0f} ms {free[1] * 1e3:9.0f} ms {free[1] / free[0]:6.2f}")
    ratios = []
    for name, rate in WIRES.items():
        held_to(rate)
        took, sent = {plan: float("inf") for plan in PLANS}, dict.fromkeys(PLANS, 0)
        for _ in range(turns):
            for plan, options in PLANS.items():
                logs = on_two_hosts(path, *options)
                took[plan], sent[plan] = min(took[plan], best(logs)), logs[0]["message_bytes"]
        one, other = took.values()
        ratios.append(other / one)
        more = sent["interleaved"] / sent["1f1b"]
        print(f"{name:10} {one * 1e3:5.0f} ms {other * 1e3:9.0f} ms {ratios[-1]:6.2f} {more:6.2f}", flush=True)
    return 0 if ratios[0] < 1 < ratios[-1] else 1


def predicted(name: str, stages_per_rank: int) -> float:
    """Seconds of a step whose messages take no time."""
    each = 0.020 / stages_per_rank
    return pp.simulate(pp.build(name, 2, 4, stages_per_rank), pp.Costs(each, each, each)).makespan


if __name__ == "__main__":
    sys.exit(main())
