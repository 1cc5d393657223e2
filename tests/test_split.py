"""I and W together are B: the same gradients, the same FLOPs, for every kind of layer; and each does its half only."""

import gc
from collections.abc import Callable
from typing import Any, NamedTuple

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, autograd, nn
from torch.autograd.graph import get_gradient_edge
from torch.utils.checkpoint import checkpoint
from torch.utils.flop_counter import FlopCounterMode

from ppcourse.runtime.meter import LiveBytes
from ppcourse.runtime.stages.cutting import closed, cuttable, cutting
from ppcourse.runtime.stages.split import SplitError, Splitter

pytestmark = pytest.mark.filterwarnings("ignore:.torch.jit.trace:DeprecationWarning")

ROWS = torch.randn(4, 6, 8, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
FLAT = ROWS[:, 0]
PICTURES = ROWS.repeat(1, 1, 6).view(4, 8, 6, 6)
TOKENS = torch.randint(10, (4, 6), generator=torch.Generator().manual_seed(2))


class Does(nn.Module):
    """A layer that does `work(layer, x)` and has these parts."""

    def __init__(self, work: Callable[[Any, Tensor], Any], **parts: Any) -> None:
        super().__init__()
        self.work = work
        for name, part in parts.items():
            setattr(self, name, part)

    def forward(self, x: Tensor) -> Any:
        return self.work(self, x)


class Times(autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor) -> Tensor:
        ctx.save_for_backward(x, weight)
        return x @ weight

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        x, weight = ctx.saved_tensors
        return grad @ weight.t(), x.flatten(0, -2).t() @ grad.flatten(0, -2)


class Square(autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return x * x

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        return 2 * ctx.saved_tensors[0] * grad


def weight(*shape: int) -> nn.Parameter:
    return nn.Parameter(torch.randn(*shape))


def frozen(layer: nn.Module) -> nn.Module:
    return layer.requires_grad_(False)


def feedforward() -> nn.Sequential:
    return nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.Dropout(0.3), nn.Linear(16, 8))


def in_place(layer: Any, x: Tensor) -> Tensor:
    y = layer.inner(x)
    y.mul_(layer.scale)
    y[:, 0] = layer.scale
    return y.relu_()


def in_place_on_weights(layer: Any, x: Tensor) -> Tensor:
    scale = layer.scale.clone()
    scale.mul_(x.mean())
    return layer.inner(x) * scale * layer.scale


def product_and_copy(layer: Any, x: Tensor) -> Tensor:
    made = layer.a @ layer.b
    copy = made.clone()
    copy.mul_(x.mean())
    return x @ made @ copy


def product_and_vmap(layer: Any, x: Tensor) -> Tensor:
    made = layer.a @ layer.b
    return torch.func.vmap(lambda row: row @ made)(x) @ made


def through_a_view(layer: Any, x: Tensor) -> Tensor:
    x = x + 1
    x.view_as(layer.w).mul_(3)
    return layer.inner(x)


def weight_handed_on(layer: Any, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    scale = layer.scale.exp()
    return layer.inner(x) * scale, layer.scale, scale


def both_ways(layer: Any, x: Tensor) -> Tensor:
    made = layer.a @ layer.b
    return Times.apply(x, made) @ made


def encoder(**options: Any) -> nn.Module:
    return nn.TransformerEncoderLayer(8, 2, 16, batch_first=True, **options)


def scripted() -> nn.Module:
    inner = nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 8)).double()
    return torch.jit.trace(inner, ROWS)


def hooked() -> nn.Module:
    layer = nn.Sequential(nn.Linear(8, 8), nn.Tanh())
    layer.register_full_backward_hook(lambda module, inner, outer: (inner[0] * 3,))
    return layer


class Case(NamedTuple):
    build: Callable[[], nn.Module]
    x: Tensor
    split: str  # how the FLOPs of B part: see test_I_and_W_share_the_work_of_B


HALF, SHARED, AT_I, FREE = "I and W as much as F", "W is the weights' part", "all at I", "no FLOPs are counted"

CASES = {
    "Linear": Case(lambda: nn.Linear(8, 5), ROWS, HALF),
    "Linear on [rows, columns]": Case(lambda: nn.Linear(8, 5), FLAT, HALF),
    "Linear without bias": Case(lambda: nn.Linear(8, 5, bias=False), ROWS, HALF),
    "Conv1d": Case(lambda: nn.Conv1d(6, 3, 3), ROWS, HALF),
    "Conv2d": Case(lambda: nn.Conv2d(8, 3, 3, padding=1), PICTURES, HALF),
    "ConvTranspose2d": Case(lambda: nn.ConvTranspose2d(8, 3, 3), PICTURES, HALF),
    "Embedding": Case(lambda: nn.Embedding(10, 4), TOKENS, FREE),
    "sparse Embedding": Case(lambda: nn.Embedding(10, 4, sparse=True), TOKENS, FREE),
    "EmbeddingBag": Case(lambda: nn.EmbeddingBag(10, 4), TOKENS, FREE),
    "an indexed weight": Case(lambda: Does(lambda at, x: at.rows[x] * 2, rows=weight(10, 8)), TOKENS, FREE),
    "LayerNorm": Case(lambda: nn.LayerNorm(8), ROWS, FREE),
    "RMSNorm": Case(lambda: nn.RMSNorm(8), ROWS, FREE),
    "BatchNorm": Case(lambda: nn.BatchNorm2d(8), PICTURES, FREE),
    "GroupNorm": Case(lambda: nn.GroupNorm(2, 8), PICTURES, FREE),
    "PReLU": Case(lambda: nn.PReLU(8), PICTURES, FREE),
    "Bilinear": Case(lambda: Does(lambda at, x: at.both(x, x.flip(0)), both=nn.Bilinear(8, 8, 3)), ROWS, FREE),
    "MultiheadAttention": Case(
        lambda: Does(lambda at, x: at.inner(x, x, x)[0], inner=nn.MultiheadAttention(8, 2)), ROWS, SHARED
    ),
    "MultiheadAttention with dropout": Case(
        lambda: Does(
            lambda at, x: at.inner(x, x, x, need_weights=False)[0], inner=nn.MultiheadAttention(8, 2, dropout=0.2)
        ),
        ROWS,
        SHARED,
    ),
    "scaled_dot_product_attention": Case(
        lambda: Does(lambda at, x: F.scaled_dot_product_attention(at.q(x), x, x), q=nn.Linear(8, 8)), ROWS, SHARED
    ),
    "TransformerEncoderLayer": Case(lambda: encoder(dropout=0.1), ROWS, SHARED),
    "TransformerEncoderLayer, norm first": Case(lambda: encoder(norm_first=True), ROWS, SHARED),
    "TransformerDecoderLayer": Case(
        lambda: Does(lambda at, x: at.inner(x, x.flip(0)), inner=nn.TransformerDecoderLayer(8, 2, 16)), ROWS, SHARED
    ),
    "an MLP": Case(feedforward, ROWS, HALF),
    "einsum": Case(lambda: Does(lambda at, x: torch.einsum("btc,cd->btd", x, at.w), w=weight(8, 3)), ROWS, HALF),
    "LSTM": Case(lambda: Does(lambda at, x: at.inner(x)[0], inner=nn.LSTM(8, 5, 2)), ROWS, AT_I),
    "GRU": Case(lambda: Does(lambda at, x: at.inner(x)[0], inner=nn.GRU(8, 5, bidirectional=True)), ROWS, AT_I),
    "RNN": Case(lambda: Does(lambda at, x: at.inner(x)[0], inner=nn.RNN(8, 5)), ROWS, AT_I),
    "LSTMCell": Case(lambda: Does(lambda at, x: sum(at.inner(x)), inner=nn.LSTMCell(8, 5)), FLAT, SHARED),
    "attention over weights": Case(
        lambda: Does(lambda at, x: F.scaled_dot_product_attention(at.q.expand(4, 3, 8), x, x), q=weight(1, 3, 8)),
        ROWS,
        AT_I,
    ),
    "a custom function": Case(lambda: Does(lambda at, x: Times.apply(x, at.w), w=weight(8, 8)), ROWS, AT_I),
    "a custom function without weights": Case(
        lambda: Does(lambda at, x: at.inner(Square.apply(x)) * at.w, inner=nn.Linear(8, 8), w=weight(8)), ROWS, HALF
    ),
    "a weight in a custom function and in a product": Case(
        lambda: Does(lambda at, x: Times.apply(x, at.w) @ at.w, w=weight(8, 8)), ROWS, SHARED
    ),
    "a product of weights in a custom function and in a product": Case(
        lambda: Does(both_ways, a=weight(8, 3), b=weight(3, 8)), ROWS, SHARED
    ),
    "a layer used twice": Case(
        lambda: Does(lambda at, x: at.inner(at.inner(x).tanh()), inner=nn.Linear(8, 8)), ROWS, HALF
    ),
    "tied weights": Case(
        lambda: Does(lambda at, x: at.rows(x) @ at.rows.weight.t(), rows=nn.Embedding(10, 8)), TOKENS, HALF
    ),
    "a weight made of weights": Case(
        lambda: Does(lambda at, x: F.linear(x, at.a @ at.b), a=weight(5, 3), b=weight(3, 8)), ROWS, SHARED
    ),
    "a frozen weight and a product of two": Case(
        lambda: Does(
            lambda at, x: F.linear(x, at.inner.weight + at.a @ at.b),
            inner=frozen(nn.Linear(8, 5)),
            a=weight(5, 3),
            b=weight(3, 8),
        ),
        ROWS,
        SHARED,
    ),
    "weight_norm": Case(lambda: nn.utils.parametrizations.weight_norm(nn.Linear(8, 5)), ROWS, HALF),
    "spectral_norm": Case(lambda: nn.utils.parametrizations.spectral_norm(nn.Linear(8, 5)), ROWS, HALF),
    "positions": Case(
        lambda: Does(
            lambda at, x: at.inner(x + at.places(torch.arange(6))), inner=nn.Linear(8, 5), places=nn.Embedding(6, 8)
        ),
        ROWS,
        HALF,
    ),
    "a weight among data in a list": Case(
        lambda: Does(lambda at, x: at.inner(torch.cat([at.w, x], 1)), inner=nn.Linear(8, 5), w=weight(4, 1, 8)),
        ROWS,
        HALF,
    ),
    "in-place operations": Case(lambda: Does(in_place, inner=nn.Linear(8, 8), scale=weight(8)), ROWS, HALF),
    "in-place on what is made of weights": Case(
        lambda: Does(in_place_on_weights, inner=nn.Linear(8, 8), scale=weight(8)), ROWS, HALF
    ),
    "a weight that only gives a shape": Case(
        lambda: Does(lambda at, x: at.inner(x.expand_as(at.w).type_as(at.w)), inner=nn.Linear(8, 8), w=weight(4, 6, 8)),
        ROWS,
        HALF,
    ),
    "writing into a view that has a weight's shape": Case(
        lambda: Does(through_a_view, inner=nn.Linear(8, 8), w=weight(24, 8)), ROWS, HALF
    ),
    "weights handed on": Case(lambda: Does(weight_handed_on, inner=nn.Linear(8, 5), scale=weight(5)), ROWS, HALF),
    "complex numbers": Case(
        lambda: Does(
            lambda at, x: torch.view_as_real((x * at.a * 1j) @ (at.b * (1 + 1j))), a=weight(8), b=weight(8, 3)
        ),
        ROWS,
        HALF,
    ),
    "an unused weight": Case(lambda: Does(lambda at, x: at.inner(x), inner=nn.Linear(8, 8), w=weight(3)), ROWS, HALF),
    "no weights": Case(lambda: nn.ReLU(), ROWS, FREE),
    "a frozen prefix": Case(lambda: nn.Sequential(frozen(nn.Linear(8, 8)), nn.Linear(8, 8)), ROWS, SHARED),
    "all frozen": Case(lambda: frozen(feedforward()), ROWS, AT_I),
    "a full backward hook": Case(hooked, ROWS, HALF),
    "vmap": Case(lambda: Does(lambda at, x: torch.func.vmap(at.inner)(x), inner=nn.Linear(8, 5)), ROWS, AT_I),
    "a scripted module": Case(scripted, ROWS, AT_I),
}

every_case = pytest.mark.parametrize("case", CASES.values(), ids=CASES)


class Split(NamedTuple):
    """What a module gave, cut; `input_grad` and `weight_grad` are still to be done."""

    outputs: list[Tensor]
    input_grad: Callable[[], list[Tensor | None]]
    weight_grad: Callable[[], None]


def build(case: Case) -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return case.build().double()


def leaf(case: Case) -> Tensor:
    return case.x.clone().requires_grad_(case.x.is_floating_point())


def listed(output: Any) -> list[Tensor]:
    return list(output) if isinstance(output, tuple) else [output]


def grads_for(outputs: list[Tensor]) -> list[Tensor]:
    return [torch.linspace(-1, 2, y.numel(), dtype=y.dtype).view(y.shape) for y in outputs]


def weights_of(module: nn.Module) -> list[Tensor]:
    return [w for w in module.parameters() if w.requires_grad]


def whole(module: nn.Module, x: Tensor) -> list[Tensor]:
    torch.manual_seed(5)
    return listed(module(x))


def split(module: nn.Module, x: Tensor) -> Split:
    splitter = Splitter()
    torch.manual_seed(5)
    with cutting(splitter, module.modules()):
        output = module(x)
    outputs = listed(closed(splitter, output))
    due = [(get_gradient_edge(y), g) for y, g in zip(outputs, grads_for(outputs), strict=True) if y.requires_grad]
    edges, grads = [edge for edge, _ in due], [grad for _, grad in due]
    weights = weights_of(module)
    return Split(
        [y.detach() for y in outputs],
        lambda: splitter.input_grad(edges, grads, [x if x.requires_grad else None], weights),
        lambda: splitter.weight_grad(weights),
    )


def backward(outputs: list[Tensor]) -> None:
    pairs = [(y, g) for y, g in zip(outputs, grads_for(outputs), strict=True) if y.requires_grad]
    if pairs:
        autograd.backward([y for y, _ in pairs], [g for _, g in pairs])


def flops(work: Callable[[], Any]) -> int:
    with FlopCounterMode(display=False) as counter:
        work()
    return counter.get_total_flops()


def assert_equal(got: Tensor | None, expected: Tensor | None) -> None:
    assert (got is None) == (expected is None)
    if got is not None and expected is not None:
        torch.testing.assert_close(got.to_dense(), expected.to_dense(), rtol=1e-12, atol=1e-14)


@every_case
def test_case_R55_I_and_W_give_the_gradients_of_B(case: Case) -> None:  # noqa: N802
    module, expected, x, y = build(case), build(case), leaf(case), leaf(case)
    outputs = whole(expected, y)
    backward(outputs)

    halves = split(module, x)
    assert all(torch.equal(got, out) for got, out in zip(halves.outputs, outputs, strict=True))
    assert_equal(halves.input_grad()[0], y.grad)
    assert all(w.grad is None for w in module.parameters())  # not before W
    halves.weight_grad()
    for got, wanted in zip(module.parameters(), expected.parameters(), strict=True):
        assert_equal(got.grad, wanted.grad)
    for got_, wanted_ in zip(module.buffers(), expected.buffers(), strict=True):
        assert torch.equal(got_, wanted_)


@every_case
def test_I_and_W_share_the_work_of_B(case: Case) -> None:  # noqa: N802
    """I + W = B: nothing is done twice. Where F is all products of data with weights, I and W each cost what F costs;
    where it also has products of data with data (attention), those are I's."""
    module, x, outputs = build(case), leaf(case), list[Tensor]()
    forward = flops(lambda: outputs.extend(whole(module, x)))
    full = flops(lambda: backward(outputs))
    halves = list[Split]()
    assert flops(lambda: halves.append(split(module, x))) == forward  # cutting runs nothing twice
    at_i, at_w = flops(halves[0].input_grad), flops(halves[0].weight_grad)
    assert at_i + at_w == full
    if case.split == FREE:
        assert forward == full == 0
    elif case.split == HALF:
        assert at_w == forward > 0
        assert at_i == (forward if x.requires_grad or full == 2 * forward else 0)
    elif case.split == SHARED:
        assert 0 < at_w < full
    else:
        assert at_w == 0 < at_i


def test_a_transformer_block_costs_as_much_at_I_as_at_W_but_for_attention() -> None:  # noqa: N802
    case = CASES["TransformerEncoderLayer"]
    halves = split(build(case), leaf(case))
    rows, width, hidden = 4 * 6, 8, 16
    products = 2 * rows * width * (4 * width + 2 * hidden)  # q, k, v, out; up, down
    attention = 2 * 2 * 4 * 6 * 6 * width  # scores and their use, each once at F and twice at I
    assert flops(halves.input_grad) == products + 2 * attention
    assert flops(halves.weight_grad) == products


@pytest.mark.parametrize("work", [product_and_copy, product_and_vmap])
def test_I_leaves_to_W_what_both_run_through(work: Callable[[Any, Tensor], Tensor]) -> None:  # noqa: N802
    """A product of weights, used where the graph is cut and where it cannot be."""
    case = Case(lambda: Does(work, a=weight(8, 3), b=weight(3, 8)), ROWS, SHARED)
    test_case_R55_I_and_W_give_the_gradients_of_B(case)


# hooks and accumulation


@pytest.mark.parametrize(
    "name", ["Linear", "a layer used twice", "tied weights", "LSTM", "a custom function", "a scripted module"]
)
def test_case_R50_hooks_on_weights_run_once_a_microbatch_and_at_W(name: str) -> None:  # noqa: N802
    case, calls = CASES[name], list[str]()
    module, expected = build(case), build(case)
    for one in (module, expected):
        for key, w in one.named_parameters():
            w.register_hook(lambda grad, key=key: calls.append(f"tensor {key}") or grad * grad)
            w.register_post_accumulate_grad_hook(lambda w, key=key: calls.append(f"accumulated {key}"))
    backward(whole(expected, leaf(case)))
    once, calls[:] = sorted(calls), []
    assert len(once) == 2 * len(weights_of(module))

    halves = split(module, leaf(case))
    halves.input_grad()
    assert calls == []
    halves.weight_grad()
    assert sorted(calls) == once
    for got, wanted in zip(module.parameters(), expected.parameters(), strict=True):
        assert_equal(got.grad, wanted.grad)


@pytest.mark.parametrize("name", ["an MLP", "LSTM", "a weight made of weights", "spectral_norm"])
def test_case_R51_W_adds_to_what_is_there_in_any_order(name: str) -> None:  # noqa: N802
    case = CASES[name]
    module, expected, x = build(case), build(case), leaf(case)
    first, second = split(module, x), split(module, 2 * x.detach())
    first.input_grad()
    second.input_grad()
    second.weight_grad()
    between = [w.grad.clone() for w in weights_of(module)]
    first.weight_grad()

    one, other = whole(expected, x), whole(expected, 2 * x.detach())
    backward(other)
    for got, wanted in zip(between, weights_of(expected), strict=True):
        assert_equal(got, wanted.grad)
    backward(one)
    for got_, wanted in zip(weights_of(module), weights_of(expected), strict=True):
        assert_equal(got_.grad, wanted.grad)


# memory


def held(meter: LiveBytes, module: nn.Module) -> int:
    grads = sum(w.grad.untyped_storage().nbytes() for w in module.parameters() if w.grad is not None)
    return meter.live - sum(w.untyped_storage().nbytes() for w in module.parameters()) - grads


@pytest.mark.parametrize("first_stage", [False, True])
def test_what_only_I_needed_is_freed_at_I(first_stage: bool) -> None:  # noqa: N802
    """A unit is 4 rows of 8 numbers. F leaves the input, what Tanh (twice), Softplus and Sigmoid gave, and I is given a
    gradient. W needs the inputs of both Linears, one of them from Sigmoid, and the gradients of their outputs."""
    unit = 4 * 8 * 8
    module = nn.Sequential(
        nn.Linear(8, 8), nn.Tanh(), nn.Tanh(), nn.Softplus(), nn.Softplus(), nn.Sigmoid(), nn.Linear(8, 8)
    ).double()
    meter = LiveBytes(module)
    for _ in range(2):  # the second microbatch finds nothing of the first
        with meter:
            x = torch.ones(4, 8, dtype=torch.float64).requires_grad_(not first_stage)
            halves = split(module, x)
            kept = halves._replace(outputs=[])
            del x, halves
        assert held(meter, module) == (1 + 4 + 1) * unit
        with meter:
            kept.input_grad()
        weight_grad = kept.weight_grad
        del kept
        assert held(meter, module) == 4 * unit
        with meter:
            weight_grad()
        del weight_grad
        assert held(meter, module) == 0


def test_W_keeps_no_data_that_it_does_not_need() -> None:  # noqa: N802
    """For what is added to the data W needs the gradient of the sum only."""
    module = Does(lambda at, x: x.exp() + at.places(torch.arange(4)), places=nn.Embedding(4, 8)).double()
    meter = LiveBytes(module)
    with meter:
        halves = split(module, torch.ones(4, 8, dtype=torch.float64).requires_grad_())
        halves.input_grad()
        weight_grad = halves.weight_grad
        del halves
    assert held(meter, module) == 8 * (4 * 8 + 4)  # and the four places
    weight_grad()


def test_nothing_waits_for_the_garbage_collector() -> None:
    case, before = CASES["TransformerEncoderLayer"], gc.isenabled()
    module = build(case)
    meter = LiveBytes(module)
    gc.disable()
    try:
        with meter:
            halves = split(module, leaf(case))
            halves.input_grad()
            halves.weight_grad()
            del halves
        assert held(meter, module) == 0
    finally:
        if before:
            gc.enable()


# checkpoints


class Checkpointed(nn.Module):
    def __init__(self, reentrant: bool, nested: bool = False) -> None:
        super().__init__()
        self.before, self.inner, self.reentrant = nn.Linear(8, 8), feedforward(), reentrant
        self.nested, self.runs = nested, 0

    def forward(self, x: Tensor) -> Tensor:
        return checkpoint(self.outer if self.nested else self.run, self.before(x), use_reentrant=self.reentrant)

    def outer(self, x: Tensor) -> Tensor:
        return x + checkpoint(self.run, x, use_reentrant=self.reentrant)

    def run(self, x: Tensor) -> Tensor:
        self.runs += 1
        return self.inner(x)


@pytest.mark.parametrize("first_stage", [False, True])
@pytest.mark.parametrize("reentrant", [False, True], ids=["R42 and R47", "R48 reentrant"])
def test_checkpointed_code_runs_again_once_and_at_I(reentrant: bool, first_stage: bool) -> None:  # noqa: N802
    case = Case(lambda: Checkpointed(reentrant), ROWS, HALF)
    module, expected = build(case), build(case)
    x, y = (ROWS.clone().requires_grad_(not first_stage) for _ in range(2))
    backward(whole(expected, y))
    halves = split(module, x)
    assert module.runs == 1
    assert_equal(halves.input_grad()[0], y.grad)
    assert module.runs == 2
    halves.weight_grad()
    assert module.runs == 2
    for got, wanted in zip(module.parameters(), expected.parameters(), strict=True):
        assert_equal(got.grad, wanted.grad)


@pytest.mark.parametrize("reentrant", [False, True])
def test_checkpoints_in_checkpoints(reentrant: bool) -> None:
    case = Case(lambda: Checkpointed(reentrant, nested=True), ROWS, HALF)
    module, expected, x, y = build(case), build(case), leaf(case), leaf(case)
    backward(whole(expected, y))
    halves = split(module, x)
    assert_equal(halves.input_grad()[0], y.grad)
    halves.weight_grad()
    assert module.runs <= expected.runs
    for got, wanted in zip(module.parameters(), expected.parameters(), strict=True):
        assert_equal(got.grad, wanted.grad)


def test_case_R47_a_checkpoint_saves_memory_until_I() -> None:  # noqa: N802
    def after_forward(work: Callable[[Any, Tensor], Tensor]) -> int:
        module = Does(work, inner=feedforward()).double()
        meter = LiveBytes(module)
        with meter:
            halves = split(module, torch.ones(4, 6, 8, dtype=torch.float64).requires_grad_())._replace(outputs=[])
        assert halves.weight_grad
        return held(meter, module)

    plain = after_forward(lambda at, x: at.inner(x))
    checkpointed = after_forward(lambda at, x: checkpoint(at.inner, x, use_reentrant=False))
    assert checkpointed < plain / 2


# what must not go wrong unnoticed


def test_writing_into_what_a_small_graph_saved_is_an_error_as_it_is_without_cuts() -> None:
    """A power saves its result."""
    case = Case(lambda: Does(lambda at, x: (x.exp() ** at.w).mul_(2), w=weight(8)), ROWS, FREE)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        backward(whole(build(case), leaf(case)))
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        split(build(case), leaf(case)).input_grad()


def slope(layer: Any, x: Tensor) -> Tensor:
    (grad,) = autograd.grad(layer.inner(x).pow(2).sum(), x, create_graph=True)
    return grad


def test_a_layer_that_differentiates_through_weights_in_its_forward_says_so() -> None:
    case = Case(lambda: Does(slope, inner=nn.Linear(8, 8)), ROWS, SHARED)
    with pytest.raises(SplitError, match="differentiates inside its forward"):
        split(build(case), leaf(case))


def beside(layer: Any, x: Tensor) -> Tensor:
    (grad,) = autograd.grad(x.pow(3).sum(), x, create_graph=True)
    return layer.inner(grad)


def functional(layer: Any, x: Tensor) -> Tensor:
    return torch.func.grad(lambda value: layer.inner(value).pow(2).sum())(x)


@pytest.mark.parametrize("work", [beside, functional])
def test_other_ways_to_differentiate_in_a_forward_are_split(work: Callable[[Any, Tensor], Tensor]) -> None:
    case = Case(lambda: Does(work, inner=nn.Linear(8, 8)), ROWS, SHARED)
    test_case_R55_I_and_W_give_the_gradients_of_B(case)


@pytest.mark.thorough
def test_case_R49_what_is_compiled_runs_as_written() -> None:  # noqa: N802
    compiled = list[Any]()

    def backend(graph: Any, inputs: Any) -> Any:
        compiled.append(graph)
        return graph.forward

    def compiled_parts() -> nn.Module:
        layer = nn.Linear(8, 8)
        layer.compile(backend=backend)
        double = torch.compile(lambda x, w: x @ w, backend=backend)
        inner = torch.compile(nn.Linear(8, 8), backend=backend)
        return Does(lambda at, x: double(layer(inner(x)), at.w), inner=inner, layer=layer, w=weight(8, 8))

    case = Case(compiled_parts, ROWS, HALF)
    module, x = build(case), leaf(case)
    halves = split(module, x)
    assert not compiled
    got = halves.input_grad()[0]
    halves.weight_grad()
    grads = [w.grad for w in module.parameters()]
    module.zero_grad()
    backward(whole(module, x))
    assert compiled  # and elsewhere it is compiled as ever
    assert_equal(got, x.grad)
    for grad, w in zip(grads, module.parameters(), strict=True):
        assert_equal(grad, w.grad)


def test_calls_are_cut_in_here_only() -> None:
    layer = nn.Linear(8, 8)
    with cutting(Splitter()):
        assert type(layer(FLAT.float()).grad_fn).__name__ == "_CutBackward"
        assert type(Times.apply(FLAT.float(), layer.weight).grad_fn).__name__ == "TimesBackward"
    assert type(layer(FLAT.float()).grad_fn).__name__ == "AddmmBackward0"
    assert autograd.Function.__dict__["apply"].__func__.__module__ == "torch.autograd.function"


def maker_of_the_weight(y: Tensor) -> str:
    """The node to which the second gradient of a custom function goes."""
    assert y.grad_fn
    return type(y.grad_fn.next_functions[1][0]).__name__


def test_between_the_cuts_of_a_step_custom_functions_are_as_ever() -> None:
    layer = nn.Linear(8, 8)
    with cuttable():
        own = autograd.Function.__dict__["apply"]
        for _ in range(2):
            with cutting(Splitter()):
                gated = Times.apply(FLAT.float(), layer.weight)
                assert autograd.Function.__dict__["apply"] is own  # changed once, not for every cut
            assert maker_of_the_weight(gated) == "_GateBackward"
            assert maker_of_the_weight(Times.apply(FLAT.float(), layer.weight)) == "AccumulateGrad"
    assert autograd.Function.__dict__["apply"].__func__.__module__ == "torch.autograd.function"


def test_a_cut_that_fails_is_over() -> None:
    layer = nn.Linear(8, 8)
    with cuttable():
        with pytest.raises(ValueError, match="on the way"), cutting(Splitter()):
            raise ValueError("on the way")
        assert maker_of_the_weight(Times.apply(FLAT.float(), layer.weight)) == "AccumulateGrad"
