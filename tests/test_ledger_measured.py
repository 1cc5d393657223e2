"""Ledgers measured on ranks say what ledgers of plans said, whose sizes come from a profile in another process."""

from functools import cache
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from toys import by_value

import ppcourse as pp
from ppcourse.analysis.ledger import KINDS
from ppcourse.runtime.data import batches, text_loss
from ppcourse.runtime.meter import (
    ACTIVATIONS,
    GRADIENTS,
    KEPT_FOR_W,
    OPTIMIZER,
    PARAMETERS,
    SENT,
    AllocatorBytes,
    Between,
    LiveBytes,
)
from ppcourse.runtime.models import gpt, mlp
from ppcourse.runtime.profile import Profile

by_value(__name__)
pytestmark = pytest.mark.thorough
M, ROWS, WIDTH = 8, 2, 32
KNOWN = (PARAMETERS, GRADIENTS, ACTIVATIONS, KEPT_FOR_W)  # what a run tells apart
PLANS = {"gpipe": 1, "1f1b": 1, "interleaved": 2, "zb-h1": 1, "zb-h2": 1, "v-half": 2}
MESSAGE = ROWS * WIDTH * 4  # bytes that a stage of the mlp hands on for a microbatch


class Batch:
    """A model and M microbatches for it."""

    def __init__(self, name: str) -> None:
        if name == "gpt":
            self.model, self.loss_fn = gpt(layers=6, width=WIDTH, context=16), text_loss
            ((self.inputs, self.targets),) = batches(M * ROWS, 16, 1)
        else:
            # equal layers, which keep more from F to I than from I to W, as the closed forms have it
            self.model = torch.nn.Sequential(*(torch.nn.Sequential(*layer, torch.nn.Tanh()) for layer in mlp(8, WIDTH)))
            self.loss_fn = F.mse_loss
            self.inputs = torch.randn(M * ROWS, WIDTH, generator=torch.Generator().manual_seed(0))
            self.targets = self.inputs

    @property
    def task(self) -> tuple[Any, ...]:
        return self.model, self.inputs, self.targets


@cache
def batch(name: str) -> Batch:
    return Batch(name)


@cache
def profiled(name: str) -> Profile:
    it = batch(name)
    return pp.profile(it.model, it.inputs[:ROWS], it.targets[:ROWS], it.loss_fn, budget=0.0)


def predicted(name: str, plan: pp.Schedule, recompute: bool = False, **options: Any) -> pp.Ledger:
    layers = pp.partition([1.0] * len(batch(name).model), plan.num_stages, "uniform")
    return pp.ledger(plan, profiled(name).sizes(layers, recompute=recompute), **options)


@cache
def measured(name: str, schedule: str, p: int = 4, recompute: bool = False, keep_sent: bool = False) -> Any:
    plan, it = pp.build(schedule, p, M, PLANS[schedule]), batch(name)
    return pp.run(plan, *it.task, loss_fn=it.loss_fn, memory=True, recompute=recompute, keep_sent=keep_sent)


# predicted and measured, byte by byte


@pytest.mark.parametrize("schedule", PLANS)
@pytest.mark.parametrize("name", ["gpt", "mlp"])
def test_every_kind_is_measured_as_it_was_predicted(name: str, schedule: str) -> None:
    """To the byte, but for one rank of one plan: where a stage of v-half hands over to the next on its own rank, and
    Tanh keeps for itself what the next stage keeps as its input, a profile counts that twice, and it is there once."""
    plan = pp.build(schedule, 4, M, PLANS[schedule])
    book, found = predicted(name, plan), measured(name, schedule).ledger
    assert found.origin == "measured"
    assert found.name == schedule
    assert max(book.of(ACTIVATIONS)) > 0
    turn = (name, schedule) == ("mlp", "v-half")
    for kind in KNOWN:
        assert found.of(kind)[: 3 if turn else 4] == book.of(kind)[: 3 if turn else 4], kind
    if turn:
        over = [each.of(ACTIVATIONS)[3] + each.of(KEPT_FOR_W)[3] for each in (book, found)]
        assert 0 < over[0] - over[1] <= measured(name, schedule).peak_in_flight[3] * MESSAGE * 2


@pytest.mark.parametrize("schedule", ["gpipe", "1f1b", "zb-h1", "zb-h2"])
def test_the_formula_says_the_same(schedule: str) -> None:
    plan = pp.build(schedule, 4, M)
    formula, found = predicted("mlp", plan, origin="formula"), measured("mlp", schedule).ledger
    for kind in KNOWN:
        assert found.of(kind) == formula.of(kind), kind


@pytest.mark.parametrize("p", [2, 3])
def test_so_it_is_on_other_numbers_of_ranks(p: int) -> None:
    plan = pp.build("zb-h1", p, M)
    for kind in KNOWN:
        assert measured("gpt", "zb-h1", p).ledger.of(kind) == predicted("gpt", plan).of(kind), kind


@pytest.mark.parametrize("schedule", ["1f1b", "zb-h1"])
def test_recomputing_shows(schedule: str) -> None:
    again = measured("gpt", schedule, recompute=True).ledger
    book = predicted("gpt", pp.build(schedule, 4, M), recompute=True)
    for kind in KNOWN:
        assert again.of(kind) == book.of(kind), kind
    kept = measured("gpt", schedule).ledger
    assert max(again.of(ACTIVATIONS)) < max(kept.of(ACTIVATIONS)) / 10
    assert again.of(KEPT_FOR_W) == kept.of(KEPT_FOR_W)  # from I on nothing has changed


def test_a_stage_that_keeps_more_from_i_to_w_shows_it() -> None:
    """What zb-h1 saves on activations it may owe to W: the last rank owes, 1f1b's does not."""
    split, whole = measured("gpt", "zb-h1").ledger, measured("gpt", "1f1b").ledger
    assert split.of(KEPT_FOR_W)[3] > whole.of(ACTIVATIONS)[3]
    assert whole.of(KEPT_FOR_W) == (0, 0, 0, 0)


# what was sent


def test_outputs_that_are_kept_though_sent_show() -> None:
    plan = pp.build("1f1b", 4, M)
    kept, let_go = measured("gpt", "1f1b", keep_sent=True), measured("gpt", "1f1b")
    boundary = 4 * ROWS * 16 * WIDTH
    assert kept.ledger.of(SENT) == (4 * boundary, 3 * boundary, 2 * boundary, 0)  # the last stage sends no output
    assert let_go.ledger.of(SENT) == (0, 0, 0, 0)
    assert SENT not in let_go.ledger.rows[0]
    assert kept.ledger.of(ACTIVATIONS) == let_go.ledger.of(ACTIVATIONS)
    assert [a - b for a, b in zip(kept.held_bytes, let_go.held_bytes, strict=True)] == list(kept.ledger.of(SENT))
    lean, fat = (predicted("gpt", plan, keep_outputs=keep) for keep in (False, True))
    gradients = [boundary if rank else 0 for rank in range(4)]  # on their way, which no meter sees
    assert [a - b for a, b in zip(fat.of(SENT), gradients, strict=True)] == list(kept.ledger.of(SENT))
    assert fat.of(ACTIVATIONS) == lean.of(ACTIVATIONS)


# with and without a pipeline


def test_without_a_pipeline_one_process_has_it_all() -> None:
    it = batch("mlp")
    alone = pp.reference_step(*it.task, loss_fn=it.loss_fn, m=M, memory=True)
    found = measured("mlp", "1f1b").ledger
    [row] = alone.ledger.rows
    for kind in (PARAMETERS, GRADIENTS):
        assert row[kind] == sum(found.of(kind)), kind
    [whole] = profiled("mlp").sizes([len(it.model)]).of("stashed", 1)
    assert row[ACTIVATIONS] == whole  # one microbatch, of all layers
    table = pp.side_by_side(alone.ledger, found, kinds=KINDS).splitlines()
    assert table[1].split() == ["rank", "kind", "reference", "measured", "1f1b", "measured"]
    assert len(table) == 2 + 4 * 3
    assert pp.reference_step(*it.task, loss_fn=it.loss_fn, m=M).ledger is None


def test_three_columns_stand_side_by_side() -> None:
    plan = pp.build("zb-h1", 4, M)
    columns = predicted("mlp", plan, origin="formula"), predicted("mlp", plan), measured("mlp", "zb-h1").ledger
    for line in pp.side_by_side(*columns, kinds=KNOWN).splitlines()[2:]:
        *_, formula, simulated, found = line.split()
        assert formula == simulated == found


# optimizer, baselines, peaks


def test_the_optimizers_state_is_measured_where_there_is_one() -> None:
    it = batch("mlp")
    result = pp.train(
        "1f1b", it.model, [(it.inputs, it.targets)] * 2, p=2, m=4, steps=2, loss_fn=it.loss_fn,
        optimizer=torch.optim.Adam, memory=True, progress=False,
    )  # fmt: skip
    steps = 4 * 4 * 2  # Adam counts its steps for each weight and bias, in 4 bytes
    assert result.ledger.of(OPTIMIZER) == tuple(2 * weights + steps for weights in result.ledger.of(PARAMETERS))
    assert measured("mlp", "1f1b").ledger.of(OPTIMIZER) == (0, 0, 0, 0)


def test_no_peak_is_below_what_was_alive_before_the_step() -> None:
    result = measured("gpt", "1f1b")
    assert result.baseline_bytes == result.ledger.of(PARAMETERS)
    for rank, row in enumerate(result.ledger.rows):
        assert result.peak_bytes[rank] >= result.baseline_bytes[rank] + row[ACTIVATIONS]


def test_a_reset_keeps_what_is_alive_in_the_peak() -> None:
    meter = LiveBytes(torch.nn.Linear(10, 10, bias=False))
    with meter:
        held = torch.zeros(100)
        torch.zeros(1000)
    assert meter.memory().peak == 400 + 400 + 4000
    meter.reset()
    assert (meter.memory().baseline, meter.memory().peak) == (800, 800)
    del held


def test_what_two_stages_share_is_held_as_long_as_either_needs_it() -> None:
    """As where a rank hands over to itself."""
    meter = LiveBytes(torch.nn.Module())
    meter.turn_to((3, 0))
    with meter:
        shared = torch.zeros(10)
    meter.turn_to((4, 0))
    meter.watch(shared)
    for between in (Between(stashed=[(3, 0)]), Between(stashed=[(4, 0)]), Between(stashed=[(3, 0)], owed=[(4, 0)])):
        meter.reset()
        meter.boundary(between)
        assert (meter.most[ACTIVATIONS], meter.most[KEPT_FOR_W]) == (40, 0)


def test_allocated_and_reserved_have_names_of_their_own() -> None:
    """The CPU has no allocator that reserves; a GPU's counters are read after everything is done."""
    assert measured("gpt", "1f1b").reserved_bytes is None
    assert measured("gpt", "1f1b").peak_bytes is not None


def test_on_a_gpu_the_allocator_is_asked_when_it_has_finished(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only the order of calls: no GPU is here."""
    calls: list[str] = []
    answers = {"memory_allocated": 700, "max_memory_allocated": 900, "max_memory_reserved": 2048}
    for name in ("synchronize", "reset_peak_memory_stats", *answers):
        monkeypatch.setattr(torch.cuda, name, lambda name=name: (calls.append(name), answers.get(name))[1])
    meter = AllocatorBytes(torch.nn.Linear(2, 2))
    meter.reset()
    memory = meter.memory()
    assert (memory.baseline, memory.peak, memory.reserved) == (700, 900, 2048)
    assert calls[0] == "synchronize"
    assert calls.index("reset_peak_memory_stats") < calls.index("memory_allocated")
    assert calls.count("synchronize") == 2
    assert calls.index("max_memory_allocated") > calls.index("synchronize", 1)
