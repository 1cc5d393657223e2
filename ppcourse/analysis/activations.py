"""What a transformer layer keeps for its backward, in closed forms: bytes of one microbatch.

16-bit activations, dropout masks of one byte an element, and nothing else. Each formula is of one layer.
"""

from numbers import Integral
from typing import Literal, TypeAlias

Recompute: TypeAlias = Literal["none", "selective", "full"]
"""none: everything is kept; selective: all but the attention matrices, which are computed again (or never stored, as
FlashAttention has it); full: only the layer's input is kept."""


def layer_activations(
    s: int,
    b: int,
    h: int,
    a: int,
    *,
    ffn: int | None = None,
    t: int = 1,
    sequence_parallel: bool = False,
    recompute: Recompute = "none",
) -> float:
    """Bytes of one layer for one microbatch: s b h (34 + 5 a s ÷ h), and its kin.

    s  sequence length      h  hidden size            a  attention heads       ffn  width of the feed-forward
    b  sequences            t  tensor-parallel ranks                                layers, 4 h by default

    Korthikanti et al. 2022 (arXiv 2205.05198), §4.1, §5 and Table 2.

    Per s b h: attention keeps 11 and 5 a s ÷ h, the two layer norms 4, and the feed-forward layers 3 + 4 ffn ÷ h,
    19 if ffn is 4 h. Of these, tensor parallelism does not divide 10 (the layer norms, the inputs of both blocks,
    their last dropout masks), and with sequence parallelism it divides them, too.

        t = 1                        34 + 5 a s ÷ h          selective     34
        t                            10 + 24 ÷ t + 5 a s ÷ (h t)           10 + 24 ÷ t
        t, sequence parallel         34 ÷ t + 5 a s ÷ (h t)                34 ÷ t          full   2

    For ffn = 4 h; Megatron-LM's 18 + 4 ffn ÷ h (theoretical_memory_usage.py) is the 34 for any ffn.
    Raises ValueError for another `recompute`, and for what is not a whole number of at least 1.
    """
    for word, value in {"s": s, "b": b, "h": h, "a": a, "ffn": 1 if ffn is None else ffn, "t": t}.items():
        if isinstance(value, bool) or not isinstance(value, Integral) or value < 1:
            raise ValueError(f"{word} is {value!r}; it must be a whole number of at least 1.")
    if recompute == "full":
        return 2.0 * s * b * h
    if recompute not in ("none", "selective"):
        raise ValueError(f"recompute is {recompute!r}; it is none, selective or full.")
    undivided = 10 / t if sequence_parallel else 10
    matrices = 5 * a * s / h if recompute == "none" else 0.0
    return s * b * h * (undivided + (8 + 4 * (ffn or 4 * h) / h + matrices) / t)


def split_activations(s: int, b: int, h: int, a: int) -> tuple[float, float]:
    """What is kept from F on, s b (34 h + 5 a s), and what of it from I until W, s b 32 h.

    The weight gradients need the inputs of the matrix products and the gradients of their outputs. Qi et al. 2024
    (Zero Bubble, arXiv 2401.10241), §2; efficiency.py of its authors' repository.
    """
    return float(s * b * (34 * h + 5 * a * s)), float(s * b * 32 * h)


def embedding_activations(s: int, b: int, h: int) -> float:
    """8 s b for the input, in whole numbers of 8 bytes, and s b h for the mask of the embedding's dropout. Megatron-LM,
    theoretical_memory_usage.py."""
    return float(8 * s * b + s * b * h)


def head_activations(s: int, b: int, h: int, vocab: int) -> float:
    """4 s b h (1 + V ÷ h): the inputs of the last layer norm and of the head in 16 bits, and the logits in 32 bits for
    the loss. Korthikanti et al. 2022, §4.3; Megatron-LM, theoretical_memory_usage.py."""
    return 4.0 * s * b * h * (1 + vocab / h)
