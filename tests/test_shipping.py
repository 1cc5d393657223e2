"""What a cell defines travels by value, with its source lines; what cannot travel is named."""

import inspect
import linecache
import logging
import os
import pickle
import sys
import threading
import traceback
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from toys import by_value

from ppcourse.runtime.processes.shipping import Order, check_travels, order
from ppcourse.runtime.stages.batch import split_batch

by_value(__name__)
FACTOR = 3


def scaled(x: Any) -> Any:
    return FACTOR * x


class Layer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.arange(3.0))

    def forward(self, x: Tensor) -> Tensor:
        return scaled(self.weight * x)


def sent(*arguments: Any) -> Any:
    """What arrives."""
    return pickle.loads(Order(*pickle.loads(order("step", *arguments))).arguments)


def test_an_order_says_what_to_do_and_where_its_sender_stands() -> None:
    received = Order(*pickle.loads(order("open", 1, "two")))
    assert received.name == "open"
    assert pickle.loads(received.arguments) == (1, "two")
    assert received.path == sys.path
    assert received.folder == os.getcwd()  # noqa: PTH109


def test_functions_classes_and_layers_arrive_with_all_they_use() -> None:
    function, layer, made = sent(scaled, Layer, Layer())
    assert function is not scaled
    assert function(2) == 6
    assert torch.equal(layer()(torch.ones(3)), torch.tensor([0.0, 3.0, 6.0]))
    assert torch.equal(made(torch.ones(3)), torch.tensor([0.0, 3.0, 6.0]))
    assert isinstance(made, layer)


def test_a_weight_that_two_layers_share_is_still_one() -> None:
    one, other = Layer(), Layer()
    other.weight = one.weight
    first, second = sent([one, other])[0]
    assert first.weight is second.weight


def test_a_part_of_a_large_tensor_travels_alone() -> None:
    """A microbatch is a part of the batch, and a batch a part of the data: neither takes the whole with it."""
    data = torch.zeros(80, 10_000)
    batch = data[:8]
    parts, targets = split_batch(batch, batch, 8)
    assert len(order("step", parts)) < 1.2 * batch.numel() * 4
    assert len(order("step", parts[0], targets[0])) < 0.4 * batch.numel() * 4
    assert torch.equal(sent(parts)[0][3], parts[3])
    assert len(order("step", *split_batch(batch, batch, 1))) < 2.4 * batch.numel() * 4


def test_code_keeps_the_name_of_its_file_and_its_line() -> None:
    (function,) = sent(scaled)
    assert function.__code__.co_filename == __file__
    assert function.__code__.co_firstlineno == scaled.__code__.co_firstlineno


def test_inner_functions_and_lambdas_keep_it_too() -> None:
    def outer() -> Any:
        return lambda: [n * 2 for n in "ab"]

    (function,) = sent(outer)
    assert function()() == ["aa", "bb"]
    assert function().__code__.co_filename == __file__


CELL = "def from_a_cell(x):\n    return 1 / x  # the cell's line\n"


@pytest.fixture
def cell() -> Any:
    """A function as ipykernel makes one: its file exists only in linecache."""
    name = "/nowhere/ipykernel_1/cell.py"
    linecache.cache[name] = (len(CELL), None, CELL.splitlines(keepends=True), name)
    scope: dict[str, Any] = {"__name__": __name__}
    exec(compile(CELL, name, "exec"), scope)
    yield scope["from_a_cell"]
    del linecache.cache[name]


def test_the_lines_of_a_cell_travel_with_its_code(cell: Any) -> None:
    received = Order(*pickle.loads(order("open", cell)))
    assert set(received.sources) == {"/nowhere/ipykernel_1/cell.py"}
    (function,) = pickle.loads(received.arguments)
    with pytest.raises(ZeroDivisionError) as caught:
        function(0)
    assert "the cell's line" in "".join(traceback.format_exception(caught.value))


def test_lines_of_files_that_exist_do_not(cell: Any) -> None:
    inspect.getsource(scaled)  # puts this file into linecache
    assert Order(*pickle.loads(order("open", scaled))).sources == {}


# what cannot travel


def refusal(name: str, thing: Any) -> str:
    with pytest.raises(ValueError, match="cannot travel") as caught:
        check_travels({"fine": 1, name: thing})
    sentence = str(caught.value)
    assert sentence.startswith(f"{name} cannot travel to a rank")
    assert sentence.endswith("; make such things inside forward(), or leave them out.")
    assert "\n" not in sentence
    return sentence


def test_what_travels_passes() -> None:
    layer = Layer()
    layer.log = logging.getLogger("x")
    layer.generator = torch.Generator()
    check_travels({"layer": layer, "function": scaled, "number": 1, "type": Layer})


def test_the_attribute_that_cannot_travel_is_named() -> None:
    layer = Layer()
    layer.guard = threading.Lock()
    assert "its attribute 'guard', a lock, cannot" in refusal("Layer 3 (Layer)", layer)


def test_the_attribute_of_an_inner_layer_is_named() -> None:
    layer = nn.Sequential(nn.Tanh(), nn.Sequential(Layer()))
    layer[1][0].guard = threading.Lock()
    sentence = refusal("Layer 0 (Sequential)", layer)
    assert "attribute 'guard', a lock, " in sentence
    assert "of its layer 1.0" in sentence


def test_a_hidden_attribute_of_an_object_is_named() -> None:
    class Helper:
        def __init__(self) -> None:
            self.guard = threading.Lock()

    layer = Layer()
    layer.helper = Helper()
    assert "attribute 'helper', a Helper, cannot" in refusal("Layer 0 (Layer)", layer)


@pytest.mark.parametrize("mode", ["r", "w", "rb", "wb"])
def test_an_open_file_does_not_travel(mode: str, tmp_path: Path) -> None:
    path = tmp_path / "data.txt"
    path.write_text("one\n")
    layer = Layer()
    with path.open(mode) as layer.file:
        assert "attribute 'file', a " in refusal("Layer 0 (Layer)", layer)


def test_a_variable_that_a_function_sees_is_named() -> None:
    guard = threading.Lock()

    def loss(output: Tensor, target: Tensor) -> Tensor:
        with guard:
            return (output - target).mean()

    assert "its variable 'guard', a lock, cannot" in refusal("loss_fn", loss)


def test_a_generator_that_a_layer_holds_is_named() -> None:
    layer = Layer()
    layer.source = (n for n in range(3))
    assert "attribute 'source', a generator, cannot" in refusal("Layer 0 (Layer)", layer)


class Refuses:
    def __reduce__(self) -> Any:
        raise RuntimeError("I stay\nhere")


def test_what_refuses_on_its_own_is_told_in_one_line() -> None:
    assert "I stay" in refusal("loss_fn", Refuses())


def test_tensors_in_one_memory_arrive_in_one() -> None:
    layer = Layer()
    layer.register_buffer("view", layer.weight.detach()[1:])
    layer.other = torch.arange(6, dtype=torch.int16).view(2, 3).t()
    layer.empty, layer.twice = torch.zeros(0), layer.other[0]
    (came,) = sent(layer)
    came.weight.data.fill_(7)
    came.other.zero_()
    assert came.view.tolist() == [7, 7]
    assert came.twice.tolist() == [0, 0]
    assert (layer.view.tolist(), layer.other.tolist()) == ([1, 2], [[0, 3], [1, 4], [2, 5]])
    assert came.empty.shape == (0,)
    for one in (came, layer):  # the memory may grow, as any other
        one.empty.resize_(5)
        one.twice.resize_(9)
