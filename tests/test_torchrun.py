"""Ranks that torchrun starts: the same losses as in a pool, on one host and on two that are joined by a wire.

The hosts are network namespaces with a wire between them, which needs Linux, root and `ip`; what is missing is said.
"""

import errno
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch
import torch.distributed as dist
from hosts import TORCHRUN, NoHostsError, best, environment, free_port, held_to, on_two_hosts, told, wired
from two_hosts import PLANS

from ppcourse.cli import main
from ppcourse.runtime import torchrun
from ppcourse.runtime.checkpoints import saving_here
from ppcourse.runtime.checkpoints.checkpoint_folder import Folder, Story
from ppcourse.runtime.checkpoints.saving import Saving
from ppcourse.runtime.checkpoints.saving_here import begin_here
from ppcourse.runtime.machine import gpus
from ppcourse.runtime.processes import joining
from ppcourse.runtime.processes.joining import attempt, interface_towards
from ppcourse.runtime.torchrun import Patience, Place, carried, place
from ppcourse.schedules.action import Action, Op

ROOT = Path(__file__).parents[1]
pytestmark = pytest.mark.thorough


def in_a_pool(path: Path, *options: str) -> list[dict[str, Any]]:
    assert main(["train", *options, "--json", str(path)]) == 0
    return told(path)


def same(one: list[dict[str, Any]], other: list[dict[str, Any]]) -> bool:
    """To the last digit: losses, norms and what was sent."""
    return [{**log, "seconds": 0} for log in one] == [{**log, "seconds": 0} for log in other]


SMALL = ("-m", "4", "--steps", "3", "--layers", "2", "--width", "16", "--context", "8")


def test_torchruns_ranks_train_as_a_pools_do(tmp_path: Path) -> None:
    command = [*TORCHRUN, "--standalone", "--nproc-per-node", "2", "-m", "ppcourse", "train", *SMALL]
    command += ["--schedule", "zb-h1", "--clip-norm", "1.0", "--json", str(tmp_path / "torchrun.json")]
    done = subprocess.run(command, env=environment(), capture_output=True, text=True, timeout=110)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert [line.split()[:2] for line in lines[:-1]] == [["step", "1"], ["step", "2"], ["step", "3"]]
    assert lines[-1].startswith("zb-h1, p=2 m=4: ")  # said once, by rank 0
    pool = in_a_pool(tmp_path / "pool.json", "-p", "2", *SMALL, "--schedule", "zb-h1", "--clip-norm", "1.0")
    assert same(told(tmp_path / "torchrun.json"), pool)


WRONG = {
    "a count that the schedule refuses": (["--schedule", "dualpipe", "-m", "3"], 2, "dualpipe"),
    "p against torchrun": (["-p", "4"], 2, "-p is 4, but torchrun has started 2 ranks; leave -p out."),
    "more stages than layers": (["--layers", "1", "--schedule", "interleaved", "-v", "4"], 2, "8 stages"),
    "no GPU": (["--link", "nccl"], 2, "No GPU can be used on this host"),
    "a link within a host": (["--link", "shared"], 2, "under torchrun the link is auto, gloo, nccl or staged"),
}


@pytest.mark.parametrize("case", WRONG)
def test_what_cannot_work_is_one_sentence_of_rank_0(case: str, monkeypatch: Any, capfd: Any) -> None:
    options, status, sentence = WRONG[case]
    monkeypatch.setattr(gpus, "usable", lambda: 0)
    monkeypatch.setattr(torchrun, "join", lambda: pytest.fail("met the others"))
    ended: list[int] = []
    monkeypatch.setattr(os, "_exit", ended.append)
    for rank in ("0", "1"):
        given = {"RANK": rank, "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1"}
        given |= {"LOCAL_RANK": rank, "LOCAL_WORLD_SIZE": "2"}
        for name, value in given.items():
            monkeypatch.setenv(name, value)
        main(["train", *options])
        said = capfd.readouterr().err
        assert (sentence in said and said.count("\n") == 1) if rank == "0" else said == ""
    assert ended == [status, status]


@pytest.mark.parametrize(
    ("local", "found", "link", "expected"),
    [
        (2, 0, "auto", ("cpu", "gloo")),
        (2, 2, "auto", ("cuda:1", "nccl")),
        (2, 1, "auto", ("cuda:0", "staged")),
        (2, 4, "staged", ("cuda:1", "staged")),
        (2, 4, "gloo", ("cpu", "gloo")),
    ],
)
def test_each_rank_finds_its_device_and_link(
    local: int, found: int, link: str, expected: tuple[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gpus, "usable", lambda: found)
    device, reason = carried(Place(3, 4, 1, local), "auto", link)
    assert (device, reason.partition(":")[0]) == expected


def test_nccl_wants_a_gpu_for_each_rank_of_the_host(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpus, "usable", lambda: 1)
    with pytest.raises(ValueError, match=r"NCCL wants 2 GPUs on this host, found 1; say --link staged\."):
        carried(Place(0, 4, 0, 2), "auto", "nccl")


def test_without_torchrun_there_is_no_place(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("RANK", "WORLD_SIZE", "MASTER_ADDR"):
        monkeypatch.delenv(name, raising=False)
    assert place() is None


def test_the_interface_that_leads_to_a_host_is_found() -> None:
    assert interface_towards("127.0.0.1") in psutil.net_if_addrs()
    assert interface_towards("no.such.host.invalid") == ""


def test_ranks_of_one_attempt_agree_on_its_name_whatever_an_attempt_before_has_left() -> None:
    """Of the first attempt rank 2 asked, and was killed before it got an answer; of the second, all came."""
    store, names = dist.HashStore(), []
    for _ in range(3):
        store.set("asks/2", "a word of a rank that is gone")
        with ThreadPoolExecutor() as threads:
            asked = [threads.submit(attempt, store, rank, 3) for rank in (2, 0, 1)]
            answers = {each.result(timeout=60) for each in asked}
        assert len(answers) == 1
        names += answers
    assert len(set(names)) == 3


@pytest.mark.parametrize("own", ["", "mine"])
def test_messages_take_the_interface_that_the_user_names_or_that_leads_to_rank_0(
    own: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = {"MASTER_ADDR": "127.0.0.1"} | ({"GLOO_SOCKET_IFNAME": own} if own else {})
    monkeypatch.setattr(os, "environ", {k: v for k, v in os.environ.items() if k != "GLOO_SOCKET_IFNAME"} | given)
    monkeypatch.setattr(joining, "rendezvous", lambda *_, **__: iter([(dist.HashStore(), 0, 1)]))
    monkeypatch.setattr(joining.dist, "init_process_group", lambda *_, **__: None)
    joining.join()
    assert os.environ["GLOO_SOCKET_IFNAME"] == (own or interface_towards("127.0.0.1"))


def test_a_rank_that_does_not_come_is_told_by_its_number(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(joining, "PATIENCE", 0.5)
    store = dist.HashStore()
    with ThreadPoolExecutor() as threads:
        one = threads.submit(attempt, store, 1, 4)
        with pytest.raises(ConnectionError, match=r"^Ranks 2, 3 have not come in 0\.5 s; their hosts say why"):
            attempt(store, 0, 4)
        assert one.result(timeout=60)


def test_a_master_that_does_not_answer_is_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    given = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port()), "RANK": "1", "WORLD_SIZE": "2"}
    monkeypatch.setattr(os, "environ", os.environ | given)
    monkeypatch.setattr(joining, "PATIENCE", 1.0)
    with pytest.raises(ConnectionError, match=r"^The ranks do not meet at 127\.0\.0\.1:\d+: .*\.$") as told:
        joining.join()
    assert "\n" not in str(told.value)


class Still:
    """A worker whose row is at one action, or between two steps."""

    rank, step_number = 1, 4

    def __init__(self, now: Action | None) -> None:
        self.interpreter: Any = type("Row", (), {"now": now, "finished": 3})()


class EndedError(Exception):
    pass


@pytest.fixture
def quick_time(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """A second goes by whenever somebody looks; after 50 sleeps that end nothing, EndedError. What was slept."""
    clock, slept = iter(range(1000)), list[float]()
    monkeypatch.setattr(torchrun.time, "monotonic", lambda: float(next(clock)))

    def sleep(seconds: float) -> None:
        slept.append(seconds)
        if len(slept) > 50:
            raise EndedError

    def leave(status: int) -> None:
        raise SystemExit(status)

    monkeypatch.setattr(torchrun.time, "sleep", sleep)
    monkeypatch.setattr(os, "_exit", leave)
    return slept


def test_a_row_that_stands_still_ends_its_process_and_one_between_two_steps_does_not(
    quick_time: list[float], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(EndedError):
        Patience(Still(None), 2.0, Saving(1)).run()  # type: ignore[arg-type]
    quick_time.clear()
    with pytest.raises(SystemExit):
        Patience(Still(Action(1, Op.F, 2)), 2.0, Saving(1)).run()  # type: ignore[arg-type]
    said = "Rank 1 failed in 1F2 (stage 1, forward of microbatch 2): no progress for 2 s, which may be another rank's"
    assert capsys.readouterr().err.startswith(said)


@pytest.mark.parametrize("opened", [True, False])
def test_ranks_wait_longer_for_each_other_than_for_an_action_but_not_for_ever(
    opened: bool, quick_time: list[float], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(torchrun, "START_TIMEOUT", 20.0)
    worker = Still(None)
    if not opened:
        worker.interpreter = None  # the stages are not there yet
    patience = Patience(worker, 2.0, Saving(1))  # type: ignore[arg-type]
    with pytest.raises(SystemExit), patience.together("save"):
        patience.run()  # while this is under way
    assert capsys.readouterr().err.startswith("Rank 1 failed between two actions: no progress for 20 s")
    assert len(quick_time) > 20
    quick_time.clear()
    with pytest.raises(EndedError):  # the next batch may take as long as it likes
        patience.run()


# checkpoints


@pytest.fixture
def alone(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """This process is the one rank that torchrun has started."""
    given = {"RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
    given |= {"CUDA_DEVICE_MAX_CONNECTIONS": "32"}  # which it sets, as ranks do
    own = interface_towards("127.0.0.1")
    for name, value in (given | {"LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1", "GLOO_SOCKET_IFNAME": own}).items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(Patience, "start", lambda self: None)  # it would never end
    monkeypatch.setattr(os, "_exit", lambda status: dist.destroy_process_group())
    threads = torch.get_num_threads()
    yield
    torch.set_num_threads(threads)
    if dist.is_initialized():
        dist.destroy_process_group()


ONE_RANK = ("--schedule", "gpipe", *SMALL, "--steps", "5", "--checkpoint-every", "2")


def test_wherever_ranks_wait_for_each_other_someone_watches(
    alone: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Or a rank that stands still would keep the others for ever."""
    watching: list[Patience] = []
    monkeypatch.setattr(Patience, "start", lambda self: watching.append(self))
    waited = set[str]()

    def watched(real: Callable[..., Any]) -> Callable[..., Any]:
        def collective(*arguments: Any, **options: Any) -> Any:
            now = watching[0]._together
            assert now
            waited.add(now[0])
            return real(*arguments, **options)

        return collective

    for name in ("barrier", "all_gather_object", "broadcast_object_list", "all_reduce", "broadcast", "new_group"):
        monkeypatch.setattr(dist, name, watched(getattr(dist, name)))
    main(["train", *ONE_RANK, "--checkpoint-dir", str(tmp_path / "saved")])
    assert waited == {"begin", "step", "save", "end"}


def test_the_command_goes_on_from_a_checkpoint(alone: None, tmp_path: Path, capsys: Any, monkeypatch: Any) -> None:
    """As under torchrun, so with ranks of its own, and from one to the other."""
    there, here = (["train", *ONE_RANK, "--checkpoint-dir", str(tmp_path / name)] for name in ("there", "here"))
    done: list[str] = []
    monkeypatch.setattr(torchrun, "sleep_precisely", lambda: done.append("sleeps precisely"))
    monkeypatch.setattr(torchrun.dist, "barrier", lambda: done.append("waits for all"))  # as its last act
    assert main([*there, "--steps", "3"]) == 0
    assert done == ["sleeps precisely", "waits for all"]
    assert torch.get_num_threads() == 1  # as in a pool
    assert capsys.readouterr().out.splitlines()[-2].startswith("step   3")
    assert main([*there, "--json", str(tmp_path / "there.json")]) == 0
    said = capsys.readouterr().out.splitlines()
    assert said[0] == f"goes on after step 3, from {tmp_path / 'there'}"
    assert [line.split()[:2] for line in said[1:-1]] == [["step", "4"], ["step", "5"]]
    assert main([*there, "--seed", "1"]) == 2
    assert "step-00000005 was trained with seed=0, not 1; take the same seed" in capsys.readouterr().err
    monkeypatch.delenv("RANK")
    plain = in_a_pool(tmp_path / "plain.json", "-p", "1", *ONE_RANK)
    assert same(told(tmp_path / "there.json"), plain)
    shutil.copytree(tmp_path / "there", tmp_path / "here")
    shutil.rmtree(tmp_path / "here" / "step-00000005")
    capsys.readouterr()
    assert main([*here, "-p", "1", "--json", str(tmp_path / "here.json")]) == 0
    said = capsys.readouterr().out.splitlines()
    assert said[0] == f"goes on after step 4, from {tmp_path / 'here'}"
    assert [line.split()[:2] for line in said[1:-1]] == [["step", "5"]]
    assert same(told(tmp_path / "here.json"), plain)
    assert len(list((tmp_path / "here").glob("step-*"))) == 2


def test_a_folder_that_not_all_hosts_share_is_one_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rank 1 looks into a folder of its own, and learns as well as rank 0 who is blind."""
    folders = [Saving(4, Folder(tmp_path / host)) for host in ("a", "b")]
    sent: list[Any] = []
    answers = {0: "", 1: ""}

    def broadcast(told: list[Any]) -> None:
        told[0] = told[0] or sent[0]
        sent.append(told[0])

    monkeypatch.setattr(saving_here.dist, "broadcast_object_list", broadcast)
    sentence = r"b, but rank 1 on .* does not find there what rank 0 writes; take a folder that all hosts share\.$"

    def gathered(value: str) -> list[str]:
        answers[len(sent) - 1] = value
        return [answers[0], answers[1]]

    monkeypatch.setattr(saving_here, "gathered", gathered)
    begin_here(folders[0], 0)
    assert folders[0].owns
    assert [path.name for path in (tmp_path / "a").iterdir()] == [".lock"]  # until it is closed
    with pytest.raises(ValueError, match=sentence):
        begin_here(folders[1], 1)
    assert not folders[1].owns
    assert not (tmp_path / "b").exists()


def test_all_ranks_go_on_from_what_rank_0_finds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    told = ("", "", Story(step=2))
    monkeypatch.setattr(saving_here.dist, "broadcast_object_list", lambda given: given.__setitem__(0, told))
    monkeypatch.setattr(saving_here, "gathered", lambda value: [value])
    saving = Saving(4, Folder(tmp_path))
    begin_here(saving, 1)
    assert saving.begun.step == 2


def test_all_ranks_are_told_that_rank_0_can_write_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(path: Path) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    sent: list[Any] = []
    monkeypatch.setattr(Path, "touch", full)
    monkeypatch.setattr(saving_here.dist, "broadcast_object_list", sent.extend)
    with pytest.raises(ValueError, match="No space left on device"):
        begin_here(Saving(4, Folder(tmp_path)), 0)
    assert "No space left on device" in sent[0][0]


SCRIPT = """
import os, signal, sys
from ppcourse.cli import main
from ppcourse.runtime.processes.worker import Worker

update = Worker.update

def once(worker):
    if worker.step_number == 4 and worker.rank == 1 and os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
        os.kill(os.getpid(), signal.SIGKILL)
    return update(worker)

Worker.update = once
main(sys.argv[1:])
"""


@pytest.mark.slow  # torchrun starts its ranks twice, each with all of torch
@pytest.mark.timeout(400)
def test_a_rank_that_is_killed_is_started_again_and_goes_on(tmp_path: Path) -> None:
    """Its optimizer had half of step 4 to go; the newest checkpoint is of step 2."""
    (tmp_path / "killed_once.py").write_text(SCRIPT)
    given = ["train", *SMALL, "--steps", "6", "--schedule", "interleaved", "--layers", "4", "--clip-norm", "1.0"]
    command = [
        *TORCHRUN,
        "--standalone",
        "--nproc-per-node",
        "2",
        "--max-restarts",
        "1",
        str(tmp_path / "killed_once.py"),
    ]
    command += [*given, "--checkpoint-dir", str(tmp_path / "saved"), "--checkpoint-every", "2"]
    command += ["--json", str(tmp_path / "torchrun.json")]
    done = subprocess.run(command, env=environment(), capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    lines = [line for line in done.stdout.splitlines() if line.startswith(("step", "goes"))]
    numbers = [line.partition("step")[2].split()[0] for line in lines]
    assert numbers == ["1", "2", "3", "2,", "3", "4", "5", "6"], done.stdout
    pool = in_a_pool(tmp_path / "pool.json", "-p", "2", *given[1:])
    assert same(told(tmp_path / "torchrun.json"), pool)


STOPS = """
import os, signal, sys
from ppcourse.cli import main
from ppcourse.runtime import torchrun
from ppcourse.runtime.processes.worker import Worker
from ppcourse.runtime.stages.stage import Stage

torchrun.START_TIMEOUT = 20.0
kind, name = {"forward": (Stage, "forward"), "update": (Worker, "update")}[sys.argv[1]]
real = getattr(kind, name)

def stop(self, *arguments, **options):
    if os.environ["RANK"] == "1":
        os.kill(os.getpid(), signal.SIGSTOP)
    return real(self, *arguments, **options)

setattr(kind, name, stop)
main(sys.argv[2:])
"""


@pytest.mark.slow  # torchrun gives a rank that is stopped half a minute to end by itself
@pytest.mark.timeout(240)
@pytest.mark.parametrize(
    ("where", "said"),
    [
        ("forward", "Rank 0 failed in 0B0 (stage 0, backward of microbatch 0): no progress for 2 s"),
        ("update", "Rank 0 failed between two actions: no progress for 20 s"),
    ],
)
def test_a_rank_that_stands_still_ends_every_rank(where: str, said: str, tmp_path: Path) -> None:
    """One stops itself: the other one finds that nothing moves, and torchrun ends both."""
    (tmp_path / "stops.py").write_text(STOPS)
    command = [*TORCHRUN, "--standalone", "--nproc-per-node", "2", str(tmp_path / "stops.py"), where, "train", *SMALL]
    command += ["--timeout", "2"]
    with subprocess.Popen(command, env=environment(), stderr=subprocess.PIPE, text=True) as running:
        try:
            _, error = running.communicate(timeout=180)
        finally:
            with suppress(psutil.NoSuchProcess):
                for child in psutil.Process(running.pid).children():
                    child.kill()
            running.kill()
    assert running.returncode != 0
    assert said in error


# two hosts


@contextmanager
def two_hosts() -> Iterator[None]:
    """Skips, with the reason, where none can be made."""
    try:
        with wired():
            yield
    except NoHostsError as error:
        pytest.skip(str(error))


@pytest.mark.timeout(300)
def test_two_hosts_train_as_one_does_whatever_the_wire(tmp_path: Path) -> None:
    with two_hosts():
        fast = on_two_hosts(tmp_path / "fast.json", *PLANS["1f1b"])
        held_to("100mbit")
        slow = on_two_hosts(tmp_path / "slow.json", *PLANS["1f1b"])
    assert same(fast, in_a_pool(tmp_path / "pool.json", "-p", "2", *PLANS["1f1b"]))
    assert same(fast, slow)
    # paced, a step needs 300 ms; the first activation and the last gradient, which nothing hides, take 21 ms each here
    assert best(slow) > 0.300 + 2 * 0.021


@pytest.mark.slow  # compares times, which a busy machine stretches
@pytest.mark.timeout(900)
def test_a_slow_wire_turns_the_gain_of_interleaving_into_a_loss() -> None:
    done = subprocess.run([sys.executable, "bench/two_hosts.py"], cwd=ROOT, capture_output=True, text=True, check=False)
    print(done.stdout, done.stderr)
    if done.returncode == 2:
        pytest.skip(done.stdout.splitlines()[-1])
    assert done.returncode == 0
