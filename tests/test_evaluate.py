"""A forward pass on ranks: the outputs and the loss of the model in eval mode, and nothing changed."""

import copy

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from toys import SCHEDULES, by_value, classifier, counted, loss_sum, rows_of

import ppcourse as pp
from ppcourse.schedules.action import Op

by_value(__name__)


def with_state() -> nn.Sequential:
    """Layers that behave otherwise in training, and statistics that are not the initial ones."""
    model = nn.Sequential(*classifier()[:2], nn.BatchNorm1d(5), nn.Dropout(0.5), *classifier()[2:]).double()
    model(rows_of(8, seed=4)[0])
    return model


@pytest.mark.parametrize(("name", "p", "m"), [("naive", 2, 2), ("gpipe", 4, 3), ("1f1b", 3, 5), ("1f1b", 1, 2)])
def test_gives_the_outputs_and_the_loss_of_the_model_in_eval_mode(name: str, p: int, m: int) -> None:
    inputs, targets = rows_of(7)
    model = with_state()
    result = pp.evaluate(name, model, inputs, targets, p=p, m=m, loss_fn=F.cross_entropy)
    expected = copy.deepcopy(model).eval()(inputs).detach()
    torch.testing.assert_close(result.outputs, expected, rtol=1e-12, atol=1e-12)
    assert result.loss == pytest.approx(float(F.cross_entropy(expected, targets)), rel=1e-12)
    assert not result.outputs.requires_grad


def test_needs_neither_targets_nor_a_loss_function() -> None:
    inputs, _ = rows_of(5)
    result = pp.evaluate("gpipe", classifier(), inputs, p=2, m=2)
    torch.testing.assert_close(result.outputs, classifier()(inputs).detach(), rtol=1e-12, atol=1e-12)
    assert result.loss is None


def test_puts_losses_together_as_run_does() -> None:
    inputs, targets = rows_of(7, ignored=1)
    expected = F.cross_entropy(classifier()(inputs), targets).detach()
    result = pp.evaluate("gpipe", classifier(), inputs, targets, p=2, m=3, loss_fn=F.cross_entropy, weight=counted)
    assert result.loss == pytest.approx(float(expected), rel=1e-12)
    result = pp.evaluate("gpipe", classifier(), inputs, targets, p=2, m=3, loss_fn=loss_sum, reduction="sum")
    assert result.loss == pytest.approx(6 * float(expected), rel=1e-12)


def test_leaves_weights_gradients_statistics_and_random_numbers_as_they_were() -> None:
    inputs, targets = rows_of(6)
    model = with_state().train()
    for parameter in model.parameters():
        parameter.grad = torch.ones_like(parameter)
    before, state = copy.deepcopy(model.state_dict()), torch.get_rng_state()
    pp.evaluate("1f1b", model, inputs, targets, p=3, m=2, loss_fn=F.cross_entropy)
    assert torch.equal(torch.get_rng_state(), state)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert all(torch.equal(p.grad, torch.ones_like(p)) for p in model.parameters() if p.grad is not None)
    assert all(module.training for module in model.modules())


@pytest.mark.parametrize("name", SCHEDULES)
def test_runs_the_forwards_of_the_plan_and_nothing_else(name: str) -> None:
    plan = pp.build(name, 2, 3)
    inputs, _ = rows_of(6)
    result = pp.evaluate(plan, classifier(), inputs)
    for rank, row in enumerate(result.timeline.by_rank):
        assert [span.action for span in row] == [action for action in plan.rows[rank] if action.op is Op.F]


def test_takes_a_plan_that_is_forward_only_already() -> None:
    inputs, _ = rows_of(6)
    result = pp.evaluate(pp.forward_only(pp.build("1f1b", 3, 2)), classifier(), inputs)
    torch.testing.assert_close(result.outputs, classifier()(inputs).detach(), rtol=1e-12, atol=1e-12)


def test_a_run_refuses_a_plan_without_backward() -> None:
    with pytest.raises(ValueError, match=r"^The plan gpipe \(forward only\) has no backward; use evaluate\(\)"):
        pp.run(pp.forward_only(pp.build("gpipe", 2, 2)), classifier(), *rows_of(4), loss_fn=F.cross_entropy)


class TwoHeads(nn.Module):
    def forward(self, x: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        return x + 1, {"largest": x.argmax(1), "mean": x.mean(1)}


def test_outputs_that_are_tuples_are_put_together_place_by_place() -> None:
    inputs, _ = rows_of(7)
    first, more = pp.evaluate("gpipe", [classifier(), TwoHeads()], inputs, p=2, m=3).outputs
    logits = classifier()(inputs).detach()
    torch.testing.assert_close(first, logits + 1, rtol=1e-12, atol=1e-12)
    assert torch.equal(more["largest"], logits.argmax(1))
    torch.testing.assert_close(more["mean"], logits.mean(1), rtol=1e-12, atol=1e-12)


class WholeBatch(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x.sum()


def test_an_output_without_rows_is_one_number_a_microbatch() -> None:
    inputs = torch.arange(6.0).unsqueeze(1)
    result = pp.evaluate("gpipe", [nn.Identity(), WholeBatch()], inputs, p=2, m=3)
    assert result.outputs.tolist() == [1.0, 5.0, 9.0]


def test_targets_need_a_loss_function() -> None:
    with pytest.raises(ValueError, match=r"^loss_fn is None, but it must be a function"):
        pp.evaluate("gpipe", classifier(), *rows_of(4), p=2, m=2)
