"""Lesson 00's exercises: what right answers, plausible wrong ones, and stubs are told; its words in the glossary."""

import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from test_on_ranks import without_numbers
from toys import by_value

import ppcourse as pp
from ppcourse.lab import progress

by_value(__name__)
pytestmark = pytest.mark.thorough
Answer = Callable[..., Any]
ROOT = Path(__file__).parents[1]


@pytest.fixture(autouse=True)
def own_progress(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PPCOURSE_PROGRESS", str(tmp_path / "progress.json"))
    monkeypatch.setattr(progress, "unsaved", {})


def play(rank: int, ball: torch.Tensor, rounds: int) -> torch.Tensor:
    for _ in range(rounds):
        if rank == 0:
            dist.send(ball, 1)
            dist.recv(ball, 1)
        else:
            dist.recv(ball, 0)
            ball += 1
            dist.send(ball, 0)
    return ball


def play_with_new_tensors(rank: int, ball: torch.Tensor, rounds: int) -> torch.Tensor:
    for _ in range(rounds):
        back = torch.empty_like(ball)
        if rank == 0:
            dist.isend(ball, 1).wait()
        dist.recv(back, 1 - rank)
        ball = back + rank
        if rank == 1:
            dist.send(ball, 0)
    return ball


def adds_too_late(rank: int, ball: torch.Tensor, rounds: int) -> torch.Tensor:
    for _ in range(rounds):
        if rank == 0:
            dist.send(ball, 1)
            dist.recv(ball, 1)
        else:
            dist.recv(ball, 0)
            dist.send(ball, 0)
            ball += 1
    return ball


def adds_nothing(rank: int, ball: torch.Tensor, rounds: int) -> torch.Tensor:
    return play(rank, ball, rounds) - rounds


def one_round(rank: int, ball: torch.Tensor, rounds: int) -> torch.Tensor:
    return play(rank, ball, 1)


def only_rank_0_returns(rank: int, ball: torch.Tensor, rounds: int) -> torch.Tensor | None:
    return play(rank, ball, rounds) if rank == 0 else (play(rank, ball, rounds), None)[1]


def forgets_what_it_received(rank: int, ball: torch.Tensor, rounds: int) -> torch.Tensor:
    moving = play(rank, ball.clone(), rounds)
    return moving if rank == 0 else ball


def both_send_first(rank: int, ball: torch.Tensor, rounds: int) -> torch.Tensor:
    dist.send(ball, 1 - rank)
    dist.recv(ball, 1 - rank)
    return ball


def to_itself(rank: int, ball: torch.Tensor, rounds: int) -> torch.Tensor:
    dist.send(ball, rank)
    return ball


def send_then_receive(rank: int) -> None:
    dist.send(torch.ones(3), 1 - rank)
    dist.recv(torch.ones(3), 1 - rank)


def receive_then_send(rank: int) -> None:
    dist.recv(torch.ones(3), 1 - rank)
    dist.send(torch.ones(3), 1 - rank)


def matched(rank: int) -> None:
    other = 1 - rank
    for call in (dist.send, dist.recv) if rank == 0 else (dist.recv, dist.send):
        call(torch.ones(3), other)


def one_is_left(rank: int) -> None:
    if rank == 0:
        dist.recv(torch.ones(3), 1)


def runs_for_ever(rank: int) -> None:
    while True:
        rank += 1


def sleeps(rank: int) -> None:
    time.sleep(99)


def holds_its_own_lock(rank: int) -> None:
    threading.Event().wait()


def fails(rank: int) -> None:
    dist.send(torch.ones(3), rank)


def in_order(rank: int, mine: torch.Tensor) -> torch.Tensor:
    theirs = torch.empty_like(mine)
    for call in (dist.send, dist.recv) if rank == 0 else (dist.recv, dist.send):
        call(mine if call is dist.send else theirs, 1 - rank)
    return theirs


def with_isend(rank: int, mine: torch.Tensor) -> torch.Tensor:
    theirs = torch.empty_like(mine)
    sending = dist.isend(mine, 1 - rank)
    dist.recv(theirs, 1 - rank)
    sending.wait()
    return theirs


def in_a_group(rank: int, mine: torch.Tensor) -> torch.Tensor:
    theirs = torch.empty_like(mine)
    calls = [dist.P2POp(dist.isend, mine, 1 - rank), dist.P2POp(dist.irecv, theirs, 1 - rank)]
    for job in dist.batch_isend_irecv(calls):
        job.wait()
    return theirs


def both_send_first_to_swap(rank: int, mine: torch.Tensor) -> torch.Tensor:
    theirs = torch.empty_like(mine)
    dist.send(mine, 1 - rank)
    dist.recv(theirs, 1 - rank)
    return theirs


def overwrites_what_it_must_send(rank: int, mine: torch.Tensor) -> torch.Tensor:
    for call in (dist.send, dist.recv) if rank == 0 else (dist.recv, dist.send):
        call(mine, 1 - rank)
    return mine


def receives_into_what_is_under_way(rank: int, mine: torch.Tensor) -> torch.Tensor:
    sending = dist.isend(mine, 1 - rank)
    dist.recv(mine, 1 - rank)
    sending.wait()
    return mine


def receives_into_what_has_gone(rank: int, mine: torch.Tensor) -> torch.Tensor:
    if rank == 1:
        return in_order(rank, mine)
    dist.send(mine, 1)
    dist.recv(mine, 1)
    return mine


def returns_its_own(rank: int, mine: torch.Tensor) -> torch.Tensor:
    in_order(rank, mine)
    return mine


def returns_the_job(rank: int, mine: torch.Tensor) -> str:
    in_order(rank, mine)
    return "done"


def never_waits(rank: int, mine: torch.Tensor) -> torch.Tensor:
    theirs = torch.zeros_like(mine)
    jobs = [dist.irecv(theirs, 1 - rank), dist.isend(mine, 1 - rank)]
    early = theirs.clone()
    for job in jobs:
        job.wait()
    return early - 1


RIGHT: list[tuple[str, Answer]] = [
    ("0.1", play),
    ("0.1", play_with_new_tensors),
    ("0.2", send_then_receive),
    ("0.2", receive_then_send),
    ("0.3", in_order),
    ("0.3", with_isend),
    ("0.3", in_a_group),
    ("0.3", receives_into_what_has_gone),
]

SEND = "dist.send(ball, 1 - rank)"
WRONG: dict[str, tuple[str, Any, str]] = {
    "adds after it has sent": (
        "0.1",
        adds_too_late,
        "ping_pong with 1 round returns [5.0, 7.0] on rank 0, but should return [6.0, 8.0]:"
        " rank 1 adds 1 before it sends the ball back.",
    ),
    "adds nothing": (
        "0.1",
        adds_nothing,
        "ping_pong with 1 round returns [5.0, 7.0] on rank 0, but should return [6.0, 8.0]:"
        " rank 1 adds 1 before it sends the ball back.",
    ),
    "one round": (
        "0.1",
        one_round,
        "ping_pong with 3 rounds returns [6.0, 8.0] on rank 0, but should return [8.0, 10.0]: play 3 rounds, not one.",
    ),
    "no return on rank 1": (
        "0.1",
        only_rank_0_returns,
        "ping_pong with 1 round returns None on rank 1; return the ball on both ranks.",
    ),
    "the old ball": (
        "0.1",
        forgets_what_it_received,
        "ping_pong with 1 round returns [0.0, 0.0] on rank 1, but should return [6.0, 8.0]:"
        " it must return what it has received.",
    ),
    "both send first": (
        "0.1",
        both_send_first,
        f"ping_pong with 1 round hangs. No end after 4 s: rank 0 waits in line N of test_lesson_00.py: {SEND};"
        f" rank 1 waits in line N of test_lesson_00.py: {SEND}.",
    ),
    "to itself": (
        "0.1",
        to_itself,
        "ping_pong with 1 round fails. Rank 0 failed: ValueError: Invalid destination rank: destination rank should"
        " not be the same as the rank of the current process, at line N of test_lesson_00.py: dist.send(ball, rank).",
    ),
    "calls that match": (
        "0.2",
        matched,
        "deadlock ends on both ranks; which call could wait for one that the other rank never reaches?",
    ),
    "a call without a partner": (
        "0.2",
        one_is_left,
        "only rank 0 hangs, in line N of test_lesson_00.py: dist.recv(torch.ones(3), 1); rank 1 has returned, so this"
        " is a call without a partner. Both must wait, each for a call that the other would still make.",
    ),
    "a loop": (
        "0.2",
        runs_for_ever,
        "rank 0 waits for nobody, it is busy in line N of test_lesson_00.py: rank += 1; let it send or receive.",
    ),
    "a sleep": (
        "0.2",
        sleeps,
        "rank 0 waits in line N of test_lesson_00.py: time.sleep(99), which has an end without the other rank;"
        " send or receive.",
    ),
    "a wait of its own": (
        "0.2",
        holds_its_own_lock,
        "rank 0 waits in line N of test_lesson_00.py: threading.Event().wait(), but for no other rank; send or"
        " receive.",
    ),
    "an error": (
        "0.2",
        fails,
        "deadlock does not hang, it fails. Rank 0 failed: ValueError: Invalid destination rank: destination rank should"
        " not be the same as the rank of the current process, at line N of test_lesson_00.py:"
        " dist.send(torch.ones(3), rank).",
    ),
    "receives only": (
        "0.2",
        lambda rank: dist.recv(torch.ones(3), 1 - rank),
        "both ranks hang, but rank 0 sends 0 messages, and rank 1 receives 1; give each message its receive.",
    ),
    "sends only": (
        "0.2",
        lambda rank: dist.send(torch.ones(3), 1 - rank),
        "both ranks hang, but rank 0 sends 1 message, and rank 1 receives 0; give each message its receive.",
    ),
    "no function": ("0.2", 7, "7 is no function; write one of the rank."),
    "still both send first": (
        "0.3",
        both_send_first_to_swap,
        "exchange of 2 numbers hangs. No end after 4 s: rank 0 waits in line N of test_lesson_00.py:"
        " dist.send(mine, 1 - rank); rank 1 waits in line N of test_lesson_00.py: dist.send(mine, 1 - rank).",
    ),
    "overwritten": (
        "0.3",
        overwrites_what_it_must_send,
        "exchange of 2 numbers returns [1.0, 1.0] on rank 0, but should return [2.0, 2.0]: its own came back, or never"
        " left; who receives into a tensor that it has still to send?",
    ),
    "received into what is under way": (
        "0.3",
        receives_into_what_is_under_way,
        "exchange of 2 numbers fails. Rank 0 failed: RuntimeError: recv of a tensor whose isend is still under way;"
        " wait() for it first, at line N of test_lesson_00.py: dist.recv(mine, 1 - rank).",
    ),
    "its own": (
        "0.3",
        returns_its_own,
        "exchange of 2 numbers returns [1.0, 1.0] on rank 0, but should return [2.0, 2.0]: its own came back, or never"
        " left; who receives into a tensor that it has still to send?",
    ),
    "something else": (
        "0.3",
        returns_the_job,
        "exchange of 2 numbers returns done on rank 0, which is no tensor; return what the other rank had.",
    ),
}


@pytest.mark.parametrize(("number", "answer"), RIGHT, ids=lambda value: getattr(value, "__name__", value))
def test_a_right_answer_is_solved(number: str, answer: Answer) -> None:
    verdict = pp.grade(number, answer)
    assert verdict, verdict


@pytest.mark.parametrize("case", WRONG)
def test_a_wrong_answer_is_told_why(case: str) -> None:
    number, answer, sentence = WRONG[case]
    verdict = pp.grade(number, answer)
    first = without_numbers(verdict.message.partition("\n")[0]).replace("while True:", "rank += 1")
    if case in ("an error", "to itself", "received into what is under way"):  # whichever rank is heard first
        first = first.replace("Rank 1 failed", "Rank 0 failed")
    assert (verdict.state, first) == ("wrong", sentence)


def test_a_receive_that_is_not_waited_for_is_told() -> None:
    """What is there when nobody waits is chance: nothing yet, or what was there before."""
    message = pp.grade("0.3", never_waits).message
    assert "was the receive waited for?" in message or "its own came back, or never left" in message


@pytest.mark.parametrize("number", ["0.1", "0.2", "0.3"])
def test_a_stub_is_not_solved_yet(number: str) -> None:
    def stub(*args: Any) -> None: ...

    assert [pp.grade(number, answer).state for answer in (..., None, stub)] == ["unsolved"] * 3


def test_the_words_of_the_lesson_are_those_of_the_glossary() -> None:
    lesson = (ROOT / "solutions" / "00_start_here.py").read_text(encoding="utf-8")
    glossary = (ROOT / "docs" / "glossary.md").read_text(encoding="utf-8").splitlines()
    table = lesson.partition("# | English |")[2].partition("#\n")[0].splitlines()[2:]
    assert len(table) >= 10
    for row in table:
        cells = [cell.strip() for cell in row.removeprefix("# |").rstrip("|").split("|")]
        assert any(line.startswith("| " + " | ".join(cells) + " |") for line in glossary), cells
