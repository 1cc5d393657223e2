"""What code that is ended in the middle may leave of torch's: modes, hooks on all modules, gradients off, a dtype.

`with torch.no_grad():` and the counters of torch put things back when they are left. An exception that a timer
raises may come while they are being left, and then nobody does.
"""

import sys
from typing import NamedTuple

HOOKS = (  # torch's registers of hooks that are called for each module, which counters of FLOPs use too
    "_global_forward_pre_hooks",
    "_global_forward_hooks",
    "_global_forward_hooks_always_called",
    "_global_backward_pre_hooks",
    "_global_backward_hooks",
)


class TorchState(NamedTuple):
    """What torch is set to in this thread; of a torch that is not loaded, what it will be set to.

    dispatch, function   the number of modes on torch's two stacks
    hooks                on all modules: register and number; one that stays may keep tensors alive
    """

    grad: bool = True
    dtype: str = "float32"
    dispatch: int = 0
    function: int = 0
    hooks: frozenset[tuple[str, int]] = frozenset()


def torch_state() -> TorchState:
    torch = sys.modules.get("torch")
    if torch is None:
        return TorchState()
    dtype = str(torch.get_default_dtype()).removeprefix("torch.")
    stacks = torch._C._len_torch_dispatch_stack(), torch._C._len_torch_function_stack()
    registers = torch.nn.modules.module
    hooks = frozenset((name, number) for name in HOOKS for number in getattr(registers, name))
    return TorchState(torch.is_grad_enabled(), dtype, *stacks, hooks)


def restore(state: TorchState) -> None:
    """Set torch to `state` again. Modes and hooks that came since are taken off; one taken off too often is lost."""
    now = torch_state()
    if now == state:
        return
    import torch

    torch.set_grad_enabled(state.grad)
    torch.set_default_dtype(getattr(torch, state.dtype))
    for name, number in now.hooks - state.hooks:
        getattr(torch.nn.modules.module, name).pop(number, None)
    for _ in range(now.dispatch - state.dispatch):
        torch._C._pop_torch_dispatch_stack(None)
    for _ in range(now.function - state.function):
        torch._C._pop_torch_function_stack()
