"""Where ranks compute and what joins them, for any number of GPUs that a machine might have."""

import os
import re
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest
import torch

import ppcourse as pp
from ppcourse.runtime.links.carriers import choose
from ppcourse.runtime.machine import gpus
from ppcourse.runtime.processes import joining, worker
from ppcourse.runtime.processes.job import Job
from ppcourse.runtime.result import Result

Machine = Callable[..., None]
SOME = torch.zeros(4, 2)


@pytest.fixture
def machine(monkeypatch) -> Machine:
    """Pretend that there are so many GPUs, that torch can use them, and which NCCL it has."""

    def pretend(count: int, *, cuda: bool = True, nccl: tuple[int, ...] = (2, 28, 9), **environment: str) -> None:
        monkeypatch.setattr(gpus, "installed", lambda: tuple((f"GPU-{n}f", f"H{n}") for n in range(count)))
        monkeypatch.setattr(gpus, "built_for_cuda", lambda: cuda)
        monkeypatch.setattr(gpus, "nccl_version", lambda: nccl)
        for name in (gpus.VISIBLE, gpus.SHARING):
            monkeypatch.delenv(name, raising=False)
        for name, value in environment.items():
            monkeypatch.setenv(name, value)

    return pretend


def run(**options) -> Result:
    layers = [torch.nn.Linear(2, 2) for _ in range(4)]
    return pp.run("gpipe", layers, SOME, SOME, loss_fn=torch.nn.functional.mse_loss, p=4, m=4, **options)


def test_case_R86_more_ranks_than_gpus_is_told_before_a_process_starts(machine, monkeypatch) -> None:  # noqa: N802
    machine(1)
    monkeypatch.setattr("ppcourse.runtime.processes.session.pool_of", lambda _: pytest.fail("a rank was started"))
    monkeypatch.setattr("ppcourse.runtime.processes.probe.pool_of", lambda _: pytest.fail("a rank was started"))
    with pytest.raises(ValueError, match="p=4 needs 4 GPUs for NCCL, found 1") as told:
        run(link="nccl")
    for way in ("link='staged'", "device='cpu'", "p=1"):
        assert way in str(told.value)
    assert gpus.SHARING not in str(told.value)


@pytest.mark.parametrize("way", [{"link": "staged"}, {"device": "cpu", "link": "auto"}, {"p": 1}])
def test_case_R86_each_way_out_is_one(machine, way: dict) -> None:  # noqa: N802
    machine(1)
    asked = {"device": "auto", "link": "nccl", "p": 4} | way
    assert choose(asked["device"], asked["link"], asked["p"]).devices


def test_nccl_on_a_machine_without_gpus_offers_only_what_works(machine) -> None:
    machine(0)
    with pytest.raises(ValueError, match="p=4 needs 4 GPUs for NCCL, found 0") as told:
        run(link="nccl")
    assert "staged" not in str(told.value)
    assert "device='cpu' with link='auto'" in str(told.value)


@pytest.mark.parametrize(
    ("count", "p", "devices", "link"),
    [
        (0, 4, ("cpu",) * 4, "shared"),
        (1, 1, ("cuda:0",), "none"),
        (1, 3, ("cuda:0",) * 3, "staged"),
        (2, 4, ("cuda:0", "cuda:1", "cuda:0", "cuda:1"), "staged"),
        (4, 4, ("cuda:0", "cuda:1", "cuda:2", "cuda:3"), "nccl"),
        (8, 2, ("cuda:0", "cuda:1"), "nccl"),
    ],
)
def test_left_alone_it_takes_the_gpus_and_nccl_where_each_rank_has_one(
    machine, count: int, p: int, devices: tuple[str, ...], link: str
) -> None:
    machine(count)
    choice = choose("auto", "auto", p)
    assert choice.devices == devices
    assert choice.device == devices[0][:4].rstrip(":")
    assert choice.link.startswith(f"{link}: ")
    assert choose("auto", link if link != "none" else "auto", p).devices == devices


def test_the_reason_says_why_it_is_the_cpu(machine) -> None:
    machine(0)
    assert choose("auto", "auto", 2).link.endswith("on the CPU, because no GPU was found")
    machine(2, cuda=False)
    assert choose("auto", "auto", 2).link.endswith("on the CPU, because this torch was built without CUDA")
    machine(2, CUDA_VISIBLE_DEVICES="")
    assert choose("auto", "auto", 2).link.endswith("on the CPU, because CUDA_VISIBLE_DEVICES hides every GPU")


@pytest.mark.parametrize(
    ("options", "part"),
    [
        ({"device": "cuda"}, "device is 'cuda', but no GPU was found; say device='cpu'"),
        ({"link": "staged"}, "link is 'staged', but no GPU was found"),
        ({"device": "cuda", "link": "gloo"}, "joins CPUs"),
        ({"device": "cpu", "link": "nccl"}, "joins GPUs"),
        ({"device": "cuda:1"}, "each rank finds its own GPU"),
        ({"link": "carrier pigeon"}, "say 'nccl' or 'staged' on GPUs"),
    ],
)
def test_what_cannot_be_had_is_a_sentence(machine, options: dict, part: str) -> None:
    machine(0)
    with pytest.raises(ValueError, match=re.escape(part)):
        run(**options)


@pytest.mark.parametrize(
    ("nccl", "switch", "works"), [((2, 28, 9), "1", False), ((2, 30, 0), "0", False), ((2, 30, 0), "1", True)]
)
def test_nccl_shares_a_gpu_only_where_it_can_and_was_told_to(machine, nccl: tuple, switch: str, works: bool) -> None:
    machine(1, nccl=nccl, NCCL_MULTI_RANK_GPU_ENABLE=switch)
    assert choose("auto", "auto", 2).link.startswith("staged: ")  # never unasked
    if works:
        assert choose("auto", "nccl", 2).link.startswith(f"nccl: it was asked for, and {gpus.SHARING}=1")
        return
    with pytest.raises(ValueError, match="needs 2 GPUs") as told:
        choose("auto", "nccl", 2)
    assert (gpus.SHARING in str(told.value)) == (nccl >= (2, 30))


@pytest.mark.parametrize(
    ("mask", "seen"),
    [
        ("2,0", ("H2", "H0")),
        ("", ()),
        ("-1", ()),
        ("1,9,0", ("H1",)),
        ("GPU-3f, 0", ("H3", "H0")),
        ("MIG-5,MIG-6", ("part of a GPU (MIG-5)", "part of a GPU (MIG-6)")),
    ],
)
def test_the_visible_gpus_are_those_cuda_would_see(machine, mask: str, seen: tuple[str, ...]) -> None:
    machine(4, CUDA_VISIBLE_DEVICES=mask)
    assert gpus.visible() == seen
    assert gpus.usable() == len(seen)


@pytest.mark.parametrize("error", [FileNotFoundError(), subprocess.TimeoutExpired("nvidia-smi", 20)])
def test_no_answer_about_gpus_is_no_gpu_and_is_asked_for_once(monkeypatch, error: Exception) -> None:
    asked = []

    def fails(*args, **options):
        asked.append(args)
        raise error

    monkeypatch.setattr(subprocess, "run", fails)
    gpus.installed.cache_clear()
    try:
        assert gpus.visible() == gpus.visible() == ()
        assert len(asked) == 1
    finally:
        gpus.installed.cache_clear()


def test_the_drivers_answer_is_read(monkeypatch) -> None:
    answer = subprocess.CompletedProcess([], 0, stdout="GPU-1, NVIDIA H200\nGPU-2, NVIDIA H100, 80GB\n", stderr="")
    monkeypatch.setattr(subprocess, "run", lambda *args, **options: answer)
    gpus.installed.cache_clear()
    try:
        assert gpus.installed() == (("GPU-1", "NVIDIA H200"), ("GPU-2", "NVIDIA H100, 80GB"))
    finally:
        gpus.installed.cache_clear()


def test_ranks_are_told_the_environment_of_now(monkeypatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1")
    monkeypatch.delenv("CUDA_DEVICE_MAX_CONNECTIONS", raising=False)
    told = gpus.environment()
    monkeypatch.setattr(os, "environ", os.environ.copy())  # as the server that ranks are forked from keeps it
    assert (told["CUDA_VISIBLE_DEVICES"], told["CUDA_DEVICE_MAX_CONNECTIONS"]) == ("1", "32")
    os.environ |= {"NCCL_OF_WHEN_THE_SERVER_STARTED": "1", "CUDA_DEVICE_MAX_CONNECTIONS": "8"}
    gpus.adopt(told)
    assert "NCCL_OF_WHEN_THE_SERVER_STARTED" not in os.environ
    assert os.environ["CUDA_DEVICE_MAX_CONNECTIONS"] == "32"


@pytest.mark.parametrize(
    ("link", "own", "loads"),
    [("nccl: a GPU each", None, "EAGER"), ("nccl", "LAZY", "LAZY"), ("staged: one GPU", None, None)],
)
def test_kernels_are_loaded_before_a_transfer_can_be_waited_for(
    monkeypatch: pytest.MonkeyPatch, link: str, own: str | None, loads: str | None
) -> None:
    monkeypatch.setattr(os, "environ", os.environ.copy())
    os.environ.pop("CUDA_MODULE_LOADING", None)
    os.environ |= {} if own is None else {"CUDA_MODULE_LOADING": own}
    told: list[str | None] = []
    monkeypatch.setattr(worker, "enter", lambda device: told.append(os.environ.get("CUDA_MODULE_LOADING")))
    monkeypatch.setattr(worker, "move", lambda module, device: None)
    monkeypatch.setattr(worker, "generators", lambda device: ())
    monkeypatch.setattr(worker.Worker, "follow", lambda self, plan: None)
    job: Any = Job(pp.build("gpipe", 1, 2), {0: {0: torch.nn.Linear(2, 2)}}, None, link=link, device="cuda:0")
    rank: Any = worker.Worker(0, None, {})  # type: ignore[arg-type]
    rank.open(job)
    assert told == [loads]


def test_under_torchrun_a_rank_tells_itself_what_others_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "environ", os.environ | {"MASTER_ADDR": "127.0.0.1", "NCCL_DEBUG": "WARN"})
    os.environ.pop("CUDA_DEVICE_MAX_CONNECTIONS", None)
    store = torch.distributed.HashStore()  # of one rank alone
    monkeypatch.setattr(joining, "rendezvous", lambda *_, **__: iter([(store, 0, 1)]))
    monkeypatch.setattr(joining.dist, "init_process_group", lambda *_, **__: None)
    joining.join()
    assert (os.environ["CUDA_DEVICE_MAX_CONNECTIONS"], os.environ["NCCL_DEBUG"]) == ("32", "WARN")


RUN_AND_LOOK = """
import torch
started = []
torch.cuda._lazy_init = lambda: started.append("CUDA")
import ppcourse as pp
layers, x = [torch.nn.Linear(2, 2) for _ in range(2)], torch.zeros(4, 2)
result = pp.run("gpipe", layers, x, x, loss_fn=torch.nn.functional.mse_loss, p=2, m=2)
pp.doctor()
assert result.device == "cpu", result.device
assert not torch.cuda.is_initialized()
assert not started, started
"""


@pytest.mark.thorough
def test_the_notebooks_process_never_starts_cuda() -> None:
    mask = {"CUDA_VISIBLE_DEVICES": ""}
    done = subprocess.run([sys.executable, "-c", RUN_AND_LOOK], capture_output=True, text=True, env=os.environ | mask)
    assert done.returncode == 0, done.stderr
