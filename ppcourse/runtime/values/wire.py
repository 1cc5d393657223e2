"""How what crosses between ranks becomes bytes: one flat buffer a message.

    header   who it is from and how long everything is
    form     the nested tuples, lists, numbers … with numbers in the place of tensors (pickled), and what the
             tensors are: dtype, shape, whether they require a gradient
    tensors  their elements, each at a multiple of ALIGN bytes

One buffer is one transfer, whatever a layer hands on; views and non-contiguous tensors are copied into it,
so the sender may free or overwrite its own at once. What overlaps has been made one region before (together.py). The
receiver's tensors lie in the buffer.

    crosses, bit for bit     float64 float32 float16 bfloat16, float8 of every kind, float4_e2m1fn_x2,
                             complex128 complex64 complex32, bool, int8 to int64, uint8 to uint64
    refused, by its name     what torch cannot copy as plain memory: int1 to int7, uint1 to uint7, quantized, sparse,
                             nested, and tensors that are not in the CPU's memory
"""

import io
import pickle
import struct
from collections.abc import Callable
from typing import Any, NamedTuple

import cloudpickle
import torch
from torch import Tensor

ALIGN = 64
HEADER = struct.Struct("<qqqqqq")
PARTS_OF_BYTES = {getattr(torch, f"{kind}{bits}") for kind in ("int", "uint") for bits in range(1, 8)}


class Head(NamedTuple):
    """The header: `length` of the whole in bytes, of the form; the message's kind, stage and microbatch; when sent."""

    length: int
    form: int
    kind: int
    stage: int
    microbatch: int
    sent_at: int


class _Pickler(cloudpickle.Pickler):  # type: ignore[misc]
    """Pickles everything but tensors, which it puts aside; a class of a cell (a named tuple) by value."""

    def __init__(self, file: io.BytesIO) -> None:
        super().__init__(file, protocol=5)
        self.tensors: list[Tensor] = []

    def persistent_id(self, value: Any) -> int | None:
        if not isinstance(value, Tensor):
            return None
        self.tensors.append(value)
        return len(self.tensors) - 1


class _Unpickler(pickle.Unpickler):
    def __init__(self, file: io.BytesIO, tensors: list[Tensor]) -> None:
        super().__init__(file)
        self.tensors = tensors

    def persistent_load(self, place: int) -> Tensor:
        return self.tensors[place]


def new_memory(length: int) -> Tensor:
    return torch.empty(length, dtype=torch.uint8)


def pack(
    value: Any,
    kind: int = 0,
    stage: int = 0,
    microbatch: int = 0,
    room: int = 0,
    visible: int | None = None,
    memory: Callable[[int], Tensor] = new_memory,
) -> Tensor:
    """`value` as a flat uint8 tensor of at least `room` bytes, in what `memory` gives for its length.

    Raises TypeError for a tensor that cannot cross, and if there are other than `visible` tensors.
    """
    file = io.BytesIO()
    pickler = _Pickler(file)
    pickler.dump(value)
    if visible is not None and len(pickler.tensors) != visible:
        raise TypeError("a tensor inside an object cannot cross with its gradient; hand on tensors, or tuples of them.")
    tensors = [tensor.detach() for tensor in pickler.tensors]
    for tensor in tensors:
        check_memory(tensor)
        if tensor.device.type != "cpu":
            raise TypeError(f"a tensor on {tensor.device} cannot cross between ranks; hand on one in the CPU's memory.")
    kinds = [(t.dtype, tuple(t.shape), t.requires_grad) for t in pickler.tensors]
    form = pickle.dumps((file.getvalue(), kinds), protocol=5)
    places, length = _places(kinds, HEADER.size + len(form))
    buffer = memory(max(length, room))
    inside = buffer.numpy()
    head = HEADER.pack(length, len(form), kind, stage, microbatch, 0)
    inside.data[: HEADER.size + len(form)] = head + form
    for tensor, (start, _) in zip(tensors, places, strict=True):
        if count := tensor.numel():
            torch.frombuffer(inside, dtype=tensor.dtype, count=count, offset=start).view(tensor.shape).copy_(tensor)
    return buffer


def check_memory(tensor: Tensor) -> None:
    """Raise TypeError for a tensor that is more than elements in plain memory, wherever that is."""
    special = tensor.is_nested or tensor.is_quantized or tensor.dtype in PARTS_OF_BYTES
    if tensor.layout is torch.strided and not special:
        return
    if tensor.is_nested:
        what, way = "a nested tensor", "pad it with torch.nested.to_padded_tensor()"
    elif tensor.is_quantized:
        what, way = f"a quantized tensor ({tensor.dtype})", "hand on its dequantize()"
    elif tensor.dtype in PARTS_OF_BYTES:
        what, way = f"a tensor of {tensor.dtype}", "view it as torch.uint8"
    else:
        what, way = f"a {tensor.layout} tensor", "make it dense with to_dense()"
    raise TypeError(f"{what} cannot cross between ranks; {way}.")


def stamp(buffer: Tensor, sent_at: int) -> None:
    """Note when a packed message is sent."""
    struct.pack_into("<q", buffer.numpy().data, HEADER.size - 8, sent_at)


def read_head(buffer: Tensor) -> Head:
    return Head(*HEADER.unpack_from(buffer.numpy().data))


def unpack(buffer: Tensor) -> Any:
    """What was packed. Tensors that required a gradient do again, as leaves; all lie in `buffer`'s memory."""
    head, memory = read_head(buffer), buffer.numpy()
    form, kinds = pickle.loads(memory[HEADER.size : HEADER.size + head.form].tobytes())
    places, _ = _places(kinds, HEADER.size + head.form)
    tensors = []
    for (dtype, shape, requires_grad), (start, _) in zip(kinds, places, strict=True):
        # not views of `buffer`: views of one tensor share its version, so that in-place operations would clash
        count = torch.Size(shape).numel()
        flat = (
            torch.frombuffer(memory, dtype=dtype, offset=start, count=count) if count else torch.empty(0, dtype=dtype)
        )
        tensors.append(flat.view(shape).detach().requires_grad_(requires_grad))
    return _Unpickler(io.BytesIO(form), tensors).load()


def _places(kinds: list[tuple[torch.dtype, tuple[int, ...], bool]], start: int) -> tuple[list[tuple[int, int]], int]:
    """Where each tensor begins and ends, and where everything ends."""
    places = []
    for dtype, shape, _ in kinds:
        start = -(-start // ALIGN) * ALIGN
        end = start + dtype.itemsize * torch.Size(shape).numel()
        places.append((start, end))
        start = end
    return places, start
