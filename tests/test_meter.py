"""Live bytes are those that live: exact for a model small enough to count by hand."""

import gc

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from toys import by_value

import ppcourse as pp
from ppcourse.runtime.meter import Between, LiveBytes, Meter

by_value(__name__)
ROWS, WIDTH = 2, 50
ACTIVATION = ROWS * WIDTH * 8  # bytes of one microbatch between two layers, in float64


class Keep(torch.autograd.Function):
    """Doubles, and keeps exactly its output."""

    @staticmethod
    def forward(ctx: torch.autograd.function.FunctionCtx, x: Tensor) -> Tensor:
        y = 2 * x
        ctx.save_for_backward(y)
        return y

    @staticmethod
    def backward(ctx: torch.autograd.function.FunctionCtx, *grads: Tensor) -> Tensor:
        return 2 * grads[0]


class Double(nn.Module):
    """A layer without weights that keeps one tensor, its output."""

    def forward(self, x: Tensor) -> Tensor:
        return Keep.apply(x)


class Scale(nn.Module):
    """The first layer: something has to need a gradient. Keeps its input, which is the batch."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(WIDTH, dtype=torch.float64))

    def forward(self, x: Tensor) -> Tensor:
        return x * self.weight


# the meter itself


def test_counts_a_storage_from_the_operator_that_makes_it_until_it_dies() -> None:
    meter = LiveBytes(nn.Module())
    with meter:
        x = torch.ones(100, dtype=torch.float64)
        y = x * 2
        view = y[10:]
    assert meter.live == 1600
    del x
    assert meter.live == 800
    del y
    assert meter.live == 800  # the view holds it
    del view
    assert (meter.live, meter.peak) == (0, 1600)


def test_counts_a_storage_once_whoever_shares_it() -> None:
    meter = LiveBytes(nn.Module())
    with meter:
        x = torch.zeros(10)
        shared = [x.view(2, 5), x.t(), x.detach(), x[3:]]
    assert meter.live == 40
    meter.watch((x, {"again": shared}))
    assert meter.live == 40


def test_weights_and_buffers_are_alive_and_not_held() -> None:
    model = nn.BatchNorm1d(10).double()
    meter = LiveBytes(model)
    assert meter.live == 4 * 80 + 8  # weight, bias, mean and variance, and an int64 that counts
    meter.boundary()
    assert meter.held == 0


@pytest.mark.thorough
def test_gradients_of_weights_are_alive_and_not_held() -> None:
    model = nn.Linear(10, 10, bias=False).double()
    meter = LiveBytes(model)
    with meter:
        model(torch.ones(1, 10, dtype=torch.float64)).sum().backward()
    gc.collect()
    assert meter.live == 2 * 800
    meter.boundary()
    assert meter.held == 0


@pytest.mark.thorough
def test_gradients_of_weights_are_gradients_whichever_microbatch_made_them() -> None:
    model = nn.Linear(10, 10, bias=False).double()
    meter = LiveBytes(model)
    meter.turn_to((0, 0))
    with meter:
        model(torch.ones(1, 10, dtype=torch.float64)).sum().backward()
    gc.collect()
    meter.boundary(Between(stashed=[(0, 0)]))
    memory = meter.memory()
    assert memory
    assert (memory.kinds["gradients"], memory.kinds["activations"], memory.kinds["parameters"]) == (800, 0, 800)


def test_a_buffer_that_is_replaced_is_still_one_and_nobody_is_taken_for_the_old_one() -> None:
    model = nn.BatchNorm1d(10, affine=False)
    meter = LiveBytes(model)
    meter.turn_to((0, 0))
    with meter:
        model.running_mean = torch.zeros(10)
        others = [torch.zeros(10) for _ in range(20)]
    meter.boundary(Between([(0, 0)]))
    memory = meter.memory()
    assert memory
    assert (memory.kinds["activations"], memory.kinds["parameters"], memory.held) == (20 * 40, 40 + 40 + 8, 20 * 40)
    del others


def test_the_batch_does_not_count_nor_what_is_made_of_it_in_its_place() -> None:
    meter = LiveBytes(nn.Module())
    batch = {0: (torch.zeros(10), [torch.zeros(5)])}
    meter.leave_out(batch)
    with meter:
        view, changed = batch[0][0][2:], batch[0][1][0].add_(1)
    meter.watch(batch)
    assert meter.live == 0
    del batch, view, changed
    with meter:
        others = [torch.zeros(n) for n in (10, 5) * 20]  # nobody of whom lies where the batch lay
    assert meter.live == 4 * 15 * 20
    meter.leave_out(())
    del others


def test_what_is_handed_over_on_a_rank_counts_until_it_is_used() -> None:
    """A gradient whose maker has done its B: nobody else keeps it."""
    meter = LiveBytes(nn.Module())
    meter.turn_to((1, 0))
    with meter:
        gradient = torch.zeros(10)
    for between, found in ((Between([(0, 0)]), 0), (Between([(0, 0)], handed=[[gradient]]), 40)):
        meter.reset()
        meter.boundary(between)
        assert meter.most["activations"] == found


def test_what_was_made_outside_counts_when_it_is_shown() -> None:
    meter, x = LiveBytes(nn.Module()), torch.zeros(10)
    assert meter.live == 0
    meter.watch((1, [x]))
    assert meter.live == 40
    del x
    assert meter.live == 0


def test_reset_starts_the_peak_at_what_is_alive() -> None:
    meter = LiveBytes(nn.Module())
    with meter:
        x = torch.zeros(10)
        torch.zeros(1000)
    meter.boundary()
    assert (meter.peak, meter.held) == (4040, 40)
    meter.reset()
    assert (meter.peak, meter.held, meter.live) == (40, 0, 40)
    del x


def test_nothing_outside_its_block_is_seen() -> None:
    meter = LiveBytes(nn.Module())
    with meter:
        pass
    x = torch.zeros(10)
    assert meter.live == 0
    del x


def test_a_meter_that_is_off_says_nothing() -> None:
    meter = Meter()
    with meter:
        meter.watch(torch.zeros(10))
    meter.boundary()
    assert meter.memory() is None


# on ranks


def measured(name: str, m: int, p: int = 3) -> pp.Timeline:
    """p stages of one weight or none that keep their outputs: bytes a rank holds for a microbatch are known."""
    model = [Scale(), Double(), *[Double() for _ in range(p - 2)]]
    inputs, targets = torch.ones(ROWS * m, WIDTH, dtype=torch.float64), torch.ones(ROWS * m, WIDTH, dtype=torch.float64)
    return pp.run(name, model, inputs, targets, p=p, m=m, loss_fn=F.mse_loss, memory=True)


def test_a_rank_holds_its_bytes_a_microbatch_times_those_in_flight() -> None:
    held = {
        (name, m): measured(name, m).held_bytes for name, m in (("gpipe", 4), ("gpipe", 8), ("1f1b", 4), ("1f1b", 8))
    }
    each = [held["gpipe", 8][rank] - held["gpipe", 4][rank] for rank in range(3)]
    middle = each[1] / 4
    assert middle == held["1f1b", 8][1] / pp.in_flight(pp.build("1f1b", 3, 8))[1]
    for (name, m), got in held.items():
        flying = pp.in_flight(pp.build(name, 3, m))
        assert got[1] == flying[1] * middle, (name, m)
    assert held["1f1b", 4][:2] == held["1f1b", 8][:2]  # independent of m
    # the last rank keeps its losses: a number a microbatch
    assert held["1f1b", 8][2] - held["1f1b", 4][2] == 4 * 8


def test_a_middle_rank_holds_what_came_in_and_what_it_keeps() -> None:
    """The message, which is its input, and the output that its layer saved."""
    assert measured("1f1b", 4).held_bytes[1] == 2 * (ACTIVATION + ACTIVATION)  # two in flight
    assert measured("gpipe", 4).held_bytes[1] == 4 * (ACTIVATION + ACTIVATION)


@pytest.mark.parametrize(("name", "flying"), [("gpipe", 8), ("1f1b", 3)])
def test_the_first_rank_of_three_holds_eight_or_three(name: str, flying: int) -> None:
    result = measured(name, 8)
    assert result.peak_in_flight[0] == flying


def test_recomputing_holds_less() -> None:
    layers = [nn.Sequential(Scale(), *[Double() for _ in range(6)]) for _ in range(2)]
    inputs = torch.ones(8, WIDTH, dtype=torch.float64)
    kept, again = (
        pp.run("gpipe", layers, inputs, inputs, p=2, m=4, loss_fn=F.mse_loss, memory=True, recompute=recompute)
        for recompute in (False, True)
    )
    assert again.held_bytes[0] < kept.held_bytes[0] / 3
    assert again.peak_bytes[0] < kept.peak_bytes[0]


def test_the_peak_is_at_least_what_is_held_with_weights_and_gradients() -> None:
    result = measured("gpipe", 4)
    assert result.peak_bytes[0] >= result.held_bytes[0] + 2 * WIDTH * 8
    assert result.peak_bytes[1] > result.held_bytes[1]


def test_memory_is_measured_only_if_asked() -> None:
    inputs = torch.ones(4, WIDTH, dtype=torch.float64)
    result = pp.run("gpipe", [Scale(), Double()], inputs, inputs, p=2, m=2, loss_fn=F.mse_loss)
    assert result.peak_bytes is result.held_bytes is None


@pytest.mark.thorough
def test_nothing_of_a_step_is_held_into_the_next() -> None:
    inputs = torch.ones(8, WIDTH, dtype=torch.float64)
    results = [
        pp.train(
            "gpipe",
            [Scale(), Double()],
            [(inputs, inputs)] * steps,
            p=2,
            m=4,
            steps=steps,
            loss_fn=F.mse_loss,
            optimizer=torch.optim.SGD,
            memory=True,
            progress=False,
        )
        for steps in (2, 6)
    ]
    assert results[0].held_bytes == results[1].held_bytes
    assert results[0].peak_bytes == results[1].peak_bytes


def test_a_received_gradient_counts_as_long_as_w_needs_it() -> None:
    """Three microbatches between I and W: each linear layer keeps its input and the gradient of its output."""
    rows = ["0F0 0F1 0F2 0I0 0I1 0I2 0W0 0W1 0W2", "1F0 1F1 1F2 1I0 1I1 1I2 1W0 1W1 1W2"]
    x, y = torch.randn(2, 3 * ROWS, WIDTH, dtype=torch.float64)
    layers = [nn.Linear(WIDTH, WIDTH).double() for _ in range(2)]
    held = pp.run(rows, layers, x, y, loss_fn=F.mse_loss, memory=True).held_bytes
    # on rank 0 the input is the batch; on rank 1 the gradient comes from the loss, of which three numbers stay
    assert held == (3 * ACTIVATION, 6 * ACTIVATION + 3 * 8)
