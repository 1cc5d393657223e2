"""What lies in one memory before a cut lies in one memory after it, and a write that is unsafe is refused."""

import copy
import functools
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from toys import Does, assert_as_plain, assert_same, by_value, classifier, linear, no_rank_starts, rows_of

import ppcourse as pp
from ppcourse.runtime.values import wire
from ppcourse.runtime.values.handed_on import tensors_of
from ppcourse.runtime.values.together import Bundle, bundled, copied, unbundled

by_value(__name__)


def across(value: Any) -> Any:
    """As another rank gets it."""
    return unbundled(wire.unpack(wire.pack(bundled(value))))


def base() -> Tensor:
    return torch.arange(12, dtype=torch.float64).view(3, 4)


def of(x: Tensor, *views: Callable[[Tensor], Tensor]) -> tuple[Tensor, ...]:
    return tuple(view(x) for view in views)


def both(x: Tensor, *views: Callable[[Tensor], Tensor]) -> tuple[Tensor, ...]:
    return x, *of(x, *views)


TOGETHER: dict[str, Callable[[], Any]] = {
    "the same twice": lambda: both(base(), lambda x: x),
    "a view and what it is of": lambda: both(base(), lambda x: x[:, :2], lambda x: x.t()[1:]),
    "two views that overlap": lambda: of(base(), lambda x: x[:2], lambda x: x[1:, ::2]),
    "in a dictionary": lambda: (lambda x: {"a": x, "b": [3, None, x[1]]})(base()),
    "other types": lambda: both(base(), lambda x: x.view(torch.int32), lambda x: x.view(torch.uint8)[1]),
    "one byte aside": lambda: of(torch.arange(40, dtype=torch.uint8), lambda x: x[3:9], lambda x: x[5:]),
    "complex and its parts": lambda: both(
        torch.complex(base(), base() + 1), torch.view_as_real, lambda z: z.real, lambda z: z.conj(), lambda z: z.mH.imag
    ),
    "expanded": lambda: both(base()[:, :1], lambda x: x.expand(3, 5)),
    "detached": lambda: both(base().requires_grad_(), lambda x: x.detach(), lambda x: x[0].detach()),
    "no dimensions": lambda: both(torch.tensor(3.0), lambda x: x.view(1)),
}


@pytest.mark.parametrize("move", [across, copied], ids=["across", "copied"])
@pytest.mark.parametrize("case", TOGETHER)
def test_a_write_is_seen_in_all_that_lie_together(case: str, move: Callable[[Any], Any]) -> None:
    given, spare = TOGETHER[case](), TOGETHER[case]()
    came = move(given)
    assert isinstance(bundled(given), Bundle)
    for one, other in zip(tensors_of(came), tensors_of(given), strict=True):
        assert (one.dtype, one.shape, one.requires_grad) == (other.dtype, other.shape, other.requires_grad)
        assert torch.equal(one, other)
    for number in range(len(tensors_of(given))):
        mine, theirs = tensors_of(came), tensors_of(given)
        before = [x._version for x in mine]
        for x in (mine[number], theirs[number]):
            with torch.no_grad():
                x.view(-1)[:1].add_(number + 1) if x.is_contiguous() else x[..., -1].mul_(2)
        assert all(torch.equal(one, other) for one, other in zip(mine, theirs, strict=True))
        for now, old, one in zip(mine, before, theirs, strict=True):
            lies = one.untyped_storage().data_ptr() == theirs[number].untyped_storage().data_ptr()
            assert (now._version > old) == lies  # autograd must notice, as it would without a cut
    assert all(torch.equal(x, y) for x, y in zip(tensors_of(spare), tensors_of(TOGETHER[case]()), strict=True))


APART: dict[str, Callable[[], Any]] = {
    "one tensor": base,
    "nothing in common": lambda: (base(), base()),
    "parts side by side": lambda: tuple(base().chunk(3, 0)),
    "few between many": lambda: of(torch.zeros(100, 100), lambda x: x[:, ::50], lambda x: x[:, 1::50]),
    "without elements": lambda: both(base(), lambda x: x[:0], lambda x: x[:, 4:]),
}


@pytest.mark.parametrize("case", APART)
def test_what_has_nothing_in_common_crosses_as_it_is(case: str) -> None:
    value = APART[case]()
    assert bundled(value) is value


def test_what_lies_together_takes_no_more_room_than_apart() -> None:
    x = torch.zeros(64, 96)
    together = wire.read_head(wire.pack(bundled(x.chunk(3, dim=1)))).length
    apart = wire.read_head(wire.pack([part.clone() for part in x.chunk(3, dim=1)])).length
    assert together < apart + 500
    assert wire.read_head(wire.pack(bundled((x, x, x[1:])))).length < x.numel() * 4 + 1000


# in runs, against one process that knows nothing of pipelines


first = lambda: Does(lambda at, x: (lambda h: (h, h, h[:, :2]))(at.one(x)), one=linear(4, 3))  # noqa: E731
last = lambda: Does(lambda at, g: at.one(g[0] + g[1].tanh() * g[2].sum(1, keepdim=True)), one=linear(3, 3))  # noqa: E731

READS = Does(lambda at, g: (g[0] * 2, g[1], g[2]))
WRITES = Does(lambda at, g: (g[0].mul_(2), g[1], g[2]))
PARTS = [
    Does(lambda at, x: at.one(x).chunk(3, dim=1), one=linear(4, 9)),
    Does(lambda at, g: (g[0].clone().mul_(2), g[1], g[2])),
    Does(lambda at, g: g[0] + g[1].sin() * g[2]),
    linear(3, 3),
]
WRITTEN_PARTS = [
    Does(lambda at, x: (lambda h: (h[:, :3], h[:, 3:]))(at.one(x)), one=linear(4, 6)),
    Does(lambda at, g: (g[0].mul_(2), g[1])),
    Does(lambda at, g: g[0] + g[1].sin_()),
    linear(3, 3),
]
MASKS = [
    Does(lambda at, x: (lambda mask: (at.one(x), mask, mask[:1]))((x > 0).long()), one=linear(4, 4)),
    nn.Identity(),
    Does(lambda at, g: (g[0], g[1], g[2].add_(3))),
    Does(lambda at, g: at.one(g[0] * g[1])[:, 1:], one=linear(4, 4)),
]
DETACHED = [
    Does(lambda at, x: (lambda h: (h, h.detach()))(at.one(x)), one=linear(4, 4)),
    Does(lambda at, g: (g[0].mul_(2), g[1])),
    Does(lambda at, g: g[0] + g[1].sin()),
    linear(4, 3),
]
RIGHT: dict[str, list[nn.Module]] = {
    "read": [first(), READS, nn.Identity(), last()],
    "written in the stage that made them": [nn.Sequential(first(), WRITES), READS, nn.Identity(), last()],
    "parts, read": PARTS,
    "parts, written": WRITTEN_PARTS,
    "masks, written": MASKS,
    "detached, written": DETACHED,
}
PLANS = {
    "1f1b": pp.build("1f1b", 4, 2),
    "zb-v": pp.build("zb-v", 2, 4),
}


@pytest.mark.thorough
@pytest.mark.parametrize("case", RIGHT)
@pytest.mark.parametrize("name", PLANS)
def test_tensors_in_one_memory_are_as_in_one_process(name: str, case: str) -> None:
    m = PLANS[name].num_microbatches if case == "masks, written" else 1  # of the first row of a microbatch
    for recompute in (False, True):
        assert_as_plain(PLANS[name], RIGHT[case], m, recompute=recompute)


@pytest.mark.parametrize(
    ("name", "between", "recompute"),  # with 1 between, another stage hands on what the first made
    [("1f1b", 0, False), ("1f1b", 1, True), ("zb-v", 0, True), ("zb-v", 1, False)],
)
def test_a_write_that_would_make_gradients_wrong_is_refused(name: str, between: int, recompute: bool) -> None:
    layers = [first(), WRITES, nn.Identity(), last()]
    layers[1:3] = layers[1 + between], layers[2 - between]
    sentence = rf"Layer {1 + between} \(Does\) writes into memory in which two of the .* let the layer clone\("
    with pytest.raises(pp.RankError, match=sentence):
        pp.run(PLANS[name], layers, *rows_of(8), loss_fn=F.cross_entropy, recompute=recompute)


@pytest.mark.parametrize("link", ["shared", "gloo"])
def test_evaluation_has_no_gradients_and_may_write(link: str) -> None:
    layers = [first(), WRITES, nn.Identity(), last()]
    expected = nn.Sequential(*copy.deepcopy(layers))(rows_of(8)[0]).detach()
    outputs = pp.evaluate(PLANS["1f1b"], layers, rows_of(8)[0], link=link).outputs
    torch.testing.assert_close(outputs, expected, rtol=1e-12, atol=1e-12)


# what several microbatches have in common


class Turns(nn.Module):
    """Writes into the mask that came with its data."""

    def forward(self, given: tuple[Tensor, Tensor]) -> Tensor:
        x, mask = given
        return torch.where(mask.logical_not_(), x, 0.0)


def test_a_mask_of_all_microbatches_is_not_written_into() -> None:
    """The next microbatch on that rank would find the mask turned, and one process on the whole batch would not."""
    inputs, targets = rows_of(8)
    mask = torch.tensor([[True, True, False, False]])
    layers, options = [Turns(), *classifier()], {"loss_fn": F.cross_entropy}
    expected = pp.reference_step(layers, (inputs, mask), targets, **options)
    assert mask.tolist() == [[True, True, False, False]]  # the caller's own
    assert_same(pp.reference_step(layers, (inputs, mask), targets, m=4, **options), expected)
    assert_same(pp.run("1f1b", layers, (inputs, mask), targets, p=2, m=1, **options), expected)
    for recompute in (False, True):
        with pytest.raises(pp.RankError, match=r"Layer 0 \(Turns\) writes into a part of the batch that other micro"):
            pp.run("1f1b", layers, (inputs, mask), targets, p=2, m=4, recompute=recompute, **options)


def shifting(logits: Tensor, targets: tuple[Tensor, Tensor]) -> Tensor:
    classes, shift = targets
    return F.cross_entropy(logits + shift.add_(1), classes.add_(1).remainder(3))


def test_targets_that_a_loss_writes_into_are_those_of_one_microbatch() -> None:
    inputs, classes = rows_of(8)
    per_row = classes, torch.arange(24.0).view(8, 3)
    for_all = classes, torch.arange(3.0).view(1, 3)
    options: dict[str, Any] = {"loss_fn": shifting}
    for recompute in (False, True):
        result = pp.run("1f1b", classifier(), inputs, per_row, p=2, m=4, recompute=recompute, **options)
        assert_same(result, pp.reference_step(classifier(), inputs, per_row, **options))
    with pytest.raises(pp.RankError, match="loss_fn writes into a part of the batch that other microbatches get too"):
        pp.run("1f1b", classifier(), inputs, for_all, p=2, m=4, **options)


# weights


def sharing(columns: bool = False) -> list[nn.Module]:
    """Two weights that are parts of one tensor: the second has the first, or the other columns."""
    layers = [linear(4, 4), nn.Tanh(), linear(4, 4), linear(4, 3)]
    both = torch.cat([layers[0].weight.detach(), layers[2].weight.detach()], 1)
    layers[0].weight.data, layers[2].weight.data = both[:, :4], both[:, 4:] if columns else both[:, :4]
    return layers


def trained(partition: tuple[int, ...], layers: list[nn.Module]) -> dict[str, Tensor]:
    options: dict[str, Any] = {"loss_fn": F.cross_entropy, "optimizer": functools.partial(torch.optim.SGD, lr=0.5)}
    options |= {"partition": partition, "progress": False, "p": 2, "m": 2}
    return dict(pp.train("1f1b", layers, [rows_of(8)] * 3, steps=3, **options).state_dict)


@pytest.mark.thorough
@pytest.mark.parametrize("columns", [False, True], ids=["one memory", "side by side"])
def test_weights_in_one_memory_train_as_in_one_process(columns: bool) -> None:
    whole = nn.Sequential(*sharing(columns))  # a deep copy of it would be two tensors
    made = torch.optim.SGD(whole.parameters(), lr=0.5)
    for _ in range(3):
        made.zero_grad()
        F.cross_entropy(whole(rows_of(8)[0]), rows_of(8)[1]).backward()
        made.step()
    for partition in ((3, 1), (1, 3))[: 2 if columns else 1]:
        for name, value in trained(partition, sharing(columns)).items():
            torch.testing.assert_close(value, whole.state_dict()[name], rtol=1e-10, atol=1e-13)


def test_weights_in_one_memory_on_two_ranks_are_refused_before_one_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    with (
        no_rank_starts(monkeypatch),
        pytest.raises(ValueError, match=r"weights 0\.weight and 2\.weight lie in one mem"),
    ):
        trained((2, 2), sharing())
