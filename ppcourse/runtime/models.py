"""Models to cut into stages: a small GPT and a stack of equal layers.

Both are a flat nn.Sequential, which is all a pipeline asks of a model: every layer takes one tensor and
returns one, so a cut between any two layers is one tensor to send.
"""

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ppcourse.runtime.data import VOCAB


class Embedding(nn.Module):
    """Tokens, int64 [batch, time], to vectors [batch, time, width]: what each is plus where it stands."""

    def __init__(self, vocab: int, context: int, width: int) -> None:
        super().__init__()
        self.token = nn.Embedding(vocab, width)
        self.position = nn.Embedding(context, width)

    def forward(self, tokens: Tensor) -> Tensor:
        time, context = tokens.shape[1], self.position.num_embeddings
        if time > context:
            raise ValueError(f"This GPT reads at most {context} tokens at a time and was given {time}.")
        out: Tensor = self.token(tokens) + self.position.weight[:time]
        return out


class Block(nn.Module):
    """Causal attention, then an MLP, each of a normalised copy and added back; [batch, time, width]."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.project = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.expand, self.contract = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attend(self.norm1(x))
        out: Tensor = x + self.contract(F.gelu(self.expand(self.norm2(x))))
        return out

    def attend(self, x: Tensor) -> Tensor:
        batch, time, width = x.shape
        # [batch, time, 3 · width] to three of [batch, heads, time, width / heads]
        q, k, v = self.qkv(x).view(batch, time, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        out: Tensor = self.project(mixed.transpose(1, 2).reshape(batch, time, width))
        return out


class Head(nn.Module):
    """Vectors [batch, time, width] to the logits of the next token, [batch, time, vocab]."""

    def __init__(self, width: int, vocab: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.logits = nn.Linear(width, vocab, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.logits(self.norm(x))
        return out


def gpt(
    layers: int = 6,
    width: int = 64,
    heads: int = 4,
    vocab: int = VOCAB,
    context: int = 64,
    seed: int = 0,
) -> nn.Sequential:
    """An embedding, `layers` blocks and a head: layers + 2 elements, the same weights for the same seed."""
    if width % heads:
        raise ValueError(f"The width of a GPT is a multiple of its heads, and {width} is not one of {heads}.")

    def build() -> nn.Sequential:
        blocks = [Block(width, heads) for _ in range(layers)]
        model = nn.Sequential(Embedding(vocab, context, width), *blocks, Head(width, vocab))
        for name, parameter in model.named_parameters():
            if parameter.dim() == 2:
                # Every block adds to the stream twice: scaled so, its variance does not grow with depth.
                adds = name.endswith(("project.weight", "contract.weight"))
                nn.init.normal_(parameter, std=0.02 / (2 * layers) ** 0.5 if adds else 0.02)
            elif name.endswith("bias"):
                nn.init.zeros_(parameter)
        return model

    return seeded(build, seed)


def mlp(layers: int = 8, width: int = 64, seed: int = 0) -> nn.Sequential:
    """Equal layers, each [batch, width] to [batch, width], so that stages can cost the same."""

    def layer() -> nn.Sequential:
        return nn.Sequential(nn.Linear(width, width), nn.Tanh())

    return seeded(lambda: nn.Sequential(*(layer() for _ in range(layers))), seed)


def seeded(build: Callable[[], nn.Sequential], seed: int) -> nn.Sequential:
    """What build() makes from this seed, on the CPU, with the caller's random numbers left as they were."""
    with torch.random.fork_rng(devices=[]), torch.device("cpu"):
        torch.default_generator.manual_seed(seed)  # torch.manual_seed would also seed every GPU
        return build()
