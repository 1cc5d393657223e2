"""What doctor() says of a machine, and of one that has something wrong with it."""

import sys
import tempfile
from dataclasses import replace

import pytest

from ppcourse.lab import doctor as module
from ppcourse.lab.doctor import Report, doctor
from ppcourse.runtime.links import carriers
from ppcourse.runtime.machine import gpus
from ppcourse.runtime.prepare import check_options
from ppcourse.runtime.processes.server import start_method
from ppcourse.schedules import build

GIB = 2**30


@pytest.fixture(scope="module")
def report() -> Report:
    """This machine, as if it had two cores, plenty of room, and no GPU."""
    found = doctor()
    plenty = {"memory_free": 8 * GIB, "memory_total": 16 * GIB, "temp_free": 50 * GIB, "shm_free": GIB}
    return replace(found, torch="2.13.0+cpu", cores=2, gpus=(), **plenty)


def pretend(monkeypatch, **answers: str) -> None:
    """Make the container say these things of itself."""
    names = {name.replace("_", "."): text for name, text in answers.items()}
    monkeypatch.setattr(module, "_cgroup", lambda name: names.get(name, ""))


def test_it_tells_what_is_there(report) -> None:
    text = str(report)
    for part in (report.python, "2.13.0+cpu", "cores    2", "8.0 GB free of 16.0 GB", "GPUs     none"):
        assert part in text
    assert repr(report) == text


def test_a_healthy_machine_has_no_warnings(report) -> None:
    assert report.warnings == ()
    assert "!" not in str(report)


@pytest.mark.parametrize("p", [1, 2, 4, 8])
def test_the_link_is_the_one_that_a_run_takes(report, p: int) -> None:
    taken = check_options(build("gpipe", p, p), "auto", "auto", None, 0, 60.0)
    assert report.links[p] == taken


def test_where_memory_cannot_be_shared_it_says_gloo_and_why(monkeypatch) -> None:
    monkeypatch.setattr(gpus, "installed", tuple)
    monkeypatch.setattr(carriers, "missing", lambda: "this system has none")
    assert doctor((2,)).links[2] == "gloo: this system has none; on the CPU, because no GPU was found"


def test_ranks_start_as_the_runtime_starts_them(report) -> None:
    assert report.start_method == start_method()
    assert f"started by {start_method()}" in str(report)


def test_it_tells_from_the_cores_what_is_paced_and_what_is_real(monkeypatch) -> None:
    monkeypatch.setattr(module, "_cores", lambda: 2)
    times = doctor((1, 2, 4)).times
    assert times[1] == "real"
    assert times[2] == "real: each rank has a core"
    assert times[4] == "distorted: 4 ranks share 2 cores; use pace= to see a pipeline's true shape"


def test_a_container_has_its_share_of_cores_and_memory(monkeypatch) -> None:
    pretend(monkeypatch, cpu_max="100000 100000", memory_max=str(GIB // 2))
    found = doctor()
    assert found.cores == 1
    assert found.memory_total == GIB // 2
    assert found.memory_free <= GIB // 2
    pretend(monkeypatch, cpu_max="max 100000", memory_max="max")
    assert doctor().memory_total > GIB // 2


def test_gpus_are_named_and_used_by_as_many_ranks_as_there_are(monkeypatch) -> None:
    monkeypatch.setattr(gpus, "installed", lambda: (("GPU-1", "NVIDIA H200"), ("GPU-2", "NVIDIA H200")))
    monkeypatch.setattr(gpus, "built_for_cuda", lambda: True)
    monkeypatch.delenv(gpus.VISIBLE, raising=False)
    found = doctor((1, 2, 4))
    assert found.gpus == ("NVIDIA H200", "NVIDIA H200")
    assert [found.links[p].partition(":")[0] for p in (1, 2, 4)] == ["none", "nccl", "staged"]
    assert found.times[2] == "real: each rank has a GPU"
    assert found.times[4] == "distorted: 4 ranks share 2 GPUs; use pace= to see a pipeline's true shape"


@pytest.mark.parametrize(("version", "shares"), [((2, 28, 9), False), ((2, 30, 1), True)])
def test_it_tells_whether_ranks_may_share_a_gpu_over_nccl(monkeypatch, version: tuple[int, ...], shares: bool) -> None:
    monkeypatch.setattr(gpus, "nccl_version", lambda: version)
    text = str(doctor())
    assert f"NCCL     {'.'.join(map(str, version))}: one rank a GPU" in text
    assert (gpus.SHARING in text) == shares


@pytest.mark.parametrize(
    ("wrong", "sentence"),
    [
        ({"torch": "2.9.1"}, "torch 2.9.1 is too old: the course needs 2.10 or newer."),
        ({"torch": "cannot be imported: no library"}, "torch cannot be imported: no library; install it again."),
        (
            {"memory_free": GIB // 2},
            "Only 0.5 GB of memory is free, and four ranks need 1 GB: close other programs.",
        ),
        (
            {"temp_dir": ""},
            "No temporary directory can be written to, and ranks need one: set TMPDIR to a folder that can.",
        ),
        ({"temp_free": 0}, f"Only 0.0 GB of disk is free in {tempfile.gettempdir()}: make room."),
    ],
)
def test_each_problem_is_one_sentence(report, wrong: dict, sentence: str) -> None:
    found = replace(report, **wrong)
    assert found.warnings == (sentence,)
    assert str(found).endswith(f"! {sentence}")


def test_a_newer_torch_is_not_called_old(report) -> None:
    for version in ("2.10.0", "2.13.0+cpu", "3.0.0a0"):
        assert replace(report, torch=version).warnings == ()


def test_torch_that_does_not_load_is_told_and_not_raised(monkeypatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    assert doctor().torch.startswith("cannot be imported: ")


def test_a_temporary_directory_that_cannot_be_written_is_told(monkeypatch) -> None:
    def fails(*args, **options):
        raise FileNotFoundError("No usable temporary directory found")

    monkeypatch.setattr(tempfile, "TemporaryFile", fails)
    found = doctor()
    assert (found.temp_dir, found.temp_free) == ("", 0)
    assert "No temporary directory" in str(found)
