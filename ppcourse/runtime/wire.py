"""How what crosses between ranks becomes bytes: one flat buffer a message.

    header   who it is from and how long everything is
    form     the nested tuples, lists, numbers … with numbers in the place of tensors (pickled), and what the
             tensors are: dtype, shape, whether they require a gradient
    tensors  their elements, each at a multiple of ALIGN bytes

One buffer is one transfer, whatever a layer hands on; views and non-contiguous tensors are copied into it,
so the sender may free or overwrite its own at once. The receiver's tensors lie in the
buffer.
"""

import io
import pickle
import struct
from typing import Any, NamedTuple

import cloudpickle
import torch
from torch import Tensor

ALIGN = 64
HEADER = struct.Struct("<qqqqqq")


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


def pack(
    value: Any, kind: int = 0, stage: int = 0, microbatch: int = 0, room: int = 0, visible: int | None = None
) -> Tensor:
    """`value` as a flat uint8 tensor of at least `room` bytes.

    Raises TypeError for a tensor that is not strided, and if there are other than `visible` tensors.
    """
    file = io.BytesIO()
    pickler = _Pickler(file)
    pickler.dump(value)
    if visible is not None and len(pickler.tensors) != visible:
        raise TypeError("a tensor inside an object cannot cross with its gradient; hand on tensors, or tuples of them.")
    tensors = [tensor.detach() for tensor in pickler.tensors]
    for tensor in tensors:
        if tensor.layout is not torch.strided or tensor.is_quantized:
            raise TypeError(f"a {tensor.layout} tensor cannot cross between ranks; make it dense with to_dense().")
    kinds = [(t.dtype, tuple(t.shape), t.requires_grad) for t in pickler.tensors]
    form = pickle.dumps((file.getvalue(), kinds), protocol=5)
    places, length = _places(kinds, HEADER.size + len(form))
    buffer = torch.empty(max(length, room), dtype=torch.uint8)
    head = HEADER.pack(length, len(form), kind, stage, microbatch, 0)
    buffer[: HEADER.size + len(form)] = torch.frombuffer(bytearray(head + form), dtype=torch.uint8)
    for tensor, (start, end) in zip(tensors, places, strict=True):
        if end > start:
            buffer[start:end].view(tensor.dtype).view(tensor.shape).copy_(tensor)
    return buffer


def stamp(buffer: Tensor, sent_at: int) -> None:
    """Note when a packed message is sent."""
    memory: Any = buffer.numpy()
    struct.pack_into("<q", memory, HEADER.size - 8, sent_at)


def read_head(buffer: Tensor) -> Head:
    return Head(*HEADER.unpack(buffer[: HEADER.size].numpy().tobytes()))


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
