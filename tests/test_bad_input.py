"""What cannot work is refused before any rank starts, in one sentence: what is wrong, the rule, what would do."""

import functools
import re
from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from toys import by_value, classifier, no_rank_starts, rows_of

import ppcourse as pp

by_value(__name__)


class Float(nn.Module):
    def forward(self, x: Tensor) -> float:
        return float(x.sum())


class Nothing(nn.Module):
    def forward(self, x: Tensor) -> None:
        """A learner who forgot to return."""


class Strings(nn.Module):
    def forward(self, x: Tensor) -> tuple[str, int]:
        return "x", 1


def many_numbers(logits: Tensor, targets: Tensor) -> Tensor:
    return F.cross_entropy(logits, targets, reduction="none")


def plain_number(logits: Tensor, targets: Tensor) -> float:
    return 1.0


MODEL = classifier()
INPUTS, TARGETS = rows_of(8)
LAYERS = "Layer 1 of the model is a function, but a layer is an nn.Module."
OVER = "take at most 6 stages, or a model of more layers"

CASES: dict[str, tuple[dict[str, Any], list[str]]] = {
    # how many
    "p is 0": ({"p": 0}, ["p, the number of ranks, is 0", "at least 1"]),
    "p is negative": ({"p": -2}, ["p, the number of ranks, is -2", "at least 1"]),
    "p is half a rank": ({"p": 1.5}, ["p, the number of ranks, is 1.5", "whole number"]),
    "p is True": ({"p": True}, ["p, the number of ranks, is True", "whole number"]),
    "m is 0": ({"m": 0}, ["m, the number of microbatches, is 0", "at least 1"]),
    "m is a word": ({"m": "four"}, ["m, the number of microbatches, is 'four'", "whole number"]),
    "v is 2": ({"v": 2}, ["v is 2", "gpipe has one stage a rank", "leave v out"]),
    "weights have no shape": ({"model": [*MODEL, nn.LazyLinear(3)]}, ["Layer 6 (LazyLinear)", "no shape yet", "once"]),
    "more ranks than layers": ({"p": 7}, ["7 stages", "6 layers", OVER]),
    "a model without layers": ({"model": []}, ["no layer"]),
    "fewer rows than microbatches": ({"m": 9}, ["8 rows", "9 microbatches", "take m from 1 to 8"]),
    # the plan
    "an unknown schedule": ({"plan": "gpie"}, ["no schedule 'gpie'", "naive, gpipe, 1f1b", "Did you mean 'gpipe'?"]),
    "an unknown schedule, p and m forgotten": (
        {"plan": "zigzag", "p": None, "m": None},
        ["no schedule 'zigzag'", "naive, gpipe, 1f1b"],
    ),
    "a name without p": ({"p": None}, ["'gpipe' is a schedule's name", "p=4, m=8"]),
    "a name without m": ({"m": None}, ["'gpipe' is a schedule's name", "p=4, m=8"]),
    "rows in an order that cannot be": (
        {"plan": ["0B0 0F0", "1F0 1B0"], "p": None, "m": None},
        ["Rank 0 runs 0B0 at position 0, but needs 0F0 for it, at position 1."],
    ),
    "rows that wait for each other": (
        {"plan": ["0F0 0B0 0F1 0B1", "1F1 1B1 1F0 1B0"], "p": None, "m": None},
        ["Deadlock: rank 0 stands at 0B0 and waits for 1B0", "rank 1 stands at 1F1 and waits for 0F1"],
    ),
    "rows in which something is missing": (
        {"plan": ["0F0 0B0", "1F0"], "p": None, "m": None},
        ["Nobody runs 1B0", "rank 1 should"],
    ),
    "rows with a slip of the pen": (
        {"plan": ["0F0 0X0"], "p": None, "m": None},
        ["rank 0, position 1: '0X0' is not an action", "as in 2F0"],
    ),
    "one row of text with a slip": ({"plan": "0F0 0X0", "p": None, "m": None}, ["'0X0' is not an action"]),
    "no rows": ({"plan": [], "p": None, "m": None}, ["The plan is empty", "`0F0 0B0`"]),
    "no plan": ({"plan": None}, ["plan is None", "Schedule", "'gpipe'|the name of one"]),
    # the model
    "a model that is one layer": (
        {"model": nn.Linear(4, 3)},
        ["The model is a Linear", "nn.Sequential", "list of layers"],
    ),
    "a model that is a function": (
        {"model": plain_number},
        ["The model is a function", "nn.Sequential", "list of layers"],
    ),
    "no model": ({"model": None}, ["The model is ", "None", "nn.Sequential"]),
    "a layer that is a function": (
        {"model": [MODEL, torch.tanh]},
        ["Layer 1 of the model is a builtin_function_or_method"],
    ),
    "a layer that is a class": ({"model": [MODEL, nn.Tanh]}, ["Layer 1 of the model is ", "nn.Module"]),
    "a layer that returns a number": (
        {"model": [MODEL, Float()]},
        ["Layer 1 (Float) returned a float", "a layer hands on a tensor"],
    ),
    "a layer that returns nothing": (
        {"model": [MODEL, Nothing(), nn.Tanh()]},
        ["Layer 1 (Nothing) returned None", "a layer hands on a tensor"],
    ),
    "a layer that returns a tuple without tensors": (
        {"model": [MODEL, Strings()]},
        ["Layer 1 (Strings) returned a tuple without a tensor", "a layer hands on a tensor"],
    ),
    # the partition
    "an unknown partition": ({"partition": "evenly"}, ["no partition 'evenly'", "uniform, parameters"]),
    "a partition for other layers": ({"partition": (3, 4)}, ["(3, 4)", "6 layers into 2 stages", "(3, 3) does"]),
    "a partition for other stages": ({"partition": [2, 2, 2]}, ["(2, 2, 2)", "6 layers into 2 stages", "(3, 3) does"]),
    "a partition with an empty stage": ({"partition": (6, 0)}, ["(6, 0)", "at least one", "(3, 3) does"]),
    "a partition that is a number": ({"partition": 3}, ["partition", "6 layers into 2 stages", "(3, 3) does"]),
    "a partition of halves": ({"partition": (2.5, 3.5)}, ["(2.5, 3.5)", "(3, 3) does"]),
    # the batch
    "targets of another length": ({"targets": TARGETS[:7]}, ["targets have 7 rows", "inputs have 8"]),
    "inputs that are no tensor": ({"inputs": [1, 2, 3]}, ["inputs hold no tensor", "dimension 0"]),
    "inputs without rows": ({"inputs": torch.tensor(1.0)}, ["inputs hold no tensor with rows", "dimension 0"]),
    "inputs of several lengths": (
        {"inputs": (INPUTS, INPUTS[:5])},
        ["inputs hold tensors with 8 and with 5 rows", "the same number"],
    ),
    "no targets": ({"targets": None}, ["targets hold no tensor"]),
    # the loss
    "a loss that is no function": ({"loss_fn": "mse"}, ["loss_fn is 'mse'", "a function", "cross_entropy"]),
    "a loss that is many numbers": ({"loss_fn": many_numbers}, ["loss_fn returned a tensor of shape (", "one number"]),
    "a loss that is no tensor": ({"loss_fn": plain_number}, ["loss_fn returned a float", "one number"]),
    "a reduction nobody knows": ({"reduction": "median"}, ["reduction is 'median'", "'mean' or by 'sum'"]),
    "a loss function with no reduction": (
        {"loss_fn": nn.CrossEntropyLoss(reduction="none")},
        ["reduction is 'none'", "'mean' or by 'sum'"],
    ),
    "a partial with no reduction": (
        {"loss_fn": functools.partial(F.cross_entropy, reduction="none")},
        ["reduction is 'none'", "'mean' or by 'sum'"],
    ),
    "weights that add up to nothing": ({"weight": lambda target: 0.0}, ["weight gives [0.0, 0.0]", "above 0"]),
    "a weight that is no function": ({"weight": 2.0}, ["weight is 2.0", "a function"]),
    # the options
    "a pace that is a number": ({"pace": 0.01}, ["pace is 0.01", "Costs in seconds", "Costs(forward=0.01)"]),
    "a pace for other stages": (
        {"pace": pp.Costs(forward=[0.1] * 3)},
        ["forward has 3 numbers for 2 stages", "give 2"],
    ),
    "no time": ({"timeout": 0}, ["timeout is 0", "seconds above 0", "60"]),
    "time that is a word": ({"timeout": "long"}, ["timeout is 'long'", "seconds above 0", "60"]),
    "time that is nothing": ({"timeout": None}, ["timeout is None", "seconds above 0", "60"]),
    "a seed that is a word": ({"seed": "lucky"}, ["seed is 'lucky'", "whole number", "0"]),
    "a seed that is True": ({"seed": True}, ["seed is True", "whole number", "0"]),
    "a link that is not there": ({"link": "nccl"}, ["p=2 needs 2 GPUs for NCCL", "found 0", "take device='cpu'"]),
    "a link that nobody knows": ({"link": "mpi"}, ["link is 'mpi'", "'nccl' or 'staged'", "'shared' or 'gloo'"]),
    "a device that is not there": ({"device": "cuda"}, ["device is 'cuda'", "no GPU was found", "say device='cpu'"]),
}


@pytest.mark.parametrize("case", CASES)
def test_is_refused_in_one_sentence_before_a_rank_starts(case: str, monkeypatch: pytest.MonkeyPatch) -> None:
    wrong, parts = CASES[case]
    options: dict[str, Any] = {
        "plan": "gpipe",
        "model": MODEL,
        "inputs": INPUTS,
        "targets": TARGETS,
        "loss_fn": F.cross_entropy,
        "p": 2,
        "m": 2,
    } | wrong
    with no_rank_starts(monkeypatch), pytest.raises(ValueError) as caught:  # noqa: PT011 - its parts are looked at
        pp.run(**options)
    sentence = str(caught.value)
    assert "\n" not in sentence
    assert sentence[-1] in ".?"
    assert len(sentence) < 300
    for part in parts:
        assert any(choice in sentence for choice in part.split("|")), f"{part!r} is not in: {sentence}"


DISAGREE: dict[str, tuple[dict[str, Any], str]] = {
    "m": ({"plan": pp.build("gpipe", 2, 4), "m": 2}, "m is 2, but the plan gpipe has m = 4; leave m out."),
    "p": ({"plan": pp.build("1f1b", 2, 4), "p": 3}, "p is 3, but the plan 1f1b has p = 2; leave p out."),
    "v": ({"plan": ["0F0 1F0 1B0 0B0"], "v": 1}, "v is 1, but the plan mine has v = 2; leave v out."),
}


@pytest.mark.parametrize("count", DISAGREE)
def test_case_R21_counts_that_disagree_with_the_plan_are_both_named(  # noqa: N802
    count: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    options, sentence = DISAGREE[count]
    with no_rank_starts(monkeypatch), pytest.raises(ValueError, match=f"^{re.escape(sentence)}$"):
        pp.run(model=MODEL, inputs=INPUTS, targets=TARGETS, loss_fn=F.cross_entropy, **options)


@pytest.mark.parametrize("kind", [nn.Sequential, list, tuple])
def test_a_model_may_be_a_sequential_a_list_or_a_tuple(kind: Any) -> None:
    layers = list(classifier())
    model = nn.Sequential(*layers) if kind is nn.Sequential else kind(layers)
    expected = pp.reference_step(model, INPUTS, TARGETS, loss_fn=F.cross_entropy).loss
    result = pp.run("gpipe", model, INPUTS, TARGETS, p=2, m=2, loss_fn=F.cross_entropy)
    assert result.loss == pytest.approx(expected)


@pytest.mark.parametrize(
    "plan", ["0F0 0F1 0B0 0B1", "0F0 0B0 # first\n\n0F1 0B1"[:7], [["0F0", pp.Action(0, pp.Op.B, 0)]]]
)
def test_a_plan_of_one_rank_may_be_text_or_rows(plan: Any) -> None:
    result = pp.run(plan, classifier(), INPUTS, TARGETS, loss_fn=F.cross_entropy)
    assert result.loss == pytest.approx(pp.reference_step(MODEL, INPUTS, TARGETS, loss_fn=F.cross_entropy).loss)


def test_ops_may_be_letters_in_a_plan_of_ones_own() -> None:
    plan = pp.build("zb-h1", p=2, m=2)
    letters = replace(plan, rows=tuple(tuple(action._replace(op=action.op.value) for action in r) for r in plan.rows))
    results = [pp.run(each, classifier(), INPUTS, TARGETS, loss_fn=F.cross_entropy) for each in (plan, letters)]
    assert results[0].loss == results[1].loss
    assert all(torch.equal(grad, results[1].grads[name]) for name, grad in results[0].grads.items())


def mask_loss(output: tuple[Tensor, Tensor], targets: Tensor) -> Tensor:
    mask, x = output
    return ((x * mask).sum(1) - targets).pow(2).mean()


class Both(nn.Linear):
    def __init__(self) -> None:
        super().__init__(4, 4)

    def forward(self, given: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
        mask, x = given
        return mask, super().forward(x)


def test_a_mask_for_all_rows_may_come_first() -> None:
    inputs = (torch.tensor([[1.0, 0.0, 1.0, 0.0]]), INPUTS)
    model = [Both().double(), nn.Identity()]
    result = pp.run("gpipe", model, inputs, TARGETS.double(), p=2, m=3, loss_fn=mask_loss)
    expected = pp.reference_step(model, inputs, TARGETS.double(), loss_fn=mask_loss)
    assert result.loss == pytest.approx(expected.loss)


def test_a_partition_by_parameters_gives_the_largest_stage_the_fewest() -> None:
    model = [nn.Linear(4, 4), nn.Linear(4, 100), nn.Linear(100, 3)]
    result = pp.run(
        "gpipe", model, INPUTS.float(), TARGETS, p=2, m=2, loss_fn=F.cross_entropy, partition="parameters", memory=True
    )
    assert result.peak_bytes is not None
    by_hand = pp.run(
        "gpipe", model, INPUTS.float(), TARGETS, p=2, m=2, loss_fn=F.cross_entropy, partition=(2, 1), memory=True
    )
    assert result.peak_bytes == by_hand.peak_bytes


def test_reference_step_refuses_in_the_same_words() -> None:
    with pytest.raises(ValueError, match=r"^The batch has no rows; 2 microbatches need at least 2 of them"):
        pp.reference_step(MODEL, INPUTS[:0], TARGETS[:0], loss_fn=F.cross_entropy, m=2)
    with pytest.raises(ValueError, match=r"^The batch has 8 rows, too few for 9 microbatches"):
        pp.reference_step(MODEL, INPUTS, TARGETS, loss_fn=F.cross_entropy, m=9)
    with pytest.raises(ValueError, match=r"m, the number of microbatches, is 0"):
        pp.reference_step(MODEL, INPUTS, TARGETS, loss_fn=F.cross_entropy, m=0)
    with pytest.raises(ValueError, match=r"^seed is 'lucky'; it must be a whole number, for example 0\.$"):
        pp.reference_step(MODEL, INPUTS, TARGETS, loss_fn=F.cross_entropy, seed="lucky")  # type: ignore[arg-type]
