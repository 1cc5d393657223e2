"""What the tests of ranks share: small models in float64, and what "equal" means.

Layers that tests define travel by value, like those of a notebook's cell (`by_value(__name__)`).
"""

import copy
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import cloudpickle
import psutil
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import ppcourse as pp
from ppcourse.runtime.processes import ranks, session

SCHEDULES = ("naive", "gpipe", "1f1b")


def by_value(module: str) -> None:
    """Let ranks get what `module` defines by value, so that they need not import it."""
    cloudpickle.register_pickle_by_value(sys.modules[module])


by_value(__name__)


class Head(nn.Module):
    def __init__(self, embedding: nn.Embedding) -> None:
        super().__init__()
        self.weight = embedding.weight

    def forward(self, x: Tensor) -> Tensor:
        return x @ self.weight.t()


def tied() -> nn.Sequential:
    """First and last layer share a weight; the layer between them that stands alone at p = 4 has none."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(3)
        embedding = nn.Embedding(3, 5)
        return nn.Sequential(embedding, nn.Linear(5, 5), nn.Tanh(), Head(embedding)).double()


def classifier(width: int = 5, classes: int = 3, seed: int = 0) -> nn.Sequential:
    """Six layers, no two alike, from [rows, 4] to logits [rows, 3]; stages of it are never equal."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        layers = (
            nn.Linear(4, width),
            nn.Tanh(),
            nn.Linear(width, width + 2),
            nn.LayerNorm(width + 2),
            nn.Sequential(nn.Linear(width + 2, width), nn.Sigmoid()),
            nn.Linear(width, classes),
        )
        return nn.Sequential(*layers).double()


def rows_of(count: int, seed: int = 1, ignored: int = 0) -> tuple[Tensor, Tensor]:
    """A batch for `classifier`; of the last targets, `ignored` do not count (-100)."""
    generator = torch.Generator().manual_seed(seed)
    inputs = torch.randn(count, 4, dtype=torch.float64, generator=generator)
    targets = torch.randint(3, (count,), generator=generator)
    if ignored:
        targets[-ignored:] = -100
    return inputs, targets


def counted(targets: Tensor) -> Tensor:
    return (targets != -100).sum()


def loss_sum(logits: Tensor, targets: Tensor) -> Tensor:
    return F.cross_entropy(logits, targets, reduction="sum")


def assert_same(result: Any, expected: Any) -> None:
    """Loss and every gradient equal, parameter by parameter, None where the other has None."""
    assert result.loss == pytest.approx(expected.loss, rel=1e-12, abs=1e-14)
    assert list(result.grads) == list(expected.grads)
    for name, grad in expected.grads.items():
        got = result.grads[name]
        assert (got is None) == (grad is None), f"{name}: {got} instead of {grad}"
        if grad is not None:
            torch.testing.assert_close(got, grad, rtol=1e-10, atol=1e-13, msg=lambda text, name=name: f"{name}: {text}")


class Does(nn.Module):
    """A layer that does `work(layer, x)` and has these parts."""

    def __init__(self, work: Callable[[Any, Any], Any], **parts: nn.Module) -> None:
        super().__init__()
        self.work = work
        for name, part in parts.items():
            self.add_module(name, part)

    def forward(self, x: Any) -> Any:
        return self.work(self, x)


def linear(rows: int, columns: int) -> nn.Linear:
    """Of these sizes, always the same."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(rows + 10 * columns)
        return nn.Linear(rows, columns).double()


def plain(layers: list[nn.Module], inputs: Tensor, targets: Tensor, m: int = 1) -> tuple[float, dict[str, Any]]:
    """Loss and gradients of `m` microbatches one by one, by PyTorch alone."""
    model, total = copy.deepcopy(nn.Sequential(*layers)), 0.0
    for x, y in zip(inputs.tensor_split(m), targets.tensor_split(m), strict=True):
        loss = F.cross_entropy(model(x.clone()), y) * len(x) / len(inputs)
        loss.backward()
        total += float(loss.detach())
    return total, {name: weight.grad for name, weight in model.named_parameters()}


def assert_as_plain(plan: pp.Schedule, layers: list[nn.Module], m: int = 1, **options: Any) -> None:
    """A run gives what PyTorch gives in one process, microbatch by microbatch."""
    inputs, targets = rows_of(8)
    result = pp.run(plan, copy.deepcopy(layers), inputs, targets, loss_fn=F.cross_entropy, **options)
    loss, grads = plain(layers, inputs, targets, m)
    assert result.loss == pytest.approx(loss, rel=1e-12)
    assert list(result.grads) == list(grads)
    for name, grad in grads.items():
        torch.testing.assert_close(result.grads[name], grad, rtol=1e-10, atol=1e-13)


def pids_of(num_ranks: int) -> list[int]:
    """The processes that the next run of so many ranks will use."""
    return [process.pid or 0 for process in ranks.pool_of(num_ranks).processes]


def is_gone(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def soon(holds: Callable[[], bool], seconds: float = 5.0) -> bool:
    """Whether it holds within so many seconds."""
    end = time.monotonic() + seconds
    while not holds():
        if time.monotonic() > end:
            return False
        time.sleep(0.02)
    return True


@contextmanager
def no_rank_starts(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """In here, the run must not come as far as asking for ranks."""

    def started(num_ranks: int) -> Any:
        raise AssertionError(f"{num_ranks} ranks were asked for")

    with monkeypatch.context() as patch:
        patch.setattr(session, "pool_of", started)
        yield
