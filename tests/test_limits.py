"""What a pipeline cannot honour is refused by name; what looks odd but is legal gives the unsplit model's numbers."""

import gc
import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
import warnings
from pathlib import Path

import psutil
import pytest
import torch
from torch import Tensor, nn
from toys import by_value

import ppcourse as pp
import ppcourse.runtime.result
from ppcourse.runtime.processes import probe, ranks

by_value(__name__)
MSE = nn.MSELoss()


def layers(count: int) -> list[nn.Module]:
    torch.manual_seed(0)
    return [nn.Linear(8, 8).double() for _ in range(count)]


@pytest.fixture
def batch() -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(1)
    return tuple(torch.randn(2, 16, 8, generator=generator, dtype=torch.float64))


def assert_same(ours: pp.runtime.result.Result, theirs: pp.runtime.result.Result) -> None:
    assert ours.loss == pytest.approx(theirs.loss, rel=1e-12)
    assert ours.grads.keys() == theirs.grads.keys()
    for name, grad in theirs.grads.items():
        torch.testing.assert_close(ours.grads[name], grad, rtol=1e-10, atol=1e-12)


class Residual(nn.Sequential):
    def forward(self, x: Tensor) -> Tensor:
        return x + super().forward(x)


def hooked() -> nn.Sequential:
    model = nn.Sequential(*layers(2))
    model.register_forward_hook(lambda module, inputs, output: output * 2)
    return model


@pytest.mark.parametrize("model", [Residual(*layers(2)), hooked()], ids=["forward", "hooks"])
def test_a_sequential_that_is_more_than_its_layers_is_refused(model: nn.Sequential, batch) -> None:
    for step in (lambda: pp.run("gpipe", model, *batch, loss_fn=MSE, p=2, m=2), lambda: reference(model, batch)):
        with pytest.raises(ValueError, match="of its own beside its layers"):
            step()


def reference(model, batch, **options) -> pp.runtime.result.Result:
    return pp.reference_step(model, *batch, loss_fn=options.pop("loss_fn", MSE), **options)


def test_a_loss_that_reaches_into_the_model_is_refused(batch) -> None:
    model = nn.Sequential(*layers(2))

    def penalised(output: Tensor, target: Tensor) -> Tensor:
        return MSE(output, target) + sum(weight.pow(2).sum() for weight in model.parameters())

    with pytest.raises(ValueError, match="loss_fn reaches weights of the model"):
        pp.run("gpipe", model, *batch, loss_fn=penalised, p=2, m=2)


def test_a_layer_that_reaches_weights_it_has_not_registered_is_refused(batch) -> None:
    model = layers(2)
    model[1].secret = [model[0]]
    with pytest.raises(ValueError, match=r"Layer 1 \(Linear\) reaches weights that it has not registered"):
        pp.run("gpipe", model, *batch, loss_fn=MSE, p=2, m=2)


class Box:
    def __init__(self, inside: Tensor) -> None:
        self.inside = inside


class PutInBox(nn.Module):
    def forward(self, x: Tensor) -> tuple[Tensor, Box]:
        return x, Box(x * 2)


class Unbox(nn.Module):
    def forward(self, given: tuple[Tensor, Box]) -> Tensor:
        return given[0] + given[1].inside


def test_a_tensor_hidden_in_an_object_is_refused_and_not_cut_off_from_its_gradient(batch) -> None:
    model = [layers(1)[0], PutInBox(), Unbox(), layers(1)[0]]
    with pytest.raises(ValueError, match=r"Layer 1 \(PutInBox\) .* a tensor inside an object cannot cross"):
        pp.run("gpipe", model, *batch, loss_fn=MSE, p=2, m=2)


@pytest.mark.parametrize("plan", [["0F0 0I0 0W0", "1F0 1I0 1W0"], ["0F0 1F0 1I0 0I0 1W0 0W0"]], ids=["two", "one"])
def test_where_nobody_looked_ahead_the_rank_refuses_it(plan, batch, monkeypatch: pytest.MonkeyPatch) -> None:
    """On one rank it would not even have to travel, but W would miss what flows back to it."""
    monkeypatch.setattr(probe, "LARGE", 0)
    model = [layers(1)[0], PutInBox(), Unbox(), layers(1)[0]]
    with pytest.raises(pp.RankError, match="a tensor inside an object cannot cross with its gradient") as caught:
        pp.run(plan, model, *batch, loss_fn=MSE)
    assert str(caught.value.action) == "0F0"


def masked(output: Tensor, target: Tensor) -> Tensor:
    counts = (target[:, :1] > 0).double()
    return ((output - target) ** 2 * counts).sum() / counts.sum()


def test_a_microbatch_that_counts_nothing_adds_nothing(batch) -> None:
    x, y = batch
    y[:, 0] = 1
    y[:4, 0] = -1  # all of microbatch 0: its loss is 0 ÷ 0
    model = layers(4)
    ours = pp.run("1f1b", model, x, y, loss_fn=masked, p=2, m=4, weight=lambda target: float((target[:, 0] > 0).sum()))
    assert_same(ours, reference(model, (x, y), loss_fn=masked))


class InPlace(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x.mul_(2)


def test_recomputing_finds_the_inputs_as_they_came(batch) -> None:
    model = [InPlace(), *layers(3)]
    x, y = batch
    assert_same(
        pp.run("1f1b", model, x, y, loss_fn=MSE, p=2, m=4, recompute=True), reference(model, (x.clone(), y), m=4)
    )


def test_two_threads_take_turns(batch) -> None:
    model, losses = layers(4), []

    def work() -> None:
        losses.extend(pp.run("1f1b", model, *batch, loss_fn=MSE, p=2, m=4).loss for _ in range(4))

    threads = [threading.Thread(target=work) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert losses == pytest.approx([reference(model, batch).loss] * 8)


class TimesOnes(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x @ torch.ones(8, 8)


def test_the_callers_default_dtype_holds_on_ranks(batch) -> None:
    torch.set_default_dtype(torch.float64)
    try:
        model = [TimesOnes(), *layers(1)]
        assert_same(pp.run("gpipe", model, *batch, loss_fn=MSE, p=2, m=2), reference(model, batch))
    finally:
        torch.set_default_dtype(torch.float32)


class MuteError(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no words")


class RaisesMute(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        raise MuteError


def test_an_exception_that_cannot_say_what_it_is_still_names_the_rank(batch) -> None:
    with pytest.raises(pp.RankError, match="Rank 0 failed in 0F0") as caught:
        pp.run("gpipe", [RaisesMute(), *layers(1)], *batch, loss_fn=MSE, p=2, m=2)
    assert caught.value.cause == "MuteError"


def test_a_pace_that_would_pass_for_a_hang_is_refused(batch) -> None:
    with pytest.raises(ValueError, match="paced to 9 s would pass for a hang"):
        pp.run("gpipe", layers(2), *batch, loss_fn=MSE, p=2, m=2, pace=pp.Costs(forward=9.0), timeout=5)


def test_bad_input_comes_without_the_lines_of_this_package(batch) -> None:
    with pytest.raises(ValueError, match="There is no schedule") as caught:
        pp.run("gpip", layers(2), *batch, loss_fn=MSE, p=2, m=2)
    assert len(caught.traceback) <= 2


def test_what_the_callers_own_code_raises_keeps_its_lines(batch) -> None:
    def broken():
        raise ValueError("mine")
        yield

    with pytest.raises(ValueError, match="mine") as caught:
        pp.train("gpipe", layers(2), broken(), loss_fn=MSE, optimizer=torch.optim.SGD, steps=1, p=2, m=2)
    assert caught.traceback[-1].name == "broken"


@pytest.mark.thorough
def test_a_stopped_rank_does_not_outlive_a_killed_parent(tmp_path: Path) -> None:
    script = """
        import time, ppcourse.runtime.processes.ranks as ranks
        print(*(process.pid for process in ranks.pool_of(2).processes), flush=True)
        time.sleep(60)
    """
    parent = subprocess.Popen([sys.executable, "-c", textwrap.dedent(script)], stdout=subprocess.PIPE, text=True)
    pids = [int(pid) for pid in parent.stdout.readline().split()]
    os.kill(pids[0], signal.SIGSTOP)
    parent.kill()
    parent.wait()
    deadline = time.monotonic() + 10
    while any(map(alive, pids)) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert not any(map(alive, pids))


class Exits(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        print("going", flush=True)
        os._exit(3)


@pytest.mark.thorough
def test_a_failed_pool_closes_its_files_and_still_says_what_was_printed(batch, capsys) -> None:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", ResourceWarning)
        with pytest.raises(pp.RankError):
            pp.run("gpipe", [*layers(1), Exits()], *batch, loss_fn=MSE, p=2, m=2)
        ranks.close_all()
        gc.collect()
    assert "[rank 1] going" in capsys.readouterr().out
    assert not [warning for warning in caught if "ppcourse-" in str(warning.message)]


def alive(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False
