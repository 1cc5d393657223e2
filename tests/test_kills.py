"""Any rank, at any action of any schedule, over either link, ended in any way: one culprit, nobody left, and on we go.

A case is made from its seed alone. A few run always; all 200 with --all.
"""

import functools
import os
import random
import resource
import signal
import time
from collections import Counter
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import psutil
import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from toys import assert_same, by_value, is_gone, pids_of, soon

import ppcourse as pp
from ppcourse.runtime.links.carriers import missing
from ppcourse.runtime.processes import ranks
from ppcourse.schedules.action import Op

by_value(__name__)
pytestmark = pytest.mark.thorough

CASES, ALWAYS = 200, 12
STOPPED = 1.5  # seconds without progress that pass for a hang, where a rank is stopped
IN_TIME = 10.0  # seconds from the event, or from that timeout, to the error, on a very busy machine (a hang: 60)
WIDTH = 6
PLANS = (
    ("1f1b", 3, 4, 1),
    ("gpipe", 3, 4, 1),
    ("interleaved", 2, 4, 2),
    ("zb-h1", 3, 4, 1),
    ("zb-v", 2, 4, 2),
    ("dualpipe", 2, 4, 2),
    ("dualpipe", 4, 8, 2),
    ("1f1b", 4, 6, 1),
)
LINKS = ("gloo",) if missing() else ("shared", "gloo")


def signals(number: int) -> None:
    os.kill(os.getpid(), number)


def raises() -> None:
    raise ValueError("boom")


def says_that_memory_is_out() -> None:
    raise MemoryError("so it says")


def fills_memory() -> None:
    """Takes all that its process may have, piece by piece; the limit is this rank's own."""
    pieces, allowed = [], psutil.Process().memory_info().vms + 64 * 2**20
    resource.setrlimit(resource.RLIMIT_AS, (allowed, resource.getrlimit(resource.RLIMIT_AS)[1]))
    while True:
        pieces.append(bytearray(2**16))


class Ending(NamedTuple):
    """What a layer does to its rank, and the cause that is told then."""

    event: Callable[[], Any]
    cause: str


ENDINGS = {
    "SIGKILL": Ending(functools.partial(signals, signal.SIGKILL), "its process was killed by SIGKILL"),
    "SIGSTOP": Ending(functools.partial(signals, signal.SIGSTOP), f"nothing moved for {STOPPED:g} s, and its process"),
    "raise": Ending(raises, "ValueError: boom"),
    "exit 0": Ending(functools.partial(os._exit, 0), "its process ended with exit code 0"),
    "MemoryError": Ending(says_that_memory_is_out, "MemoryError: so it says"),
    "memory full": Ending(fills_memory, "MemoryError"),
    "another kills it": Ending(lambda: None, "its process was killed by SIGKILL"),
    "another stops it": Ending(lambda: None, f"nothing moved for {STOPPED:g} s, and its process is stopped"),
}


class Case(NamedTuple):
    """`rank` ends at `action`, in the way of `ending`; of the last two endings it is the victim of `by`."""

    plan: pp.Schedule
    link: str
    ending: str
    rank: int
    action: pp.Action
    by: int


def case_of(seed: int) -> Case:
    draw = random.Random(seed)
    ending = list(ENDINGS)[seed % len(ENDINGS)]
    plan = pp.build(*PLANS[draw.randrange(len(PLANS))])
    rank = draw.randrange(plan.num_ranks)
    op = draw.choice(sorted({action.op for action in plan.rows[rank]}))
    action = draw.choice([action for action in plan.rows[rank] if action.op is op])
    by = draw.choice([other for other in range(plan.num_ranks) if other != rank])
    return Case(plan, draw.choice(LINKS), ending, rank, action, by)


class Doomed(nn.Module):
    """y = tanh(Wx + b). On one rank, at its n-th forward, input gradient or weight gradient, something happens.

    The gradient of its output passes through B and I alone, that of its weight through B and W.
    """

    def __init__(self, number: int) -> None:
        super().__init__()
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(number)
            self.linear = nn.Linear(WIDTH, WIDTH).double()
        self.event: Callable[[], Any] | None = None

    def at(self, rank: int, op: Op, nth: int, event: Callable[[], Any], note: Path) -> None:
        self.event, self.rank, self.op, self.nth, self.note, self.count = event, rank, op, nth, note, 0

    def forward(self, x: Tensor) -> Tensor:
        if self.event and dist.is_initialized() and dist.get_rank() == self.rank:
            if self.op is Op.W and self.count == 0:
                self.linear.weight.register_hook(self.tick)
                self.count = 1
            elif self.op is Op.F:
                self.tick()
        y = torch.tanh(self.linear(x))
        if self.event and self.op in (Op.B, Op.I) and dist.is_initialized() and dist.get_rank() == self.rank:
            y.register_hook(self.tick)
        return y

    def tick(self, grad: Any = None) -> None:
        if self.nth == 0:
            self.note.write_text(str(time.time()))
            self.event()
        self.nth -= 1


def model_of(num_stages: int) -> list[nn.Module]:
    return [Doomed(number) for number in range(num_stages)]


@cache
def batch_of(m: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(m)
    inputs, targets = torch.randn(2, 2 * m, WIDTH, dtype=torch.float64, generator=generator)
    return inputs, targets


@cache
def expected(num_stages: int, m: int) -> Any:
    return pp.reference_step(model_of(num_stages), *batch_of(m), loss_fn=F.mse_loss)


def doomed_model(case: Case, pids: list[int], note: Path) -> list[nn.Module]:
    """The model in which the case happens. A layer counts the actions of its own rank and stage alone."""
    event, rank, action = ENDINGS[case.ending].event, case.rank, case.action
    if case.ending.startswith("another"):
        number = signal.SIGKILL if "kills" in case.ending else signal.SIGSTOP
        event = functools.partial(os.kill, pids[case.rank], number)
        rank, action = case.by, next(action for action in case.plan.rows[case.by] if action.op is Op.F)
    felt = {Op.F: (Op.F,), Op.B: (Op.B, Op.I), Op.I: (Op.B, Op.I), Op.W: (Op.B, Op.W)}[action.op]
    like_it = [a for a in case.plan.rows[rank] if a.stage == action.stage and a.op in felt]
    model = model_of(case.plan.num_stages)
    model[action.stage].at(rank, action.op, like_it.index(action), event, note)
    return model


def family() -> set[int]:
    return {child.pid for child in psutil.Process().children(recursive=True) if not is_gone(child.pid)}


def survive(case: Case, note: Path) -> None:
    """Everything that must hold, whatever the case."""
    inputs, targets = batch_of(case.plan.num_microbatches)
    stops = case.ending in ("SIGSTOP", "another stops it")
    pids = pids_of(case.plan.num_ranks)
    model = doomed_model(case, pids, note)
    with pytest.raises(pp.RankError) as caught:
        pp.run(
            case.plan,
            model,
            inputs,
            targets,
            loss_fn=F.mse_loss,
            link=case.link,
            timeout=STOPPED if stops else 60.0,
        )
    waited = time.time() - float(note.read_text())
    assert all(is_gone(pid) for pid in pids)
    assert caught.value.rank == case.rank, str(caught.value)
    assert caught.value.cause.startswith(ENDINGS[case.ending].cause), str(caught.value)
    if not case.ending.startswith("another"):  # whose victim may be anywhere
        assert caught.value.action == case.action, str(caught.value)
        assert (caught.value.stage, caught.value.microbatch) == (case.action.stage, case.action.microbatch)
    assert waited < IN_TIME + (STOPPED if stops else 0)
    result = pp.run(case.plan, model_of(case.plan.num_stages), inputs, targets, loss_fn=F.mse_loss, link=case.link)
    assert_same(result, expected(case.plan.num_stages, case.plan.num_microbatches))


def seeds() -> list[Any]:
    return [seed if seed < ALWAYS else pytest.param(seed, marks=pytest.mark.slow) for seed in range(CASES)]


@pytest.mark.parametrize("seed", seeds())
def test_one_culprit_and_nobody_left(seed: int, tmp_path: Path) -> None:
    case = case_of(seed)
    survive(case, tmp_path / "note")


def test_no_process_outlives_its_pool(tmp_path: Path) -> None:
    """After an ending of each kind: of all that this process has started, only the ranks' server is left."""
    pids_of(1)  # so that the server is there
    ranks.close_all()
    before = family()
    for number, ending in enumerate(("SIGKILL", "exit 0", "raise", "SIGSTOP")):
        case = case_of(list(ENDINGS).index(ending))
        survive(case, tmp_path / str(number))
    ranks.close_all()
    assert soon(lambda: family() <= before), family() - before


def test_the_cases_cover_what_can_be_drawn() -> None:
    cases = [case_of(seed) for seed in range(CASES)]
    assert {case.plan.name for case in cases} == {name for name, *_ in PLANS}
    drawn = Counter((case.ending, case.action.op) for case in cases)
    assert {op for _, op in drawn} == set(Op)
    assert all(drawn[ending, op] for ending in ENDINGS for op in Op)
    assert {(case.ending, case.link) for case in cases} == {(ending, link) for ending in ENDINGS for link in LINKS}
    assert {case.ending for case in cases[:ALWAYS]} == set(ENDINGS)
