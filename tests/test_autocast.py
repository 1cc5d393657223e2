"""What the caller has set around a run, its autocast and whether gradients are on, is so for the ranks."""

import copy
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from toys import by_value, classifier, linear, rows_of

import ppcourse as pp
from ppcourse.runtime.stages.autocast import here, outside, within

by_value(__name__)


class Notes(nn.Module):
    """Hands on what it gets, in single precision where autocast is on, else in the type it has."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = linear(3, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = self.inner(x)
        assert x.dtype is (torch.get_autocast_dtype("cpu") if torch.is_autocast_enabled("cpu") else torch.float32)
        return x


def model() -> nn.Sequential:
    return nn.Sequential(*copy.deepcopy(classifier()), Notes()).float()


def plain(inputs: Tensor, targets: Tensor, m: int, **casts: Any) -> tuple[float, dict[str, Tensor]]:
    """By PyTorch alone: forward inside, backward outside."""
    whole, total = model(), 0.0
    for x, y in zip(inputs.tensor_split(m), targets.tensor_split(m), strict=True):
        with torch.autocast("cpu", **casts):
            loss = F.cross_entropy(whole(x), y) * (len(x) / len(inputs))
        loss.backward()
        total += float(loss.detach())
    return total, {name: weight.grad for name, weight in whole.named_parameters()}


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("name", "dtype", "recompute"),
    [("1f1b", torch.bfloat16, False), ("1f1b", torch.float16, True), ("zb-v", torch.bfloat16, True)],
    ids=str,
)
def test_a_run_inside_autocast_casts_on_its_ranks(name: str, dtype: torch.dtype, recompute: bool) -> None:
    inputs, targets = rows_of(8)
    inputs, plan = inputs.float(), pp.build(name, 2, 4)
    with torch.autocast("cpu", dtype):
        result = pp.run(plan, model(), inputs, targets, loss_fn=F.cross_entropy, recompute=recompute)
        reference = pp.reference_step(model(), inputs, targets, loss_fn=F.cross_entropy, m=4)
    loss, grads = plain(inputs, targets, 4, dtype=dtype)
    for one in (result, reference):
        assert one.loss == pytest.approx(loss, rel=1e-6)
        for key, grad in grads.items():
            torch.testing.assert_close(
                one.grads[key], grad, rtol=0.03, atol=3e-4
            )  # sums of half precision, in another order
    whole = plain(inputs, targets, 4, dtype=dtype, enabled=False)[0]
    assert abs(result.loss - whole) > 1e-5  # it is not what comes without


def test_evaluation_inside_autocast_casts_too() -> None:
    inputs = rows_of(8)[0].float()
    with torch.autocast("cpu", torch.bfloat16):
        outputs = pp.evaluate("gpipe", model(), inputs, p=2, m=2).outputs
        expected = model()(inputs)
    assert outputs.dtype is torch.bfloat16
    torch.testing.assert_close(outputs, expected.detach())


def test_what_is_on_here_is_on_there_for_its_own_device_only() -> None:
    assert here() == ()
    with torch.autocast("cpu", torch.float16, cache_enabled=False):
        (cast,) = casts = here()
        with outside():
            assert here() == ()
    assert cast == ("cpu", torch.float16, False)
    with within(casts):
        assert here() == casts
    with within(casts, "cuda:1"):
        assert here() == ()


def test_a_caller_without_gradients_still_gets_those_of_a_step() -> None:
    inputs, targets = rows_of(8)
    expected = pp.reference_step(classifier(), inputs, targets, loss_fn=F.cross_entropy).grads
    with torch.no_grad():
        for step in (
            pp.run("gpipe", classifier(), inputs, targets, loss_fn=F.cross_entropy, p=2, m=2),
            pp.reference_step(classifier(), inputs, targets, loss_fn=F.cross_entropy),
        ):
            for name, grad in expected.items():
                torch.testing.assert_close(step.grads[name], grad, rtol=1e-10, atol=1e-13)
