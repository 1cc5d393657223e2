"""In a notebook: real kernels, whose cells define layers, get interrupted, and are killed."""

import os
import queue
import signal
import textwrap
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import psutil
import pytest
from jupyter_client.manager import KernelManager
from toys import is_gone, soon

pytestmark = pytest.mark.thorough

PATIENCE = 100.0  # seconds for a cell, on a busy machine
SOON = 20.0  # seconds on such a machine for what takes a fraction of one, and which would otherwise sleep for 100


class Kernel:
    """A kernel with temporary files of its own."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.manager = KernelManager(kernel_name="python3")
        self.manager.start_kernel(env={**os.environ, "TMPDIR": str(folder)}, cwd=str(folder))
        self.client = self.manager.client()
        self.client.start_channels()
        self.client.wait_for_ready(timeout=PATIENCE)
        self.pid = self.manager.provisioner.process.pid

    def cell(self, *codes: str) -> dict[str, Any]:
        """Run a cell: {"out": what it printed, "error": its traceback in plain text, or ""}."""
        return self.result_of(self.start(*codes))

    def start(self, *codes: str) -> str:
        sent: str = self.client.execute("".join(textwrap.dedent(code) for code in codes))
        return sent

    def result_of(self, sent: str) -> dict[str, Any]:
        out, error, end = "", "", time.monotonic() + PATIENCE
        while time.monotonic() < end:
            try:
                message = self.client.get_iopub_msg(timeout=1)
            except queue.Empty:
                continue
            if message["parent_header"].get("msg_id") != sent:
                continue
            kind, content = message["header"]["msg_type"], message["content"]
            if kind == "stream":
                out += content["text"]
            elif kind == "error":
                error = "\n".join([*content["traceback"], f"{content['ename']}: {content['evalue']}"])
            elif kind == "status" and content["execution_state"] == "idle":
                return {"out": out, "error": error}
        raise TimeoutError(f"no end of the cell within {PATIENCE} s; so far: {out}")

    def family(self) -> list[int]:
        """Every process that the kernel has started, ranks included."""
        return [child.pid for child in psutil.Process(self.pid).children(recursive=True)]

    def ranks(self) -> list[int]:
        return [int(pid) for pid in self.cell("print(*rank_pids())")["out"].split()]

    def stop(self) -> None:
        self.client.stop_channels()
        self.manager.shutdown_kernel(now=True)


SETUP = """
    import time, os
    import torch
    import torch.nn.functional as F
    from torch import nn
    import ppcourse as pp

    class Layer(nn.Module):
        def __init__(self, width, seconds=0.0, fails=False):
            super().__init__()
            self.inner = nn.Linear(width, width)
            self.seconds, self.fails = seconds, fails

        def forward(self, x):
            time.sleep(self.seconds)
            if self.fails:
                raise ValueError("not today")  # the cell's own line
            return scaled(self.inner(x))

    def scaled(x):
        return factor * x

    def loss(output, target):
        return F.mse_loss(output, target)

    def rank_pids():
        from ppcourse.runtime.processes import ranks
        return [process.pid for pool in ranks._pools.values() if pool.healthy() for process in pool.processes]

    factor = 2.0
    torch.manual_seed(0)
    model = nn.Sequential(Layer(4), Layer(4), Layer(4))
    inputs, targets = torch.randn(6, 4), torch.randn(6, 4)
"""
RUN = """
    result = pp.run("1f1b", model, inputs, targets, loss_fn=loss, p=3, m=3)
    expected = pp.reference_step(model, inputs, targets, loss_fn=loss)
    print(f"{result.loss:.5f} {expected.loss:.5f}")
"""
SLOW = """
    slow = nn.Sequential(Layer(4), Layer(4, seconds=100), Layer(4))
    print("off we go", flush=True)
    pp.run("1f1b", slow, inputs, targets, loss_fn=loss, p=3, m=3)
"""


@pytest.fixture(scope="module")
def kernels(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[Kernel]]:
    """Three notebooks that are open at once."""
    folders = [tmp_path_factory.mktemp("kernel") for _ in range(3)]
    with ThreadPoolExecutor() as pool:
        started = list(pool.map(Kernel, folders))
    yield started
    for kernel in started:
        kernel.stop()


@pytest.fixture(scope="module")
def kernel(kernels: list[Kernel]) -> Kernel:
    return kernels[0]


def test_three_kernels_at_once_do_not_collide(kernels: list[Kernel]) -> None:
    sent = [(kernel, kernel.start(SETUP, RUN)) for kernel in kernels]
    results = [kernel.result_of(cell) for kernel, cell in sent]
    assert [result["error"] for result in results] == ["", "", ""]
    losses = {result["out"].strip() for result in results}
    assert len(losses) == 1
    assert len(set(losses.pop().split())) == 1
    again = [(kernel, kernel.start(*[RUN] * 10)) for kernel in kernels]
    assert [kernel.result_of(cell)["error"] for kernel, cell in again] == ["", "", ""]
    pids = [pid for kernel in kernels for pid in kernel.ranks()]
    assert len(pids) == len(set(pids)) >= 9


def test_case_R82_what_a_cell_defines_works_on_ranks(kernel: Kernel) -> None:  # noqa: N802
    """And a cell that defines it anew is heard."""
    assert kernel.cell("factor = 3.0", RUN)["error"] == ""
    result = kernel.cell("def scaled(x):\n    return x.exp()\n", RUN)
    assert result["error"] == ""
    got, expected = result["out"].split()
    assert got == expected
    kernel.cell("def scaled(x):\n    return factor * x\nfactor = 2.0")


def test_a_named_tuple_of_a_cell_crosses_from_rank_to_rank(kernel: Kernel) -> None:
    result = kernel.cell("""
        from typing import NamedTuple

        class Pair(NamedTuple):
            left: torch.Tensor
            right: torch.Tensor

        class Split(nn.Module):
            def forward(self, x):
                return Pair(x, 2 * x)

        class Join(nn.Module):
            def forward(self, pair):
                return pair.left * pair.right

        pairs = nn.Sequential(Layer(4), Split(), Join())
        got = pp.run("1f1b", pairs, inputs, targets, loss_fn=loss, p=3, m=2)
        expected = pp.reference_step(pairs, inputs, targets, loss_fn=loss)
        print(f"{got.loss:.5f} {expected.loss:.5f}")
        print(type(pp.evaluate("gpipe", pairs[:2], inputs, p=2, m=2).outputs) is Pair)
    """)
    assert result["error"] == ""
    got, expected, same = result["out"].split()
    assert got == expected
    assert same == "True"


def test_case_R82_an_error_shows_the_cells_own_line(kernel: Kernel) -> None:  # noqa: N802
    result = kernel.cell("""
        broken = nn.Sequential(Layer(4), Layer(4, fails=True), Layer(4))
        pp.run("1f1b", broken, inputs, targets, loss_fn=loss, p=3, m=3)
    """)
    assert (
        "RankError: Rank 1 failed in 1F0 (stage 1, forward of microbatch 0): ValueError: not today" in result["error"]
    )
    assert 'raise ValueError("not today")  # the cell\'s own line' in result["error"]
    assert kernel.cell(RUN)["error"] == ""


def test_a_crash_shows_the_cells_own_line(kernel: Kernel) -> None:
    result = kernel.cell("""
        class Crash(nn.Module):
            def forward(self, x):
                os.abort()  # here it ends

        pp.run("1f1b", [Layer(4), Layer(4), Crash()], inputs, targets, loss_fn=loss, p=3, m=3)
    """)
    assert "Rank 2 failed in 2F0" in result["error"]
    assert "os.abort()  # here it ends" in result["error"]


def test_what_ranks_print_appears_in_the_cell(kernel: Kernel) -> None:
    result = kernel.cell("""
        class Talks(nn.Module):
            def forward(self, x):
                print("rows:", len(x))
                return x

        _ = pp.run("1f1b", [Layer(4), Talks()], inputs, targets, loss_fn=loss, p=2, m=2)
    """)
    assert result == {"out": "[rank 1] rows: 3\n[rank 1] rows: 3\n", "error": ""}


def test_case_R83_the_notebooks_process_is_not_forked_and_starts_no_cuda(kernel: Kernel) -> None:  # noqa: N802
    result = kernel.cell("""
        import psutil
        print(torch.cuda.is_initialized())
        print(os.getpid() in [psutil.Process(pid).ppid() for pid in rank_pids()])
    """)
    assert result == {"out": "False\nFalse\n", "error": ""}


NO_CUDA = """
    import torch

    def touched(*_):
        raise AssertionError("CUDA was initialised")

    real = torch.cuda._lazy_init, torch.cuda.manual_seed_all
    torch.cuda._lazy_init = torch.cuda.manual_seed_all = touched
"""

CUDA_AGAIN = "torch.cuda._lazy_init, torch.cuda.manual_seed_all = real"


def test_case_R83_nothing_that_a_notebook_calls_touches_cuda(kernel: Kernel) -> None:  # noqa: N802
    try:
        assert kernel.cell(NO_CUDA, RUN)["error"] == ""
    finally:
        kernel.cell(CUDA_AGAIN)  # torch.manual_seed, of the tests to come, asks CUDA too


def test_case_R80_an_interrupt_ends_every_rank_and_the_next_cell_works(kernel: Kernel) -> None:  # noqa: N802
    assert kernel.cell(RUN)["error"] == ""
    pids = kernel.ranks()
    assert len(pids) >= 3
    sent = kernel.start(SLOW)
    time.sleep(2)  # by now rank 1 sleeps in its forward
    assert not any(is_gone(pid) for pid in pids[-3:])
    start = time.monotonic()
    kernel.manager.interrupt_kernel()
    result = kernel.result_of(sent)
    assert "KeyboardInterrupt" in result["error"]
    assert soon(lambda: all(is_gone(pid) for pid in pids[-3:]), SOON - (time.monotonic() - start))
    assert time.monotonic() - start < SOON
    assert kernel.cell(RUN)["error"] == ""


@pytest.mark.parametrize(("number", "way"), [(0, "SIGKILL"), (1, "SIGTERM"), (2, "shutdown")])
def test_nothing_is_left_when_a_kernel_ends(kernels: list[Kernel], number: int, way: str) -> None:
    """Ranks at work, the process they are forked from, their folder: all gone, whatever ended the kernel."""
    kernel = kernels[number]
    assert kernel.cell(SETUP, RUN)["error"] == ""
    kernel.start(SLOW)
    time.sleep(2)
    family = kernel.family()
    assert len(family) >= 4  # the server and three ranks
    if way == "shutdown":
        kernel.manager.shutdown_kernel(now=False)
    else:
        os.kill(kernel.pid, signal.Signals[way])
    assert soon(lambda: all(is_gone(pid) for pid in family), SOON)
    assert soon(lambda: not left_in(kernel.folder), SOON), left_in(kernel.folder)


def left_in(folder: Path) -> list[str]:
    """What lies in a kernel's folder for temporary files, but for what IPython and torch keep there for next time."""
    known = ("ipykernel", "torchinductor")
    return [path.name for path in folder.iterdir() if not path.name.startswith(known)]
