"""The shape of a GPT: what its layers compute, hold and hand on."""

from collections.abc import Sequence
from dataclasses import dataclass, fields
from numbers import Integral

from ppcourse.analysis.activations import (
    Recompute,
    embedding_activations,
    head_activations,
    layer_activations,
)


@dataclass(frozen=True)
class LayerWork:
    """A layer, for one microbatch.

    forward, input_grad, weight_grad   floating-point operations of F, I and W
    parameters                         how many weights it has
    stashed, kept_for_w                bytes that F keeps, and what of it is left from I until W
    """

    forward: float
    input_grad: float
    weight_grad: float
    parameters: int
    stashed: float
    kept_for_w: float

    @property
    def total(self) -> float:
        """Floating-point operations of F and B."""
        return self.forward + self.input_grad + self.weight_grad


@dataclass(frozen=True)
class Shape:
    """A decoder-only transformer: an embedding, `layers` equal layers, and a head of its own (untied).

    layers     decoder layers                 vocab      size of the vocabulary
    hidden     width of the model             sequence   tokens in a sequence
    heads      attention heads                ffn        width of the feed-forward layers, 4 hidden by default

    Activations are of 16 bits. Raises ValueError for what is not a whole number of at least 1, and for a billion and
    more (of layers: more than 10,000).
    """

    layers: int
    hidden: int
    heads: int
    vocab: int
    sequence: int
    ffn: int | None = None

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if value is None and field.name == "ffn":
                continue
            if isinstance(value, bool) or not isinstance(value, Integral) or value < 1:
                raise ValueError(f"Shape.{field.name} is {value!r}; it must be a whole number of at least 1.")
            most = 10_000 if field.name == "layers" else 10**9
            if int(value) > most:
                raise ValueError(f"Shape.{field.name} is {value!r}; it must be at most {most:,}.")
            object.__setattr__(self, field.name, int(value))

    @property
    def width(self) -> int:
        """Of the feed-forward layers."""
        return self.ffn or 4 * self.hidden

    @property
    def parameters(self) -> int:
        """Weights of the whole model, how many."""
        return sum(layer.parameters for layer in self.work(1))

    def boundary(self, b: int) -> float:
        """Bytes that a layer hands on for a microbatch of `b` sequences."""
        return 2.0 * self.sequence * b * self.hidden

    def work(self, b: int, recompute: Recompute = "selective") -> tuple[LayerWork, ...]:
        """Embedding, decoder layers and head, in data-flow order, for a microbatch of `b` sequences.

        An embedding is looked up, which takes no time here but has as many weights as the head.
        """
        s, h, vocab = self.sequence, self.hidden, self.vocab
        logits = 2.0 * s * b * h * vocab
        embedding = LayerWork(0, 0, 0, vocab * h, embedding_activations(s, b, h), 8.0 * s * b + 2 * s * b * h)
        head = LayerWork(*(logits,) * 3, vocab * h + 2 * h, head_activations(s, b, h, vocab), 2.0 * s * b * (h + vocab))
        return (embedding, *(self._decoder(b, recompute),) * self.layers, head)

    def _decoder(self, b: int, recompute: Recompute) -> LayerWork:
        """matrices   weights of its four matrix products: 2 operations a token and weight for each of F, I and W
        scores     the two products of attention, which have no weights: 4 s h a token, and twice that in I

        24 s b h² (1 + s ÷ 6h) for F if ffn is 4 h, Narayanan et al. 2021, appendix; recomputation repeats the scores,
        or all of F, before I. From I until W stay the inputs of the matrices and the gradients of their outputs:
        16 h + 4 ffn a token, the 32 h of Qi et al. 2024.
        """
        s, h, tokens = self.sequence, self.hidden, self.sequence * b
        stashed = layer_activations(s, b, h, self.heads, ffn=self.width, recompute=recompute)
        matrices = 4 * h * h + 2 * h * self.width
        product, scores = 2.0 * tokens * matrices, 4.0 * tokens * s * h
        again = {"none": 0.0, "selective": scores, "full": product + scores}[recompute]
        return LayerWork(
            forward=product + scores,
            input_grad=product + 2 * scores + again,
            weight_grad=product,
            parameters=matrices + 4 * h,
            stashed=stashed,
            kept_for_w=float(tokens * (16 * h + 4 * self.width)),
        )


def per_stage(numbers: Sequence[float], sizes: Sequence[int]) -> tuple[float, ...]:
    """One number a layer, added up by stage."""
    rest = iter(numbers)
    return tuple(sum(next(rest) for _ in range(size)) for size in sizes)
