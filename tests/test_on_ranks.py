"""A function of the learner's on real ranks: what comes back, what is printed, every way in which it may not end."""

import contextlib
import itertools
import os
import sys
import time
from collections.abc import Callable
from typing import Any

import psutil
import pytest
import torch
import torch.distributed as dist
from toys import by_value, is_gone, soon

import ppcourse as pp
from ppcourse.lab.on_ranks import CallError, HangError
from ppcourse.runtime.processes import ranks

by_value(__name__)
pytestmark = pytest.mark.thorough


def test_each_rank_returns_its_own_and_they_can_talk(capfd: pytest.CaptureFixture[str]) -> None:
    def sum_of_all(rank: int) -> tuple[int, float]:
        print("I am", rank)
        mine = torch.tensor([float(rank)])
        dist.all_reduce(mine)
        return rank, float(mine)

    assert pp.on_ranks(sum_of_all, p=3) == [(0, 3.0), (1, 3.0), (2, 3.0)]
    assert capfd.readouterr().out.splitlines() == ["[rank 0] I am 0", "[rank 1] I am 1", "[rank 2] I am 2"]


def test_tensors_come_back_and_what_the_function_changes_does_not() -> None:
    seen = [0]

    def change(rank: int) -> torch.Tensor:
        seen[0] += 1
        return torch.full((2,), float(rank), dtype=torch.float64)

    first, second = pp.on_ranks(change)
    assert torch.equal(first, torch.zeros(2, dtype=torch.float64))
    assert torch.equal(second, torch.ones(2, dtype=torch.float64))
    assert seen == [0]


def test_one_rank_alone() -> None:
    assert pp.on_ranks(lambda rank: rank, p=1) == [0]


def both_send(rank: int) -> None:
    dist.send(torch.ones(1), 1 - rank)
    dist.recv(torch.ones(1), 1 - rank)


def both_receive(rank: int) -> None:
    dist.recv(torch.ones(1), 1 - rank)


def unfetched(rank: int) -> None:
    dist.isend(torch.ones(1), 1 - rank).wait()


def one_waits(rank: int) -> None:
    if rank == 0:
        dist.recv(torch.ones(1), 1)


def loop(rank: int) -> None:
    while True:
        pass


def stubborn(rank: int) -> None:
    while True:
        with contextlib.suppress(BaseException):
            dist.recv(torch.ones(1), 1 - rank)


HANGS: dict[str, tuple[Callable[[int], None], str]] = {
    "both send": (
        both_send,
        "rank 0 waits in line N of test_on_ranks.py: dist.send(torch.ones(1), 1 - rank);"
        " rank 1 waits in line N of test_on_ranks.py: dist.send(torch.ones(1), 1 - rank).",
    ),
    "both receive": (
        both_receive,
        "rank 0 waits in line N of test_on_ranks.py: dist.recv(torch.ones(1), 1 - rank);"
        " rank 1 waits in line N of test_on_ranks.py: dist.recv(torch.ones(1), 1 - rank).",
    ),
    "sent and never fetched": (
        unfetched,
        "rank 0 waits in line N of test_on_ranks.py: dist.isend(torch.ones(1), 1 - rank).wait();"
        " rank 1 waits in line N of test_on_ranks.py: dist.isend(torch.ones(1), 1 - rank).wait().",
    ),
    "one waits": (
        one_waits,
        "rank 0 waits in line N of test_on_ranks.py: dist.recv(torch.ones(1), 1); rank 1 has returned.",
    ),
    "a loop": (
        loop,
        "rank 0 is busy in line N of test_on_ranks.py: pass; rank 1 is busy in line N of test_on_ranks.py: pass.",
    ),
    "that catches everything": (
        stubborn,
        "rank 0 waits in line N of test_on_ranks.py: dist.recv(torch.ones(1), 1 - rank);"
        " rank 1 waits in line N of test_on_ranks.py: dist.recv(torch.ones(1), 1 - rank).",
    ),
}


def without_numbers(text: str) -> str:
    return " ".join("N" if before == "line" else word for before, word in itertools.pairwise(["", *text.split()]))


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The processes of every pool that is made."""
    pids: list[int] = []
    usual = ranks.Pool._start

    def start(pool: ranks.Pool, folder: Any) -> None:
        usual(pool, folder)
        pids.extend(process.pid or 0 for process in pool.processes)

    monkeypatch.setattr(ranks.Pool, "_start", start)
    return pids


@pytest.mark.parametrize("case", HANGS)
def test_a_hang_is_a_sentence_that_says_where_each_stands(case: str, started: list[int]) -> None:
    function, sentence = HANGS[case]
    began = time.monotonic()
    with pytest.raises(HangError) as caught:
        pp.on_ranks(function, timeout=1)
    assert time.monotonic() - began < 100  # the ranks would wait for ever; seconds on a very busy machine
    said = without_numbers(str(caught.value)).replace("while True:", "pass")  # a loop is caught at either line
    assert said == f"No end after 1 s: {sentence}"
    assert len(started) == 2
    assert all(is_gone(pid) for pid in started)


def raises(rank: int) -> None:
    if rank == 1:
        raise ValueError("boom")
    dist.recv(torch.ones(1), 1)


def exits(rank: int) -> None:
    if rank == 1:
        sys.exit(4)
    dist.recv(torch.ones(1), 1)


def vanishes(rank: int) -> None:
    if rank == 1:
        os._exit(3)
    dist.recv(torch.ones(1), 1)


def returns_a_generator(rank: int) -> Any:
    return (number for number in ()) if rank == 1 else None


FAILURES = {
    "raises": (raises, "Rank 1 failed: ValueError: boom"),
    "exits": (exits, "Rank 1 failed: SystemExit: 4"),
    "vanishes, and the other's connection breaks": (vanishes, "Rank 1 failed: its process ended with exit code 3"),
    "returns what cannot travel": (
        returns_a_generator,
        "Rank 1 failed: TypeError: cannot pickle 'generator' object",
    ),
}


@pytest.mark.parametrize("case", FAILURES)
def test_a_failure_names_the_rank_that_failed_first(case: str, started: list[int]) -> None:
    function, sentence = FAILURES[case]
    with pytest.raises(CallError) as caught:
        pp.on_ranks(function)
    assert str(caught.value).partition("\n")[0] == sentence
    assert not isinstance(caught.value, HangError)
    assert all(is_gone(pid) for pid in started)


def test_a_failure_shows_the_learners_line() -> None:
    with pytest.raises(pp.RankError, match=r'raise ValueError\("boom"\)'):
        pp.on_ranks(raises)


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ((3,), "on_ranks is given 3, but needs a function of the rank."),
        ((loop, 0), "p, the number of ranks, is 0; it must be a whole number from 1 to 16."),
        ((loop, 17), "p, the number of ranks, is 17; it must be a whole number from 1 to 16."),
        ((loop, True), "p, the number of ranks, is True; it must be a whole number from 1 to 16."),
        ((loop, 2, 0), "The timeout is 0; it must be a number of seconds above 0."),
    ],
)
def test_what_cannot_be_run_is_refused_before_a_rank_starts(
    arguments: tuple[Any, ...], sentence: str, started: list[int]
) -> None:
    with pytest.raises(ValueError, match=sentence):
        pp.on_ranks(*arguments)
    assert not started


def test_a_function_that_cannot_travel_is_named(started: list[int]) -> None:
    numbers = (number for number in ())

    def use(rank: int) -> Any:
        return list(numbers)

    with pytest.raises(ValueError, match="The function cannot travel to a rank: its variable 'numbers'"):
        pp.on_ranks(use)
    assert not started


def test_every_call_has_processes_of_its_own_that_end_with_it(started: list[int]) -> None:
    def number(rank: int) -> int:
        return os.getpid()

    first, second = pp.on_ranks(number), pp.on_ranks(number)
    assert not set(first) & set(second)
    assert sorted(first + second) == sorted(started)
    assert soon(lambda: all(is_gone(pid) for pid in started))
    assert not set(started) & {child.pid for child in psutil.Process().children()}
