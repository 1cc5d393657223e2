"""What crosses between ranks is the same on the other side, whatever it is made of."""

import math
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.utils._pytree import tree_flatten

from ppcourse.runtime.values import wire

quick = settings(max_examples=30, deadline=None, derandomize=True)
DTYPES = [
    *(torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.float8_e4m3fn),
    *(torch.complex64, torch.complex128, torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64),
]
ALL_DTYPES = {kind for kind in vars(torch).values() if isinstance(kind, torch.dtype)}
QUANTIZED = {torch.qint8, torch.quint8, torch.qint32, torch.quint4x2, torch.quint2x4}
WHOLE_BYTES = sorted(ALL_DTYPES - wire.PARTS_OF_BYTES - QUANTIZED, key=str)
WITH_GRADIENT = {torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.complex64, torch.complex128}


@st.composite
def tensors(draw: st.DrawFn) -> Tensor:
    """Any dtype and up to three dimensions, empty ones, views and transposed ones too."""
    dtype = draw(st.sampled_from(DTYPES))
    shape = draw(st.lists(st.integers(0, 4), max_size=3))
    tensor = torch.arange(2 * math.prod(shape)).reshape(*shape, 2).to(dtype)[..., draw(st.integers(0, 1))]
    if draw(st.booleans()) and tensor.dim() > 1:
        tensor = tensor.transpose(0, 1)
    return tensor.requires_grad_(dtype in WITH_GRADIENT and draw(st.booleans()))


leaves = st.one_of(tensors(), st.integers(), st.none(), st.text(max_size=3), st.floats(allow_nan=False))
values = st.recursive(
    leaves,
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.tuples(inner, inner),
        st.dictionaries(st.sampled_from("abc"), inner, max_size=3),
    ),
    max_leaves=6,
)


def assert_equal(got: Any, sent: Any) -> None:
    (got_leaves, got_form), (sent_leaves, sent_form) = tree_flatten(got), tree_flatten(sent)
    assert got_form == sent_form
    for one, other in zip(got_leaves, sent_leaves, strict=True):
        if isinstance(other, Tensor):
            assert (one.dtype, one.shape, one.requires_grad) == (other.dtype, other.shape, other.requires_grad)
            assert torch.equal(one.double() if one.dtype is torch.float8_e4m3fn else one, _wide(other))
        else:
            assert one == other


def _wide(tensor: Tensor) -> Tensor:
    return tensor.double() if tensor.dtype is torch.float8_e4m3fn else tensor


@quick
@given(values, st.integers(0, 5000))
def test_what_is_unpacked_is_what_was_packed(value: Any, room: int) -> None:
    buffer = wire.pack(value, room=room)
    assert buffer.dtype is torch.uint8
    assert buffer.numel() == max(room, wire.read_head(buffer).length)
    assert_equal(wire.unpack(buffer), value)


@quick
@given(st.integers(0, 3), st.integers(0, 99), st.integers(0, 2**40), st.integers(0, 2**62))
def test_the_head_says_who_sent_it_when_and_how_long_it_is(
    kind: int, stage: int, microbatch: int, sent_at: int
) -> None:
    buffer = wire.pack(torch.ones(3), kind, stage, microbatch)
    wire.stamp(buffer, sent_at)
    head = wire.read_head(buffer)
    assert (head.kind, head.stage, head.microbatch, head.sent_at) == (kind, stage, microbatch, sent_at)
    assert head.length == buffer.numel()


def test_the_head_is_in_the_first_bytes_so_that_a_message_may_come_in_two_parts() -> None:
    value = torch.arange(10_000)
    buffer = wire.pack(value, stage=7)
    first, rest = buffer[:100].clone(), buffer[100:].clone()
    assert wire.read_head(first).length == len(first) + len(rest)
    assert torch.equal(wire.unpack(torch.cat([first, rest])), value)


def test_a_message_is_packed_into_the_memory_it_is_given() -> None:
    given = []

    def memory(length: int) -> Tensor:
        given.append(torch.full((length,), 255, dtype=torch.uint8))
        return given[-1]

    buffer = wire.pack(torch.arange(5), memory=memory)
    assert buffer is given[0]
    assert wire.unpack(buffer).tolist() == [0, 1, 2, 3, 4]


def test_the_sender_may_overwrite_what_it_has_packed() -> None:
    value = torch.ones(4)
    buffer = wire.pack((value, value[1:]))
    value.zero_()
    assert wire.unpack(buffer)[1].tolist() == [1, 1, 1]


def test_what_arrives_are_leaves_that_may_each_be_changed_in_place() -> None:
    one, other = wire.unpack(wire.pack((torch.ones(3), torch.ones(3, requires_grad=True) * 2)))
    assert other.is_leaf
    product = (other * other).sum()
    one.add_(1)  # would clash with what `product` keeps if both were views of one tensor
    product.backward()
    assert other.grad.tolist() == [4, 4, 4]


def test_a_tensor_that_is_sent_twice_arrives_twice() -> None:
    tensor = torch.ones(2, requires_grad=True)
    one, other = wire.unpack(wire.pack((tensor, tensor)))
    assert one is not other


@pytest.mark.parametrize("dtype", WHOLE_BYTES, ids=str)
def test_case_R39_every_dtype_of_whole_bytes_crosses_bit_for_bit(dtype: torch.dtype) -> None:  # noqa: N802
    if dtype is torch.bool:
        sent = torch.tensor([[True, False, True]])
    else:
        sent = torch.randint(256, (2, 3 * dtype.itemsize), dtype=torch.uint8).view(dtype)
    got = wire.unpack(wire.pack((1, sent)))[1]
    assert (got.dtype, got.shape) == (sent.dtype, sent.shape)
    assert torch.equal(got.view(torch.uint8), sent.view(torch.uint8))


def test_case_R39_the_table_names_what_crosses_and_what_does_not() -> None:  # noqa: N802
    assert wire.__doc__
    table = wire.__doc__.partition("crosses, bit for bit")[2]
    for dtype in (torch.float4_e2m1fn_x2, torch.bfloat16, torch.complex32, torch.bool, torch.int8, torch.uint64):
        assert dtype in WHOLE_BYTES
        assert str(dtype).removeprefix("torch.") in table
    assert len(wire.PARTS_OF_BYTES) == 14
    assert "int1 to int7, uint1 to uint7" in table


REFUSED = {
    "coo": (lambda: torch.eye(2).to_sparse(), r"a torch.sparse_coo tensor .*; make it dense with to_dense"),
    "csr": (lambda: torch.eye(2).to_sparse_csr(), r"a torch.sparse_csr tensor .*; make it dense with to_dense"),
    "mkldnn": (lambda: torch.ones(2).to_mkldnn(), r"a torch._mkldnn tensor .*; make it dense with to_dense"),
    "int4": (lambda: torch.ones(2, dtype=torch.uint8).view(torch.int4), r"a tensor of torch.int4 .*; view it as"),
    "quantized": (
        lambda: torch.quantize_per_tensor(torch.ones(2), 1.0, 0, torch.quint8),
        r"a quantized tensor \(torch.quint8\) .*; hand on its dequantize",
    ),
    "nested": (lambda: torch.nested.nested_tensor([torch.ones(2), torch.ones(3)]), r"a nested tensor .*; pad it"),
    "jagged": (
        lambda: torch.nested.nested_tensor([torch.ones(2), torch.ones(3)], layout=torch.jagged),
        r"a nested tensor .*; pad it",
    ),
    "meta": (lambda: torch.ones(2, device="meta"), r"a tensor on meta .*; hand on one in the CPU's memory"),
}


@pytest.mark.parametrize("what", REFUSED)
@pytest.mark.filterwarnings("ignore")
def test_case_R39_what_is_not_plain_memory_is_refused_by_name_with_a_way_out(what: str) -> None:  # noqa: N802
    make, sentence = REFUSED[what]
    with pytest.raises(TypeError, match=sentence):
        wire.pack((1, make()))
