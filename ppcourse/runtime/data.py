"""Real text that every Python has: the language reference that help() shows, half a megabyte of English.

A token is one byte, so the vocabulary is 256 in every version of Python, and nothing is downloaded.
"""

from collections.abc import Iterator
from functools import cache
from pydoc_data import topics

import torch
import torch.nn.functional as F
from torch import Tensor

VOCAB = 256


def text() -> str:
    """The documentation as one string, in the order of its topics' names."""
    return "\n\n".join(topics.topics[name] for name in sorted(topics.topics))


def encode(string: str) -> Tensor:
    """Tokens of a string: int64 [bytes], each 0 to 255."""
    return torch.tensor(list(string.encode()), dtype=torch.int64)


def decode(tokens: Tensor) -> str:
    """The string that these tokens, [any length], spell; a cut character becomes a question mark."""
    return bytes(tokens.flatten().tolist()).decode(errors="replace")


@cache
def corpus() -> Tensor:
    return encode(text())


def batches(batch_size: int, context: int, steps: int, seed: int = 0) -> Iterator[tuple[Tensor, Tensor]]:
    """`steps` pairs (inputs, targets), int64 [batch_size, context]; a target is the token that follows.

    Each row is a piece of the text that starts anywhere; the same seed gives the same batches.
    """
    tokens = corpus()
    if not 0 < context < len(tokens):
        raise ValueError(f"A context must be 1 to {len(tokens) - 1} tokens long, not {context}.")
    generator = torch.Generator().manual_seed(seed)
    for _ in range(steps):
        starts = torch.randint(len(tokens) - context, (batch_size, 1), generator=generator)
        pieces = tokens[starts + torch.arange(context + 1)]
        yield pieces[:, :-1], pieces[:, 1:]


def text_loss(logits: Tensor, targets: Tensor) -> Tensor:
    """Mean cross entropy, in nats a token, of logits [batch, context, vocab] for targets [batch, context].

    ln 256 = 5.55 knows nothing.
    """
    return F.cross_entropy(logits.flatten(0, 1), targets.flatten())
