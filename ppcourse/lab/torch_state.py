"""What code that is ended in the middle may leave of torch's: modes on a stack, gradients switched off, a dtype.

`with torch.no_grad():` and the counters of torch put things back when they are left. An exception that a timer
raises may come while they are being left, and then nobody does.
"""

import sys
from typing import NamedTuple


class TorchState(NamedTuple):
    """What torch is set to in this thread; of a torch that is not loaded, what it will be set to.

    dispatch, function   the number of modes on torch's two stacks
    """

    grad: bool = True
    dtype: str = "float32"
    dispatch: int = 0
    function: int = 0


def torch_state() -> TorchState:
    torch = sys.modules.get("torch")
    if torch is None:
        return TorchState()
    dtype = str(torch.get_default_dtype()).removeprefix("torch.")
    stacks = torch._C._len_torch_dispatch_stack(), torch._C._len_torch_function_stack()
    return TorchState(torch.is_grad_enabled(), dtype, *stacks)


def restore(state: TorchState) -> None:
    """Set torch to `state` again. Modes that came since are taken off; one that was taken off too often is lost."""
    if torch_state() == state:
        return
    import torch

    torch.set_grad_enabled(state.grad)
    torch.set_default_dtype(getattr(torch, state.dtype))
    for _ in range(torch_state().dispatch - state.dispatch):
        torch._C._pop_torch_dispatch_stack(None)
    for _ in range(torch_state().function - state.function):
        torch._C._pop_torch_function_stack()
