"""Numbers that a learner's function returned: from numpy or torch as good as Python's own."""

from typing import Any


def as_numbers(value: Any) -> Any:
    """An array or a tensor as the numbers in it, also within a list or a tuple; anything else as it is."""
    if isinstance(value, tuple | list):
        parts = [as_numbers(one) for one in value]
        return tuple(parts) if isinstance(value, tuple) else parts
    listed = getattr(value, "tolist", None)
    return listed() if callable(listed) else value


def carries_a_graph(value: Any) -> bool:
    """True for a tensor from which backward could still run: it keeps activations, and cannot be plotted."""
    return getattr(value, "requires_grad", False) is True
