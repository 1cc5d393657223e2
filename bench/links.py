"""What a message takes from rank to rank, and what that costs a paced run, over each link:  python bench/links.py

Two ranks throw a message to and fro, and do nothing else. A hop is half of a round: pack, send, wake up, unpack.

    cold   the first round of a job, which touches all memory for the first time
    warm   the rounds after it

The links take turns. Everything is measured in one run on this machine; read the ratios, and the load, before times.
"""

import multiprocessing
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import psutil
import torch
import torch.distributed as dist
from torch import nn

import ppcourse as pp
from ppcourse.runtime.links.link import GlooLink
from ppcourse.runtime.links.meeting import listen, meet
from ppcourse.runtime.links.shared import Peer, SharedLink
from ppcourse.runtime.machine import system
from ppcourse.runtime.models import mlp
from ppcourse.schedules.channels import incoming

SIZES = {"8 B": (8, 200), "64 KB": (2**16, 100), "1 MB": (2**20, 50), "100 MB": (100 * 2**20, 4)}  # bytes, rounds
LINKS = ("gloo", "shared")
TURNS = 5
PACED = (("gpipe", 4, 8, 1), ("1f1b", 4, 8, 1), ("interleaved", 4, 8, 2), ("gpipe", 8, 32, 1), ("1f1b", 8, 32, 1))


def main() -> None:
    busy = psutil.cpu_percent(0.5)
    print(f"{os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}, {busy:.0f}% busy before the start\n")
    with_two_ranks(hops)
    print()
    repeats = int(sys.argv[1]) if len(sys.argv) > 1 else 7
    for name, p, m, v in PACED:
        excess(pp.build(name, p, m, v), repeats)


def hops(ask: Callable[[str, int, int], list[float]]) -> None:
    print(f"{'a hop, ms':10} {'link':7} {'cold: best':>10} {'median':>9} {'warm: best':>12} {'median':>9}")
    for words, (size, rounds) in SIZES.items():
        times: dict[str, list[list[float]]] = {link: [] for link in LINKS}
        for _ in range(TURNS):
            for link in LINKS:
                times[link].append(ask(link, size, rounds))
        for link, jobs in times.items():
            cold, warm = [job[0] for job in jobs], [hop for job in jobs for hop in job[1:]]
            print(
                f"{words:10} {link:7} {min(cold) * 1e3:10.3f} {statistics.median(cold) * 1e3:9.3f}"
                f" {min(warm) * 1e3:12.3f} {statistics.median(warm) * 1e3:9.3f}"
            )


def with_two_ranks(work: Callable[[Callable[[str, int, int], list[float]]], None]) -> None:
    """`work` gets a function (link, bytes, rounds) → seconds of a hop in each round."""
    context = multiprocessing.get_context("fork")
    with tempfile.TemporaryDirectory() as folder:
        pipes, ranks = [], []
        for rank in range(2):
            here, there = context.Pipe()
            ranks.append(context.Process(target=answer, args=(rank, Path(folder), there), daemon=True))
            ranks[-1].start()
            pipes.append(here)

        def ask(*question: Any) -> list[float]:
            for pipe in pipes:
                pipe.send(question)
            answers: list[list[float]] = [pipe.recv() for pipe in pipes]
            return answers[0]

        work(ask)
        for pipe in pipes:
            pipe.send(None)
        for process in ranks:
            process.join()


def answer(rank: int, folder: Path, pipe: Connection) -> None:
    """The life of a rank."""
    torch.set_num_threads(1)
    os.environ.update(system.gloo_environment())
    door = listen(rank, 2, folder)
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=2)
    dist.barrier()
    peers = {other: Peer(other, end) for other, end in meet(rank, 2, folder, door).items()}
    while question := pipe.recv():
        link, size, rounds = question
        plan = pp.build("naive", 2, rounds)
        carrier = GlooLink(plan, rank) if link == "gloo" else SharedLink(plan, rank, peers)
        dist.barrier()
        pipe.send(rally(carrier, plan, rank, size, rounds))
        carrier.close()
    os._exit(0)


def rally(carrier: GlooLink | SharedLink, plan: pp.Schedule, rank: int, size: int, rounds: int) -> list[float]:
    value, hops = torch.ones(size, dtype=torch.uint8), []
    carrier.begin()
    dist.barrier()
    for i in range(rounds):
        there, back = incoming(plan, pp.Action.parse(f"1F{i}")), incoming(plan, pp.Action.parse(f"0B{i}"))
        assert there  # and back: two stages on two ranks wait for each other's messages
        assert back
        began = time.perf_counter()
        if rank == 0:
            carrier.send(carrier.pack(there, value))
            carrier.receive(back)
        else:
            carrier.receive(there)
            carrier.send(carrier.pack(back, value))
        hops.append((time.perf_counter() - began) / 2)
    carrier.finish()
    return hops


def excess(plan: pp.Schedule, repeats: int) -> None:
    """What paced runs take beyond the simulated makespan; a stage lasts 10 ms forward and 20 ms back, or its half."""
    each = 0.010 / plan.stages_per_rank
    pace = pp.Costs(forward=each, input_grad=each, weight_grad=each)
    model, x = mlp(layers=plan.num_stages, width=64), torch.randn(2 * plan.num_microbatches, 64)
    ideal = pp.simulate(plan, pace).makespan
    over: dict[str, list[float]] = {link: [] for link in LINKS}
    for _ in range(repeats):
        for link in LINKS:
            run = pp.run(plan, model, x, x, loss_fn=nn.functional.mse_loss, pace=pace, link=link)
            over[link].append((run.timeline.makespan - ideal) * 1e3)
    told = "; ".join(f"{link} best {min(ms):.1f}, median {statistics.median(ms):.1f}" for link, ms in over.items())
    shape = f"{plan.name} p={plan.num_ranks} m={plan.num_microbatches}"
    print(f"{shape:22} simulated {ideal * 1e3:5.0f} ms; a paced run takes more by: {told} ms of {repeats}", flush=True)


if __name__ == "__main__":
    main()
