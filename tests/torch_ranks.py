"""Plans on the runtime of torch.distributed.pipelining, in ranks of their own:  python torch_ranks.py FOLDER

FOLDER/cases.json has the name of each case, its number of microbatches and the rank of each stage; FOLDER/NAME.csv is
the plan. Each rank leaves the gradients of its stages behind, as FOLDER/NAME.RANK.pt. torch is imported once, and ranks
are forked from here: all cases with as many ranks run in the same processes.
"""

import datetime
import json
import multiprocessing
import sys
from pathlib import Path

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributed.pipelining import PipelineStage
from torch.distributed.pipelining.schedules import _PipelineScheduleRuntime

Case = tuple[int, list[int]]  # microbatches, and the rank of each stage
Gradients = dict[str, Tensor | None]


def stage_of(number: int) -> nn.Sequential:
    """A stage that is like no other, in float64."""
    torch.manual_seed(number)
    return nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 4), nn.LayerNorm(4)).double()


def batch_of(m: int) -> tuple[Tensor, Tensor]:
    torch.manual_seed(100)
    inputs, targets = torch.randn(2, 2 * m, 4, dtype=torch.float64)
    return inputs, targets


def expected(m: int, num_stages: int) -> list[Gradients]:
    """Of each stage, after one backward through the unsplit model."""
    modules = [stage_of(number) for number in range(num_stages)]
    inputs, targets = batch_of(m)
    F.mse_loss(nn.Sequential(*modules)(inputs), targets).backward()
    return [gradients_of(module) for module in modules]


def gradients_of(module: nn.Module) -> Gradients:
    return {name: parameter.grad for name, parameter in module.named_parameters()}


def step(csv: Path, case: Case, rank: int) -> dict[int, Gradients]:
    """The gradients of each stage on this rank, after one step of torch's runtime."""
    m, homes = case
    modules = {number: stage_of(number) for number, home in enumerate(homes) if home == rank}
    stages = [PipelineStage(module, number, len(homes), torch.device("cpu")) for number, module in modules.items()]
    runtime = _PipelineScheduleRuntime(stages, m, loss_fn=F.mse_loss)
    runtime._load_csv(str(csv))
    inputs, targets = batch_of(m)
    runtime.step(*([inputs] if 0 in modules else []), target=targets if len(homes) - 1 in modules else None)
    return {number: gradients_of(module) for number, module in modules.items()}


def run_rank(rank: int, p: int, folder: Path, cases: dict[str, Case]) -> None:
    torch.set_num_threads(1)
    limit = datetime.timedelta(seconds=30)
    dist.init_process_group("gloo", init_method=f"file://{folder}/store{p}", rank=rank, world_size=p, timeout=limit)
    for name, case in cases.items():
        torch.save(step(folder / f"{name}.csv", case, rank), folder / f"{name}.{rank}.pt")
    dist.destroy_process_group()


def main(folder: Path) -> None:
    cases: dict[str, Case] = json.loads((folder / "cases.json").read_text())
    fork = multiprocessing.get_context("fork")
    for p in sorted({1 + max(homes) for _, homes in cases.values()}):
        mine = {name: case for name, case in cases.items() if 1 + max(case[1]) == p}
        ranks = [fork.Process(target=run_rank, args=(rank, p, folder, mine), daemon=True) for rank in range(p)]
        for process in ranks:
            process.start()
        for process in ranks:
            process.join()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
