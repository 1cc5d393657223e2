"""Ledgers measured on ranks say what ledgers of plans said, whose sizes come from a profile in another process."""

from functools import cache
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from toys import by_value

import ppcourse as pp
from ppcourse.analysis.buffers import GLOO_ROOM
from ppcourse.analysis.ledger import KINDS
from ppcourse.lab.gpu_check.memory import WHY
from ppcourse.runtime.data import batches, text_loss
from ppcourse.runtime.links import carriers
from ppcourse.runtime.links.device_link import DeviceLink
from ppcourse.runtime.meter import (
    ACTIVATIONS,
    GRADIENTS,
    KEPT_FOR_W,
    OPTIMIZER,
    PARAMETERS,
    RECEIVED,
    SENT,
    AllocatorBytes,
    Between,
    LiveBytes,
    Memory,
)
from ppcourse.runtime.models import gpt, mlp
from ppcourse.runtime.profile import Profile
from ppcourse.runtime.result import Result, bytes_of

by_value(__name__)
pytestmark = pytest.mark.thorough
M, ROWS, WIDTH = 8, 2, 32
PLANS = {"naive": 1, "gpipe": 1, "1f1b": 1, "interleaved": 2, "zb-h1": 1, "zb-h2": 1, "v-half": 2, "zb-v": 2}
LINK = "gloo" if carriers.missing() else "shared"
EXACT = [kind for kind in KINDS if LINK == "shared" or kind != SENT]  # how far a rank is behind is a matter of time
ON_GLOO = [kind for kind in KINDS if kind != SENT]


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
    return pp.ledger(plan, profiled(name).sizes(layers, recompute=recompute), **{"link": LINK, **options})


@cache
def measured(name: str, schedule: str, p: int = 4, link: str = LINK, **options: bool) -> Any:
    plan, it = pp.build(schedule, p, M, PLANS.get(schedule)), batch(name)
    return pp.run(plan, *it.task, loss_fn=it.loss_fn, memory=True, link=link, **options)


# predicted and measured, byte by byte


@pytest.mark.parametrize("schedule", PLANS)
@pytest.mark.parametrize("name", ["gpt", "mlp"])
def test_every_kind_is_measured_as_it_was_predicted(name: str, schedule: str) -> None:
    """To the byte: what a stage keeps is a number of tensors, and which of them are there is a matter of order. In the
    mlp, Tanh keeps for itself what the next stage keeps as its input: where a vee turns, that is there once."""
    plan = pp.build(schedule, 4, M, PLANS[schedule])
    book, found = predicted(name, plan), measured(name, schedule).ledger
    assert found.origin == "measured"
    assert found.name == schedule
    assert max(book.of(ACTIVATIONS)) > 0
    for kind in EXACT:
        assert found.of(kind) == book.of(kind), kind
    assert set(found.rows[0]) == set(KINDS)


@pytest.mark.parametrize("schedule", ["gpipe", "1f1b", "zb-h1", "zb-h2"])
def test_the_formula_says_the_same(schedule: str) -> None:
    plan = pp.build(schedule, 4, M)
    formula, found = predicted("mlp", plan, origin="formula"), measured("mlp", schedule).ledger
    for kind in EXACT:
        assert found.of(kind) == formula.of(kind), kind


@pytest.mark.parametrize("p", [2, 3])
@pytest.mark.parametrize("schedule", PLANS)
def test_so_it_is_on_other_numbers_of_ranks(schedule: str, p: int) -> None:
    plan = pp.build(schedule, p, M, PLANS[schedule])
    for kind in EXACT:
        assert measured("mlp", schedule, p).ledger.of(kind) == predicted("mlp", plan).of(kind), kind


class Twin(torch.nn.Module):
    """Hands on a tuple, or takes one."""

    def forward(self, x: Any) -> Any:
        return x[0] + x[1] if isinstance(x, tuple) else (x, 2 * x)


class InPlace(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.mul_(2)


class Shift(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.zeros(WIDTH))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.weight


class Lookup(torch.nn.Module):
    """Looks at a part of the batch."""

    def __init__(self) -> None:
        super().__init__()
        self.table = torch.nn.Embedding(10, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.table(x[:, 0].abs().long() % 10)


class Running(torch.nn.Module):
    """Weights, and a buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = linear()
        self.register_buffer("scale", torch.full((WIDTH,), 2.0))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.linear(x) * self.scale


class Unused(torch.nn.Module):
    """Has a weight that gets no gradient."""

    def __init__(self) -> None:
        super().__init__()
        self.linear, self.weight = linear(), torch.nn.Parameter(torch.ones(5))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.linear(x)


class Double(torch.nn.Module):
    """Weights of 64 bits beside those of 32."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.outer = linear().double(), linear()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.outer(self.inner(x.double()).float())


def linear() -> torch.nn.Linear:
    return torch.nn.Linear(WIDTH, WIDTH)


ODD = {
    "tuples": lambda: [linear(), Twin(), Twin(), linear()],
    "frozen first": lambda: [linear().requires_grad_(False), torch.nn.Tanh(), linear().requires_grad_(False), linear()],
    "frozen last": lambda: [linear(), torch.nn.Tanh(), *(linear().requires_grad_(False) for _ in range(2))],
    "statistics": lambda: [linear(), torch.nn.BatchNorm1d(WIDTH), linear(), torch.nn.ReLU()],
    "dropout": lambda: [linear(), torch.nn.Dropout(), linear(), torch.nn.Dropout()],
    "in place": lambda: [InPlace(), linear(), InPlace(), torch.nn.ReLU(inplace=True)],
    "same gradient": lambda: [linear(), Shift(), Shift(), linear()],
    "nothing": lambda: [linear(), torch.nn.Identity(), torch.nn.Identity(), linear()],
    "no weights": lambda: [torch.nn.Tanh(), torch.nn.Tanh(), torch.nn.Tanh(), linear()],
    "norms": lambda: [torch.nn.LayerNorm(WIDTH), linear(), torch.nn.LayerNorm(WIDTH), linear()],
    "part of the batch": lambda: [Lookup(), linear(), torch.nn.Tanh(), linear()],
    "tied": lambda: [(same := Running()), linear(), torch.nn.Tanh(), same],  # both on rank 0
    "unused": lambda: [Unused(), linear(), torch.nn.Tanh(), linear()],
    "of two kinds": lambda: [linear(), Double(), torch.nn.Tanh(), linear()],
}


@pytest.mark.parametrize("name", ODD)
def test_odd_layers_are_measured_as_they_were_predicted(name: str) -> None:
    """A layer a stage; v-half turns between the middle ones, where one hands over to the other on its rank."""
    layers, plan = ODD[name](), pp.build("v-half", 2, 4)
    rows = torch.randn(4 * ROWS, WIDTH, generator=torch.Generator().manual_seed(0))
    sizes = pp.profile(layers, rows[:ROWS], rows[:ROWS], F.mse_loss, budget=0.0).sizes([1] * 4)
    book = pp.ledger(plan, sizes, link=LINK)
    found = pp.run(plan, layers, rows, rows, loss_fn=F.mse_loss, memory=True, link=LINK).ledger
    for kind in EXACT:
        assert found.of(kind) == book.of(kind), kind


@pytest.mark.parametrize("late", [0, 1])
def test_what_was_handed_over_is_held_by_who_needs_it_last(late: int) -> None:
    """Stage 1 has paid its W when stage 0 still needs for its own the gradient that stage 1 has made; or the other way
    round, with what stage 0 has made."""
    row = " ".join(f"0F{i} 1F{i} 1I{i} 0I{i} {1 - late}W{i}" for i in range(3))
    layers, plan = [linear(), linear()], pp.Schedule.from_text(f"{row} {late}W0 {late}W1 {late}W2")
    rows = torch.randn(3 * ROWS, WIDTH, generator=torch.Generator().manual_seed(0))
    sizes = pp.profile(layers, rows[:ROWS], rows[:ROWS], F.mse_loss, budget=0.0).sizes([1, 1])
    found = pp.run(plan, layers, rows, rows, loss_fn=F.mse_loss, memory=True).ledger
    assert found.rows == pp.ledger(plan, sizes).rows
    assert found.of(KEPT_FOR_W)[0] >= 2 * (1 + late) * ROWS * WIDTH * 4  # of two at least; stage 0's input is the batch


@pytest.mark.parametrize(("schedule", "p"), [("dualpipe", 4), ("dualpipe-v", 2)])
def test_so_it_is_where_actions_are_joined(schedule: str, p: int) -> None:
    """Between the two of a pair a rank holds what F has made, and still what B will give back."""
    plan = pp.build(schedule, p, M)
    assert any(plan.pairs)
    for kind in EXACT:
        assert measured("mlp", schedule, p).ledger.of(kind) == predicted("mlp", plan).of(kind), kind


def test_what_an_action_of_a_pair_makes_is_its_own() -> None:
    """Joined to the backward of a light stage is the forward of a heavy one, after which the rank holds most."""
    plan = pp.Schedule.from_text("0F0 1F0 0F1+1B0 1F1 0B0 1B1 0B1")
    heavy = torch.nn.Sequential(*(layer for _ in range(3) for layer in (linear(), torch.nn.Tanh())))
    layers, rows = [heavy, linear()], torch.randn(2 * ROWS, WIDTH, generator=torch.Generator().manual_seed(0))
    sizes = pp.profile(layers, rows[:ROWS], rows[:ROWS], F.mse_loss, budget=0.0).sizes([1, 1])
    found = pp.run(plan, layers, rows, rows, loss_fn=F.mse_loss, memory=True).ledger
    assert found.rows == pp.ledger(plan, sizes).rows
    assert found.of(ACTIVATIONS)[0] >= 2 * sizes.of("stashed", 2)[0]


def test_of_three_stages_in_a_row_a_ledger_may_say_too_much_and_never_too_little() -> None:
    """Stage 0 keeps its output, which stage 1 hands on and stage 2 keeps for its W: there once, and counted twice."""
    rows = [f"0F{i} 1F{i} 2F{i} 2I{i} 1I{i}" for i in range(3)] + [
        f"{s}{op}{i}" for s, op in ((0, "I"), (2, "W"), (1, "W"), (0, "W")) for i in range(3)
    ]
    plan = pp.Schedule.from_text(" ".join(rows))
    layers = [torch.nn.Sequential(linear(), torch.nn.Tanh()), torch.nn.Identity(), linear()]
    x = torch.randn(3 * ROWS, WIDTH, generator=torch.Generator().manual_seed(0))
    book = pp.ledger(plan, pp.profile(layers, x[:ROWS], x[:ROWS], F.mse_loss, budget=0.0).sizes([1, 1, 1]))
    found = pp.run(plan, layers, x, x, loss_fn=F.mse_loss, memory=True).ledger
    assert book.of(KEPT_FOR_W)[0] - found.of(KEPT_FOR_W)[0] == 3 * ROWS * WIDTH * 4
    for kind in KINDS:
        assert kind == KEPT_FOR_W or found.of(kind) == book.of(kind), kind


# what messages take


@pytest.mark.parametrize("p", [2, 3, 4])
@pytest.mark.parametrize("schedule", ["gpipe", "1f1b", "interleaved", "v-half"])
def test_over_gloo_receives_are_posted_ahead(schedule: str, p: int) -> None:
    """Two a channel, where messages are used in the order they are sent in. Of sent ones, one a channel at least."""
    plan = pp.build(schedule, p, M, PLANS[schedule])
    book, found = predicted("mlp", plan, link="gloo"), measured("mlp", schedule, p, link="gloo").ledger
    for kind in ON_GLOO:
        assert found.of(kind) == book.of(kind), kind
    channels_to_rank_0 = 2 if PLANS[schedule] > 1 else 1
    assert book.of(RECEIVED)[0] == channels_to_rank_0 * 2 * GLOO_ROOM
    for least, bytes_ in zip(book.of(SENT), found.of(SENT), strict=True):
        assert least <= bytes_ <= M * least
        assert bytes_ % GLOO_ROOM == 0


@pytest.mark.parametrize("link", ["gloo", *(["shared"] if LINK == "shared" else [])])
def test_large_messages_take_what_they_are(link: str) -> None:
    """64 KiB each: too large for a first receive of gloo's and for a socket. With one microbatch under way at a time,
    all that a rank has sent has been received before it sends again. The second step counts: then sizes are known."""
    layers = [torch.nn.Linear(64, 64) for _ in range(3)]
    rows = torch.randn(2 * 256, 64)
    result = pp.train(
        "naive", layers, [(rows, rows)] * 2, p=3, m=2, steps=2, loss_fn=F.mse_loss, optimizer=torch.optim.SGD,
        memory=True, progress=False, link=link,
    )  # fmt: skip
    sizes = pp.profile(layers, rows[:256], rows[:256], F.mse_loss, budget=0.0).sizes([1, 1, 1])
    book = pp.ledger(pp.build("naive", 3, 2), sizes, link=link)
    message = 256 * 64 * 4 + 128
    assert result.ledger.of(SENT) == book.of(SENT) == (message, 2 * message, message)
    posted = 2 if link == "gloo" else 0
    assert result.ledger.of(RECEIVED) == book.of(RECEIVED) == tuple(posted * n * message for n in (1, 2, 1))


def test_a_link_that_cannot_tell_leaves_the_kinds_of_messages_out() -> None:
    """Then a table says "-", and never nothing."""
    assert object.__new__(DeviceLink).buffers is None
    memory = Memory({PARAMETERS: 8.0, ACTIVATIONS: 2.0}, 10, 2, 8)
    assert memory.with_link(None) is memory
    untold = pp.Ledger("1f1b", (memory.kinds,), "measured")
    told = pp.Ledger("1f1b", (memory.with_link((4, 2)).kinds,), "measured")
    lines = pp.side_by_side(untold, told, kinds=(RECEIVED, SENT)).splitlines()
    assert [line.split()[-2:] for line in lines[2:]] == [["-", "4.00"], ["-", "2.00"]]


@pytest.mark.parametrize("schedule", ["1f1b", "zb-h1"])
def test_recomputing_shows(schedule: str) -> None:
    again = measured("gpt", schedule, recompute=True).ledger
    book = predicted("gpt", pp.build(schedule, 4, M), recompute=True)
    for kind in EXACT:
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
    outputs = [4 * boundary, 3 * boundary, 2 * boundary, 0]  # the last stage sends no output
    assert kept.ledger.of(ACTIVATIONS) == let_go.ledger.of(ACTIVATIONS)
    assert [a - b for a, b in zip(kept.held_bytes, let_go.held_bytes, strict=True)] == outputs
    lean, fat = (predicted("gpt", plan, keep_outputs=keep) for keep in (False, True))
    assert [a - b for a, b in zip(fat.of(SENT), lean.of(SENT), strict=True)] == outputs
    assert fat.of(ACTIVATIONS) == lean.of(ACTIVATIONS)
    if SENT in EXACT:
        assert kept.ledger.of(SENT) == fat.of(SENT)  # and their messages, which are copies
        assert let_go.ledger.of(SENT) == lean.of(SENT)


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
    assert len(table) == 2 + 4 * sum(any(found.of(kind)) for kind in KINDS)
    assert row[RECEIVED] == row[SENT] == 0  # nobody to send to
    assert pp.reference_step(*it.task, loss_fn=it.loss_fn, m=M).ledger is None


def test_three_columns_stand_side_by_side() -> None:
    plan = pp.build("zb-h1", 4, M)
    columns = predicted("mlp", plan, origin="formula"), predicted("mlp", plan), measured("mlp", "zb-h1").ledger
    for line in pp.side_by_side(*columns, kinds=EXACT).splitlines()[2:]:
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


def test_case_R63_no_peak_is_below_what_was_alive_before_the_step() -> None:  # noqa: N802
    result = measured("gpt", "1f1b")
    assert result.baseline_bytes == result.ledger.of(PARAMETERS)
    assert f"baseline_bytes={result.baseline_bytes!r}" in repr(result)  # printed with the peaks
    for rank, row in enumerate(result.ledger.rows):
        assert result.peak_bytes[rank] >= result.baseline_bytes[rank] + row[ACTIVATIONS]


def test_case_R63_a_reset_keeps_what_is_alive_in_the_peak() -> None:  # noqa: N802
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


def test_case_R62_allocated_and_reserved_have_names_of_their_own() -> None:  # noqa: N802
    """The CPU has no allocator that reserves. What comes on top of both is named where they are explained."""
    assert measured("gpt", "1f1b").reserved_bytes is None
    assert measured("gpt", "1f1b").peak_bytes is not None
    on_a_gpu = (Memory({PARAMETERS: 8.0}, 900, 10, 700, 2048), Memory({PARAMETERS: 8.0}, 800, 10, 700, 1024))
    found = bytes_of("1f1b", on_a_gpu)
    assert (found["baseline_bytes"], found["peak_bytes"], found["reserved_bytes"]) == (
        (700,) * 2,
        (900, 800),
        (2048, 1024),
    )
    for told in (Result.__doc__, WHY):
        assert told
        assert "the CUDA context and NCCL" in " ".join(told.split())


def test_case_R62_on_a_gpu_the_allocator_is_asked_when_it_has_finished(  # noqa: N802
    monkeypatch: pytest.MonkeyPatch,
) -> None:
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
