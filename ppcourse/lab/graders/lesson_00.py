"""Lesson 00, start here: ping-pong between two ranks, a deadlock, and its repair; all on real ranks."""

from collections import Counter
from collections.abc import Callable
from typing import Any, TypeAlias

import torch
import torch.distributed as dist
from torch import Tensor

from ppcourse.lab.graders import Unsolved, grader
from ppcourse.lab.graders.on_two import no_stub, on_two, plain
from ppcourse.lab.on_ranks import CallError, HangError, on_ranks

Play: TypeAlias = Callable[[int, Tensor, int], Any]
BALL = (5.0, 7.0)
IDLE = ("sleep(", "input(")  # waits for no rank
LARGE = 2**20  # numbers: more than any buffer on the way takes
POINT_TO_POINT = ("send", "recv", "isend", "irecv")
COLLECTIVES = ("barrier", "broadcast", "all_reduce", "reduce", "all_gather", "gather", "scatter")


# 0.1


@grader("0.1", minutes=6, difficulty=1, limit=40)
def ping_pong(answer: Play) -> str | None:
    """after 1 and after 3 rounds, both ranks hold a ball that rank 1 has raised once a round."""
    play = plain(answer)
    for rounds in (1, 3):

        def game(rank: int, rounds: int = rounds) -> Any:
            ball = torch.tensor(BALL) if rank == 0 else torch.zeros(len(BALL))
            return play(rank, ball, rounds)

        said = f"ping_pong with {rounds} round{'s' * (rounds > 1)}"
        balls = on_two(game, said)
        if isinstance(balls, str):
            return balls
        no_stub(balls, "ping_pong")
        for rank, ball in enumerate(balls):
            wrong = _wrong_ball(ball, rounds, rank)
            if wrong:
                return f"{said} returns {_text(ball)} on rank {rank}{wrong}"
    return None


def _wrong_ball(ball: Any, rounds: int, rank: int) -> str | None:
    """What is wrong with the ball that a rank returns, as the end of a sentence."""
    if not isinstance(ball, Tensor):
        return "; return the ball on both ranks."
    want = torch.tensor(BALL) + rounds
    if ball.shape == want.shape and torch.equal(ball, want):
        return None
    should = f", but should return {_text(want)}"
    if ball.shape != want.shape:
        return f"{should}."
    if torch.equal(ball, torch.zeros(len(BALL))):
        return f"{should}: it must return what it has received."
    if torch.equal(ball, torch.tensor(BALL)):
        return f"{should}: rank 1 adds 1 before it sends the ball back."
    if torch.equal(ball, want - 1) and rank == 0:
        return f"{should}: one round is missing, or rank 1 adds after it has sent."
    if torch.equal(ball, torch.tensor(BALL) + 1):
        return f"{should}: play {rounds} rounds, not one."
    return f"{should}: rank 1 adds 1 once a round, and rank 0 adds nothing."


# 0.2


@grader("0.2", minutes=5, difficulty=1, limit=20)
def provoke_a_deadlock(answer: Callable[[int], Any]) -> str | None:
    """both ranks wait for each other, and no time would be long enough."""
    function = plain(answer)
    if not callable(function):
        return f"{function!r:.60} is no function; write one of the rank."
    try:
        on_ranks(function, p=2, timeout=2)
    except HangError as error:
        return _no_deadlock(error) or _without_partner(function)
    except CallError as error:
        return f"deadlock does not hang, it fails. {error.in_short()}"
    if not getattr(getattr(function, "__code__", None), "co_names", True):
        raise Unsolved("(deadlock calls nothing)")
    return "deadlock ends on both ranks; which call could wait for one that the other rank never reaches?"


def _no_deadlock(error: HangError) -> str | None:
    """Why a hang is none in which two ranks wait for each other, or None if it is one."""
    for rank in range(error.num_ranks):
        place = error.places.get(rank)
        if place is None:
            stands = error.places[1 - rank].line
            return (
                f"only rank {1 - rank} hangs, in {stands}; rank {rank} has returned, so this is a call without a"
                " partner. Both must wait, each for a call that the other would still make."
            )
        if not place.waits:
            return f"rank {rank} waits for nobody, it is busy in {place.line}; let it send or receive."
        if any(word in place.line for word in IDLE):
            return f"rank {rank} waits in {place.line}, which has an end without the other rank; send or receive."
    return None


def _without_partner(function: Callable[[int], Any]) -> str | None:
    """What is wrong if in no order each message meets its receive, or None; the calls are counted, and do not wait."""

    def counted(rank: int) -> Counter[str]:
        calls: Counter[str] = Counter()

        def noted(kind: str) -> Callable[..., Any]:
            def call(*_: Any, **__: Any) -> Any:
                calls[kind] += 1
                return _Done() if kind.startswith("i") or kind in COLLECTIVES else 1 - rank

            return call

        for kind in (*POINT_TO_POINT, *COLLECTIVES):
            setattr(dist, kind, noted(kind))  # the process ends with this call
        function(rank)
        return calls

    try:
        both = on_ranks(counted, p=2, timeout=2)
    except HangError as error:  # though no call to another rank waits any more
        own = [(rank, place) for rank, place in error.places.items() if place.waits]
        return f"rank {own[0][0]} waits in {own[0][1].line}, but for no other rank; send or receive." if own else None
    except CallError:  # not to be counted in this way; it does hang
        return None
    for rank, (ours, theirs) in enumerate((both, both[::-1])):
        sends, receives = ours["send"] + ours["isend"], theirs["recv"] + theirs["irecv"]
        if sends != receives:
            return (
                f"both ranks hang, but rank {rank} sends {sends} message{'s' * (sends != 1)}, and rank {1 - rank}"
                f" receives {receives}; give each message its receive."
            )
    return None


class _Done:
    """What a call that does not wait gives back, if nothing is really sent."""

    def wait(self, *_: Any) -> bool:
        return True

    is_completed = wait


# 0.3


@grader("0.3", minutes=6, difficulty=2, limit=40)
def exchange_without_a_deadlock(answer: Callable[[int, Tensor], Any]) -> str | None:
    """both ranks get the other's tensor, small or large."""
    swap = plain(answer)
    for size in (2, LARGE):

        def meet(rank: int, size: int = size) -> Any:
            _refuse_to_overwrite()
            got = swap(rank, torch.full((size,), float(rank + 1)))
            return got[:2].clone() if isinstance(got, Tensor) and got.dim() and len(got) == size else got

        said = f"exchange of {size:,} numbers"
        both = on_two(meet, said)
        if isinstance(both, str):
            return both
        no_stub(both, "exchange")
        for rank, got in enumerate(both):
            wrong = _wrong_swap(got, rank)
            if wrong:
                return f"{said} returns {_text(got)} on rank {rank}, {wrong}"
    return None


def _refuse_to_overwrite() -> None:
    """From now on in this process, no tensor is sent and received into at once: what arrives then is chance."""
    under_way: dict[int, str] = {}
    calls = {kind: getattr(dist, kind) for kind in POINT_TO_POINT}

    def watched(kind: str) -> Callable[..., Any]:
        def call(tensor: Tensor, *args: Any, **kwargs: Any) -> Any:
            other = under_way.get(tensor.data_ptr())
            if other and (other == "isend") is not kind.endswith("send"):
                raise RuntimeError(f"{kind} of a tensor whose {other} is still under way; wait() for it first")
            job = calls[kind](tensor, *args, **kwargs)
            return _Noted(job, under_way, tensor.data_ptr(), kind) if kind.startswith("i") else job

        return call

    for kind, call in {kind: watched(kind) for kind in POINT_TO_POINT}.items():
        for module in (dist, dist.distributed_c10d):  # where P2POp looks; the process ends with the learner's call
            setattr(module, kind, call)


class _Noted:
    """A job that is known to be under way until it has been waited for."""

    def __init__(self, job: Any, under_way: dict[int, str], at: int, kind: str) -> None:
        self._job, self._under_way, self._at = job, under_way, at
        under_way[at] = kind

    def wait(self, *args: Any) -> Any:
        done = self._job.wait(*args)
        self._under_way.pop(self._at, None)
        return done

    def __getattr__(self, name: str) -> Any:
        return getattr(self._job, name)


def _wrong_swap(got: Any, rank: int) -> str | None:
    had, want = torch.full((2,), float(rank + 1)), torch.full((2,), float(2 - rank))
    if not isinstance(got, Tensor):
        return "which is no tensor; return what the other rank had."
    if got.shape == want.shape and torch.equal(got, want):
        return None
    should = f"but should return {_text(want)}"
    if got.shape == had.shape and torch.equal(got, had):
        return f"{should}: its own came back, or never left; who receives into a tensor that it has still to send?"
    return f"{should}: was the receive waited for?"


def _text(value: Any) -> str:
    return str(value.tolist() if isinstance(value, Tensor) and value.numel() < 9 else value)[:80]
