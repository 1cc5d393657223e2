"""The pool of rank processes: reused, replaced, given up, and never a fork of this process."""

import multiprocessing
import os
import signal
import subprocess
import sys
import tempfile
import textwrap
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
import torch
import torch.nn.functional as F
from toys import classifier, is_gone, pids_of, rows_of, soon

import ppcourse as pp
from ppcourse.runtime.processes import ranks, server


def run(p: int) -> None:
    inputs, targets = rows_of(4)
    expected = pp.reference_step(classifier(), inputs, targets, loss_fn=F.cross_entropy).loss
    result = pp.run("gpipe", classifier(), inputs, targets, p=p, m=2, loss_fn=F.cross_entropy)
    assert result.loss == pytest.approx(expected)


@pytest.fixture
def no_pools() -> Iterator[None]:
    ranks.close_all()
    yield
    ranks.close_all()


def test_the_same_processes_serve_run_after_run() -> None:
    run(2)
    pids = pids_of(2)
    run(3)
    run(2)
    pp.evaluate("1f1b", classifier(), rows_of(4)[0], p=2, m=2)
    assert pids_of(2) == pids
    assert len(set(pids)) == 2


def test_a_rank_that_died_between_two_runs_is_replaced() -> None:
    pids = pids_of(2)
    os.kill(pids[1], signal.SIGKILL)
    assert soon(lambda: is_gone(pids[1]))
    run(2)
    assert not set(pids_of(2)) & set(pids)
    assert is_gone(pids[0])


@pytest.mark.thorough
def test_ranks_come_back_when_the_server_they_are_forked_from_died() -> None:
    pids = pids_of(2)
    parent = psutil.Process(pids[0]).ppid()
    os.kill(parent, signal.SIGKILL)
    assert soon(lambda: all(is_gone(pid) for pid in pids))
    run(2)


@pytest.mark.usefixtures("no_pools")
def test_no_more_than_sixteen_idle_ranks_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    assert ranks.IDLE_RANKS == 16
    monkeypatch.setattr(ranks, "IDLE_RANKS", 6)
    one, two, three = pids_of(1), pids_of(2), pids_of(3)
    assert pids_of(1) == one  # used last, so it goes last
    four = pids_of(4)
    assert soon(lambda: all(is_gone(pid) for pid in two + three))
    assert not any(is_gone(pid) for pid in one + four)


@pytest.mark.usefixtures("no_pools")
def test_close_all_ends_every_rank() -> None:
    pids = pids_of(1) + pids_of(2)
    ranks.close_all()
    assert all(is_gone(pid) for pid in pids)
    assert not ranks._pools


def test_nothing_is_left_in_the_temporary_folder() -> None:
    folder = Path(server.folder_of(os.getpid()))
    ranks.close_all()
    run(2)
    assert {*folder.glob("ranks-*")} == {pool.folder for pool in ranks._pools.values()}
    ranks.close_all()
    assert folder.is_dir()
    assert not list(folder.glob("ranks-*"))
    assert not list(Path(tempfile.gettempdir()).glob("ranks-*"))


@pytest.mark.thorough
def test_ranks_that_are_up_can_still_agree_on_a_group_of_two() -> None:
    """As NCCL's communicators are made, for the channels of the first plan that needs them."""

    def talk(rank: int) -> int:
        import torch.distributed as dist

        groups = [dist.new_group(ends) for ends in ([0, 1], [1, 2])]
        heard = torch.tensor([rank])
        for number, (a, b) in enumerate(((0, 1), (1, 2))):
            if rank == a:
                dist.send(torch.tensor([10 + rank]), b, group=groups[number])
            if rank == b:
                dist.recv(heard, a, group=groups[number])
        return int(heard)

    assert pp.on_ranks(talk, p=3) == [0, 10, 11]


@pytest.mark.thorough
@pytest.mark.skipif(server.start_method() != "forkserver", reason="nobody is left to tidy up without a server")
def test_nothing_is_left_of_a_process_killed_while_ranks_start(tmp_path: Path) -> None:
    killed = textwrap.dedent("""
        import os, signal
        from ppcourse.runtime.processes import ranks
        ranks.Pool._collect = lambda *_: os.kill(os.getpid(), signal.SIGKILL)
        ranks.Pool(2)
    """)
    done = subprocess.run([sys.executable, "-c", killed], env={**os.environ, "TMPDIR": str(tmp_path)})
    assert done.returncode == -signal.SIGKILL
    assert soon(lambda: not any(path.name.startswith(("ppcourse", "ranks")) for path in tmp_path.iterdir()))


def test_what_has_not_started_leaves_no_process(monkeypatch: pytest.MonkeyPatch) -> None:
    ranks.close_all()
    monkeypatch.setattr(ranks.Pool, "_collect", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
    before = set(children_of_the_server())
    with pytest.raises(KeyboardInterrupt):
        ranks.pool_of(2)
    assert soon(lambda: set(children_of_the_server()) <= before)


TIDY = """
    import atexit, os
    import ppcourse.runtime.processes.tidy

    class Heavy:
        def __del__(self):
            os.write(1, b"taken apart\\n")

    heavy = Heavy()
    atexit.register(os.write, 1, b"others first\\n")
"""


def test_the_server_does_not_take_torch_apart_when_it_ends(tmp_path: Path) -> None:
    """That is a second's work, during which it would outlive the notebook; many seconds on a busy machine."""
    folder = tmp_path / "socket"
    folder.mkdir()
    environment = {**os.environ, server.FOLDER: str(folder)}
    script = [sys.executable, "-c", textwrap.dedent(TIDY)]
    done = subprocess.run(script, env=environment, capture_output=True, text=True, timeout=100, check=True)
    assert (done.stdout, done.stderr) == ("others first\n", "")
    assert not folder.exists()


def children_of_the_server() -> list[int]:
    return [child.pid for child in psutil.Process().children(recursive=True) if child.name().startswith("python")]


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere ranks are spawned")
@pytest.mark.parametrize("default", ["fork", "spawn", "forkserver"])
def test_the_start_method_is_named_whatever_the_default(default: str, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []
    get_context = multiprocessing.get_context
    monkeypatch.setattr(multiprocessing, "get_context", lambda method=None: asked.append(method) or get_context(method))
    with server.starting() as context:
        assert context.get_start_method() == "forkserver"
    assert asked == ["forkserver"]
    monkeypatch.setattr(multiprocessing.context._default_context, "_actual_context", get_context(default))
    assert server.start_method() == "forkserver"
    with server.starting() as context:
        assert context.get_start_method() == "forkserver"


@pytest.mark.parametrize("platform", ["darwin", "win32"])
def test_ranks_are_spawned_where_forking_is_not_safe(platform: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", platform)
    assert server.start_method() == "spawn"


SCRIPT = """
    import multiprocessing, pathlib, sys
    multiprocessing.set_start_method({default!r})
    with open({runs!r}, "a") as file:
        file.write("run\\n")
    import torch, ppcourse as pp
    from torch import nn

    class Layer(nn.Linear):  # lives in __main__
        def forward(self, x):
            print("main is", getattr(sys.modules["__main__"], "__file__", None))
            return super().forward(x)

    def loss(output, target):
        return (output - target).pow(2).mean()

    torch.manual_seed(0)
    model = nn.Sequential(Layer(3, 3), Layer(3, 3))
    inputs, targets = torch.ones(4, 3), torch.ones(4, 3)
    result = pp.run("1f1b", model, inputs, targets, loss_fn=loss, p=2, m=2)
    expected = pp.reference_step(model, inputs, targets, loss_fn=loss)
    assert abs(result.loss - expected.loss) < 1e-6
    print("done")
"""


@pytest.mark.thorough
def test_a_script_without_a_guard_works_and_is_not_run_again_by_the_ranks(tmp_path: Path) -> None:
    """Also where the script has asked for another way to start processes."""
    script, runs = tmp_path / "script.py", tmp_path / "runs"
    script.write_text(textwrap.dedent(SCRIPT.format(default="spawn", runs=str(runs))))
    result = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, timeout=100, check=False)
    assert result.returncode == 0, result.stderr
    assert result.stdout.splitlines()[-1] == "done"
    assert result.stderr == ""
    assert runs.read_text() == "run\n"
    said = [line for line in result.stdout.splitlines() if line.startswith("[rank ")]
    assert set(said) == {"[rank 0] main is None", "[rank 1] main is None"}


def test_an_answer_that_comes_when_time_is_up_is_an_answer(monkeypatch) -> None:
    """On a busy machine this process may look late, and find that all have answered."""
    with ranks.in_use:
        pool = ranks.pool_of(2)

        def late(silent: set[int], plan: object) -> list[tuple[int, str]]:
            time.sleep(0.2)
            return [(rank, f"answer of {rank}") for rank in silent]

        monkeypatch.setattr(pool, "_ready", late)
        assert pool._collect(None, timeout=0.1) == ["answer of 0", "answer of 1"]
