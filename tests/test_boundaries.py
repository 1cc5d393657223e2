"""What may cross from stage to stage, and what layers get beside it: as in the unsplit model, or refused by name."""

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from toys import Does, assert_same, by_value, classifier, counted, no_rank_starts, rows_of

import ppcourse as pp

by_value(__name__)
pytestmark = pytest.mark.thorough

PLANS = {
    "1f1b": pp.build("1f1b", 4, 3),
    "zb-h1": pp.build("zb-h1", 3, 3),
    "zb-v": pp.build("zb-v", 2, 4),
    "dualpipe": pp.build("dualpipe", 4, 8),
}
every_plan = pytest.mark.parametrize("plan", PLANS.values(), ids=PLANS)


def assert_as_unsplit(plan: Any, model: nn.Sequential, inputs: Any, targets: Tensor, **options: Any) -> None:
    """A run gives what one process gives, microbatch by microbatch and, where rows do not meet, for the whole batch."""
    options = {"loss_fn": F.cross_entropy} | options
    result = pp.run(plan, copy.deepcopy(model), inputs, targets, **options)
    options.pop("recompute", None)
    for m in (1, plan.num_microbatches):
        assert_same(result, pp.reference_step(model, inputs, targets, m=m, **options))


def seeded(build: Callable[[], nn.Module]) -> nn.Sequential:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(2)
        return build().double()


# what crosses


def no_gradient_slots() -> nn.Module:
    """Masks, positions, constants and what is detached, beside what has a gradient."""
    return nn.Sequential(
        Does(
            lambda at, x: (at.one(x), x[:, 0] > 0, torch.arange(len(x)), x.new_ones(3), at.one(x).detach()),
            one=nn.Linear(4, 6),
        ),
        Does(
            lambda at, g: (torch.where(g[1][:, None], at.one(g[0]), g[0] - g[4]), *g[1:4], g[4].sin()),
            one=nn.Linear(6, 6),
        ),
        Does(lambda at, g: (g[0][:, :3] * g[3] + g[2][:, None], g[1], g[0]), one=nn.Identity()),
        Does(lambda at, g: at.one(g[0] * g[1][:, None]) + g[2][:, 3:] * 0.5, one=nn.Linear(3, 3)),
    )


def nothing_numbers_and_names() -> nn.Module:
    return nn.Sequential(
        Does(lambda at, x: (at.one(x), None, 3, {"scale": 2.5, "half": at.one(x) / 2}), one=nn.Linear(4, 5)),
        Does(lambda at, g: {"x": g[0].tanh() * g[2], "more": [g[3]["half"], None], "scale": g[3]["scale"]}),
        Does(lambda at, g: {"sum": at.one(g["x"]) + g["more"][0] * g["scale"], "flag": True}, one=nn.Linear(5, 5)),
        Does(lambda at, g: at.one(g["sum"]) if g["flag"] else None, one=nn.Linear(5, 3)),
    )


def complex_numbers() -> nn.Module:
    """Rotations, as of positions, and lazy conjugates."""
    return nn.Sequential(
        Does(lambda at, x: torch.view_as_complex(at.one(x).unflatten(1, (3, 2))), one=nn.Linear(4, 6)),
        Does(lambda at, z: (z * torch.polar(z.real.new_ones(3), z.real.new_tensor([0.1, 0.2, 0.3]))).conj()),
        Does(lambda at, z: z @ at.one.weight.to(z.dtype) * 1j, one=nn.Linear(3, 3, bias=False)),
        Does(lambda at, z: at.one(torch.view_as_real(z).flatten(1)), one=nn.Linear(6, 3)),
    )


def squeezed() -> nn.Module:
    """A microbatch of one row comes without its rows."""
    return nn.Sequential(
        Does(lambda at, x: at.one(x).squeeze(0), one=nn.Linear(4, 5)),
        Does(lambda at, x: at.one(x).tanh(), one=nn.Linear(5, 5)),
        Does(lambda at, x: at.one(x).unsqueeze(-1), one=nn.Linear(5, 5)),
        Does(lambda at, x: at.one(x.squeeze(-1)).view(-1, 3), one=nn.Linear(5, 3)),
    )


def views() -> nn.Module:
    """Transposed, sliced, expanded, and two views of one tensor."""
    return nn.Sequential(
        Does(lambda at, x: at.one(x).view(-1, 2, 3).transpose(1, 2), one=nn.Linear(4, 6)),
        Does(lambda at, x: (x[:, ::2].expand(-1, -1, 2), x[:, 1:].t_() if x.dim() == 2 else x[:, 1:])),
        Does(
            lambda at, g: (g[0].flatten(1)[:, :3] + at.one(g[1].flatten(1)[:, ::2])[:, 1:4], g[0]), one=nn.Linear(2, 5)
        ),
        Does(lambda at, g: at.one(g[0]) + g[1].sum((1, 2))[:, None], one=nn.Linear(3, 3)),
    )


def in_place_first() -> nn.Module:
    return nn.Sequential(
        Does(lambda at, x: at.one(x.mul_(2)), one=nn.Linear(4, 5)),
        nn.Sequential(nn.ReLU(inplace=True), nn.Linear(5, 5)),
        Does(lambda at, x: at.one(x.add_(1)), one=nn.Linear(5, 5)),
        Does(lambda at, x: at.one(x.t().mul_(3).t()), one=nn.Linear(5, 3)),
    )


CROSSES = {
    "R32 slots without a gradient": (no_gradient_slots, 9),
    "R33 None, numbers, dictionaries": (nothing_numbers_and_names, 11),
    "R34 complex numbers": (complex_numbers, 9),
    "R35 another shape each time": (squeezed, 11),
    "R36 views": (views, 9),
    "R38 in place first": (in_place_first, 10),
}


@every_plan
@pytest.mark.parametrize("case", CROSSES)
def test_what_crosses_is_as_in_the_unsplit_model(case: str, plan: pp.Schedule) -> None:
    build, rows = CROSSES[case]
    model, recompute = seeded(build), plan.name == "zb-h1"
    inputs, targets = rows_of(rows)
    result = pp.run(plan, model, inputs, targets, loss_fn=F.cross_entropy, recompute=recompute)
    assert all(grad is not None for grad in result.grads.values())
    m = plan.num_microbatches  # positions count within a microbatch
    assert_same(result, pp.reference_step(model, inputs, targets, loss_fn=F.cross_entropy, m=m))


class Casts(nn.Module):
    """Hands on whole numbers from 0 to 3, as another type beside the data."""

    def __init__(self, dtype: torch.dtype) -> None:
        super().__init__()
        self.inner, self.dtype = nn.Linear(4, 4).double(), dtype

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        return self.inner(x), (torch.arange(4) % (2 if self.dtype is torch.bool else 4)).to(self.dtype)


class CastsBack(nn.Module):
    def forward(self, given: tuple[Tensor, Tensor]) -> Tensor:
        x, other = given
        assert other.dtype is not torch.float64
        return (x * other.to(torch.complex128 if other.is_complex() else torch.float64).real)[:, 1:]


DTYPES = ("bool", "uint8", "int8", "int16", "int32", "int64", "uint16", "float16", "bfloat16", "float32")
DTYPES += ("complex64", "float8_e4m3fn", "float8_e5m2")


@pytest.mark.parametrize("dtype", DTYPES, ids=lambda dtype: f"R39 {dtype}")
def test_every_type_of_number_crosses(dtype: str) -> None:
    model = [Casts(getattr(torch, dtype)), CastsBack()]
    inputs, targets = rows_of(4)
    result = pp.run(["0F0 0B0", "1F0 1B0"], model, inputs, targets, loss_fn=F.cross_entropy)
    assert_same(result, pp.reference_step(model, inputs, targets, loss_fn=F.cross_entropy))


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "complex64"], ids=lambda dtype: f"R39 {dtype}")
def test_gradients_cross_in_the_type_of_what_they_are_of(dtype: str) -> None:
    kind = getattr(torch, dtype)
    model = nn.Sequential(nn.Linear(4, 4), Does(lambda at, x: x.to(kind)), Does(lambda at, x: x * 2), nn.Identity())
    model.append(Does(lambda at, x: torch.view_as_real(x.cfloat()).sum(-1)))
    inputs, targets = torch.ones(4, 4), torch.tensor([0, 1, 2, 3])
    result = pp.run("zb-h1", model, inputs, targets, p=4, m=2, loss_fn=F.cross_entropy)
    assert_same_roughly(result, pp.reference_step(model, inputs, targets, loss_fn=F.cross_entropy, m=2))


def assert_same_roughly(result: Any, expected: Any) -> None:
    for name, grad in expected.grads.items():
        torch.testing.assert_close(result.grads[name], grad, rtol=1e-6, atol=1e-8)


REFUSED = {
    "R33 None": (lambda at, x: None, r"Layer 1 \(Does\) returned None, but a layer hands on a tensor"),
    "R33 a number": (lambda at, x: 3, r"Layer 1 \(Does\) returned an int, but a layer hands on a tensor"),
    "R33 a dictionary of numbers": (lambda at, x: {"a": 1}, r"Layer 1 \(Does\) returned a dict without a tensor"),
    "R39 a sparse tensor": (
        lambda at, x: x.to_sparse(),
        r"Layer 1 \(Does\) .* a torch\.sparse_coo tensor cannot .* to_dense\(\)",
    ),
    "R39 a quantized tensor": (
        lambda at, x: torch.quantize_per_tensor(x.float(), 0.1, 0, torch.qint8),
        r"Layer 1 \(Does\) .* cannot cross",
    ),
    "R39 a nested tensor": (lambda at, x: torch.nested.nested_tensor([x[0], x[1, :2]]), r"Layer 1 \(Does\) .* pad it"),
}


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("case", REFUSED)
def test_what_cannot_cross_is_refused_before_a_rank_starts(case: str, monkeypatch: pytest.MonkeyPatch) -> None:
    work, sentence = REFUSED[case]
    model = [nn.Linear(4, 3).double(), Does(work), nn.Identity()]
    with no_rank_starts(monkeypatch), pytest.raises(ValueError, match=sentence):
        pp.run("gpipe", model, *rows_of(4), p=3, m=2, loss_fn=F.cross_entropy)


# extras: what layers get beside the data


class Masked(nn.Module):
    """Takes a mask by name, and may do without a shift."""

    def __init__(self, width: int = 5) -> None:
        super().__init__()
        self.inner = nn.Linear(width, width)

    def forward(self, x: Tensor, mask: Tensor, shift: Any = 0.0) -> Tensor:
        return torch.where(mask, self.inner(x).tanh(), x) + shift


def masked() -> nn.Sequential:
    return seeded(
        lambda: nn.Sequential(nn.Linear(4, 5), Masked(), nn.LayerNorm(5), Masked(), Masked(), nn.Linear(5, 3))
    )


ROWS = 17
MASK = torch.rand(ROWS, 5, generator=torch.Generator().manual_seed(3)) > 0.5
EXTRAS: dict[str, dict[str, Any]] = {
    "R28 a mask of the whole batch": {"mask": MASK},
    "R30 a mask of one row": {"mask": MASK[:1]},
    "R30 a mask without rows": {"mask": MASK[0]},
    "R30 a number": {"mask": MASK, "shift": 3},
    "R30 a number of every row": {"mask": MASK, "shift": torch.linspace(-1, 1, ROWS, dtype=torch.float64)[:, None]},
}


@every_plan
@pytest.mark.parametrize("case", EXTRAS)
def test_layers_get_their_extras_row_by_row_or_whole(case: str, plan: pp.Schedule) -> None:
    options = {"extras": EXTRAS[case], "recompute": plan.name == "1f1b"}
    assert_as_unsplit(plan, masked(), *rows_of(ROWS), **options)


def test_case_R28_a_mask_of_other_rows_is_noticed() -> None:  # noqa: N802
    inputs, targets = rows_of(ROWS)
    losses = {
        pp.run("1f1b", masked(), inputs, targets, p=2, m=4, loss_fn=F.cross_entropy, extras={"mask": mask}).loss
        for mask in (MASK, MASK.roll(1, 0), MASK.flip(0))
    }
    assert len(losses) == 3


class Attends(nn.Module):
    """Rows of tokens; `causal` is not about rows."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.TransformerEncoderLayer(4, 2, 8, dropout=0.0, batch_first=True)

    def forward(self, x: Tensor, causal: Tensor, padding: Tensor | None = None) -> Tensor:
        return self.inner(x, causal, padding)


@pytest.mark.parametrize("m", [2, 6])
def test_case_R30_what_is_whole_is_not_split_though_it_is_as_long_as_the_batch(m: int) -> None:  # noqa: N802
    model = seeded(lambda: nn.Sequential(nn.Embedding(9, 4), Attends(), Attends(), nn.Linear(4, 9)))
    tokens = torch.randint(9, (6, 6), generator=torch.Generator().manual_seed(0))
    causal = torch.ones(6, 6, dtype=torch.bool).triu(1)
    extras = {"causal": pp.Whole(causal), "padding": torch.arange(6) >= torch.tensor([[6], [5], [4], [6], [3], [2]])}
    options: dict[str, Any] = {"loss_fn": text_loss, "extras": extras}
    result = pp.run("zb-h1", model, tokens, tokens.flip(0), p=2, m=m, **options)
    assert_same(result, pp.reference_step(model, tokens, tokens.flip(0), **options))


def text_loss(logits: Tensor, targets: Tensor) -> Tensor:
    return F.cross_entropy(logits.flatten(0, 1), targets.flatten())


def test_case_R28_pytorchs_own_layers_take_masks_by_name() -> None:  # noqa: N802
    layer = lambda: nn.TransformerEncoderLayer(4, 2, 8, dropout=0.0, batch_first=True)  # noqa: E731
    model = seeded(lambda: nn.Sequential(nn.Embedding(9, 4), layer(), layer(), nn.Linear(4, 9)))
    tokens = torch.randint(9, (5, 6), generator=torch.Generator().manual_seed(0))
    padding = torch.arange(6) >= torch.tensor([[6], [5], [4], [3], [2]])
    options: dict[str, Any] = {"loss_fn": text_loss, "extras": {"src_key_padding_mask": padding}}
    result = pp.run("1f1b", model, tokens, tokens, p=4, m=2, **options)
    assert_same(result, pp.reference_step(model, tokens, tokens, **options))
    unmasked = pp.reference_step(model, tokens, tokens, loss_fn=text_loss)
    assert abs(unmasked.loss - result.loss) > 1e-6


@pytest.mark.parametrize("name", ["gpipe", "zb-v", "dualpipe"])
def test_evaluation_takes_extras(name: str) -> None:
    inputs, targets = rows_of(ROWS)
    plan = pp.build(name, 2, 4)
    for given, m in ((targets, plan.num_microbatches), (None, plan.num_microbatches)):
        options = {"loss_fn": F.cross_entropy} if given is not None else {}
        result = pp.evaluate(plan, masked(), inputs, given, m=m, extras={"mask": MASK}, **options)
        value = inputs
        for layer in masked():
            value = layer(value, mask=MASK) if isinstance(layer, Masked) else layer(value)
        torch.testing.assert_close(result.outputs, value.detach(), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("name", ["1f1b", "dualpipe"])
def test_training_takes_extras_with_every_batch(name: str) -> None:
    batches = [(*rows_of(rows, seed=rows), {"mask": MASK[:rows]}) for rows in (9, 12, 17)]
    options: dict[str, Any] = {"loss_fn": F.cross_entropy, "optimizer": torch.optim.SGD, "progress": False}
    training = pp.train(pp.build(name, 2, 4), masked(), batches, steps=3, **options)
    model, losses = masked(), []
    for inputs, targets, extras in batches:
        step = pp.reference_step(model, inputs, targets, loss_fn=F.cross_entropy, extras=extras)
        losses.append(step.loss)
        with torch.no_grad():
            for key, weight in model.named_parameters():
                weight -= 1e-3 * step.grads[key]
    assert training.losses == pytest.approx(losses, rel=1e-12)
    for key, weight in model.named_parameters():
        torch.testing.assert_close(training.state_dict[key], weight.detach(), rtol=1e-10, atol=1e-13)


WRONG_EXTRAS: dict[str, tuple[Any, str]] = {
    "R28 a name that no layer takes": ({"mask": MASK, "maks": MASK}, r"No layer takes the extra 'maks' .* mask, shift"),
    "R28 a name that is missing": ({}, r"Layer 1 \(Masked\) cannot do without 'mask'; give it as extras="),
    "R28 no names": (MASK, r"extras is a Tensor, but it must be a dict by names"),
    "R28 the data's own name": ({"mask": MASK, "x": MASK}, r"No layer takes the extra 'x'"),
    "R28 something that is trained": (
        {"mask": MASK, "shift": torch.ones(5, requires_grad=True)},
        r"The extra 'shift' requires a gradient, but extras are data",
    ),
}


@pytest.mark.parametrize("case", WRONG_EXTRAS)
def test_wrong_extras_are_refused_before_a_rank_starts(case: str, monkeypatch: pytest.MonkeyPatch) -> None:
    extras, sentence = WRONG_EXTRAS[case]
    inputs, targets = rows_of(ROWS)
    options: dict[str, Any] = {"loss_fn": F.cross_entropy, "extras": extras}
    training: dict[str, Any] = {"loss_fn": F.cross_entropy, "optimizer": torch.optim.SGD, "steps": 1, "p": 2, "m": 2}
    with no_rank_starts(monkeypatch):
        for step in (
            lambda: pp.run("gpipe", masked(), inputs, targets, p=2, m=2, **options),
            lambda: pp.evaluate("gpipe", masked(), inputs, targets, p=2, m=2, **options),
            lambda: pp.reference_step(masked(), inputs, targets, **options),
            lambda: pp.train("gpipe", masked(), [(inputs, targets, extras)], **training),
        ):
            with pytest.raises(ValueError, match=sentence):
                step()


class Inverts(nn.Module):
    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        return torch.where(mask.logical_not_(), x, 0.0)


def test_case_R30_a_layer_must_not_write_into_an_extra() -> None:  # noqa: N802
    """The next microbatch, on the same rank, would find it as the one before left it."""
    model = [nn.Linear(4, 5).double(), Inverts(), nn.Linear(5, 3).double()]
    options: dict[str, Any] = {"loss_fn": F.cross_entropy, "extras": {"mask": MASK[0].clone()}}
    with pytest.raises(pp.RankError, match=r"Layer 1 \(Inverts\) writes into an extra, which other layers"):
        pp.run("gpipe", model, *rows_of(4), p=2, m=2, **options)
    with pytest.raises(ValueError, match=r"Layer 1 \(Inverts\) writes into an extra"):
        pp.reference_step(model, *rows_of(4), **options)


def test_an_extra_that_cannot_travel_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    with no_rank_starts(monkeypatch), pytest.raises(ValueError, match=r"^extras cannot travel to a rank"):
        pp.run("gpipe", masked(), *rows_of(4), p=2, m=2, loss_fn=F.cross_entropy, extras={"mask": open(__file__)})  # noqa: SIM115


# how many rows


@pytest.mark.parametrize("p", [2, 3])
def test_case_R17_microbatches_of_three_three_and_two_rows(p: int) -> None:  # noqa: N802
    for name in ("gpipe", "zb-h2", "interleaved"):
        for options in ({}, {"weight": counted}):
            assert_as_unsplit(pp.build(name, p, 3), classifier(), *rows_of(8, ignored=1 if options else 0), **options)


SIZES = {
    "R20 8 then 4": (8, 4),
    "R20 4 then 8": (4, 8),
    "R20 a last batch of fewer rows than microbatches": (8, 3),
    "R20 one row between": (8, 1, 8, 5),
}


@pytest.mark.parametrize("plan", [("1f1b", 3, 4), ("zb-h1", 2, 4), ("zb-v", 2, 4), ("dualpipe", 2, 4)], ids=str)
@pytest.mark.parametrize("case", SIZES)
def test_batches_of_other_sizes(case: str, plan: tuple[str, int, int]) -> None:
    batches = [rows_of(rows, seed=rows) for rows in SIZES[case]]
    options: dict[str, Any] = {"loss_fn": F.cross_entropy, "optimizer": torch.optim.SGD, "progress": False}
    training = pp.train(pp.build(*plan), classifier(), batches, steps=9, **options)
    model, losses = classifier(), []
    for inputs, targets in batches:
        step = pp.reference_step(model, inputs, targets, loss_fn=F.cross_entropy)
        losses.append(step.loss)
        with torch.no_grad():
            for key, weight in model.named_parameters():
                weight -= 1e-3 * step.grads[key]
    assert training.losses == pytest.approx(losses, rel=1e-12)
    for key, weight in model.named_parameters():
        torch.testing.assert_close(training.state_dict[key], weight.detach(), rtol=1e-10, atol=1e-13)
    assert len(training.timeline.spans) == sum(len(row) for row in pp.build(*plan).rows) * min(SIZES[case][-1], 4) // 4


def two_then(end: Any) -> Any:
    yield from (rows_of(4), rows_of(5))
    if isinstance(end, Exception):
        raise end
    yield end


class MineError(Exception):
    pass


@pytest.mark.parametrize(
    ("end", "kind"),
    [
        pytest.param((torch.ones(0, 4).double(), torch.ones(0)), ValueError, id="R20 no rows"),
        pytest.param((*rows_of(4), {"mask": MASK}), ValueError, id="R20 wrong extras"),
        pytest.param(torch.ones(4), ValueError, id="R20 no pair"),
        pytest.param(MineError("disk"), MineError, id="R20 an error of the caller's own"),
    ],
)
def test_a_later_batch_that_cannot_be_used_does_not_lose_the_training(end: Any, kind: type[Exception]) -> None:
    options: dict[str, Any] = {"loss_fn": F.cross_entropy, "optimizer": torch.optim.SGD, "progress": False, "p": 2}
    with pytest.raises(kind) as caught:
        pp.train("1f1b", classifier(), two_then(end), m=2, steps=9, **options)
    expected = pp.train("1f1b", classifier(), [rows_of(4), rows_of(5)], m=2, steps=2, **options)
    saved = caught.value.training
    assert saved.losses == expected.losses
    for key, value in expected.state_dict.items():
        assert torch.equal(saved.state_dict[key], value)
    assert "2" in caught.value.__notes__[0]
