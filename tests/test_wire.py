"""What crosses between ranks is the same on the other side, whatever it is made of."""

import math
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.utils._pytree import tree_flatten

from ppcourse.runtime import wire

quick = settings(max_examples=30, deadline=None, derandomize=True)
DTYPES = [
    *(torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.float8_e4m3fn),
    *(torch.complex64, torch.complex128, torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64),
]
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


@pytest.mark.parametrize(
    "tensor",
    [torch.eye(2).to_sparse(), torch.eye(2).to_sparse_csr()],
    ids=["coo", "csr"],
)
@pytest.mark.filterwarnings("ignore")
def test_a_tensor_that_is_not_plain_is_refused_with_a_way_out(tensor: Tensor) -> None:
    with pytest.raises(TypeError, match=r"cannot cross between ranks; make it dense"):
        wire.pack((1, tensor))
