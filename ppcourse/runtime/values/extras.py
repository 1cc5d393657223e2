"""Extras: what layers need beside the data that runs through them, such as a mask or positions.

Each goes, under its name, to every layer whose forward has a parameter of that name after the data, on whichever
rank the layer lives.
"""

import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from ppcourse.runtime.values.handed_on import check_loss


class Whole(NamedTuple):
    """`extras={"mask": Whole(mask)}`: every microbatch gets all of `value`, though it may have the batch's rows.

    For what is not about rows and may still be as long as the batch: a causal mask [8, 8] for 8 rows of 8 tokens.
    """

    value: Any


def taken_by(layers: Iterable[nn.Module]) -> set[str]:
    """The names under which `layers` take something beside the data."""
    return {name for layer in layers for name in _parameters(layer)}


def check_extras(extras: Any, layers: Sequence[nn.Module]) -> dict[str, Any]:
    """Raise ValueError for names that no layer takes, names that a layer misses, and what needs a gradient."""
    if not isinstance(extras, Mapping | None):
        raise ValueError(
            f"extras is a {type(extras).__name__}, but it must be a dict by names, as in {{'mask': mask}}."
        )
    given = dict(extras or {})
    taken = taken_by(layers) if given else set()
    for name, extra in given.items():
        if name not in taken:
            have = f"layers take {', '.join(sorted(taken))}" if taken else "layers take nothing beside the data"
            raise ValueError(f"No layer takes the extra {name!r} by that name; {have}.")
        if any(leaf.requires_grad for leaf in tree_leaves(extra) if isinstance(leaf, Tensor)):
            raise ValueError(f"The extra {name!r} requires a gradient, but extras are data; detach() it.")
    for number, layer in enumerate(layers):
        misses = [name for name, one in _parameters(layer).items() if one.default is one.empty and name not in given]
        if misses and not layer._forward_pre_hooks:  # which may add what is missing
            kind = f"Layer {number} ({type(layer).__name__})"
            raise ValueError(f"{kind} cannot do without {misses[0]!r}; give it as extras={{{misses[0]!r}: …}}.")
    return given


def call(
    number: int,
    layer: nn.Module,
    value: Any,
    names: Iterable[str],
    extras: Mapping[str, Any],
    whole: Iterable[Tensor] = (),
) -> Any:
    """What the layer makes of `value` and its extras. Raises ValueError if it writes into these: others get them.

    whole   of the batch's tensors, those that several microbatches get
    """
    given = among(names, extras)
    before, batch = _versions(given), _versions(whole)
    result = layer(value, **given)
    kind = f"Layer {number} ({type(layer).__name__})"
    if before != _versions(given):
        raise ValueError(f"{kind} writes into an extra, which other layers and microbatches get too; let it clone().")
    if batch != _versions(whole):
        raise ValueError(f"{kind} writes into a part of the batch that other microbatches get too; let it clone().")
    return result


def judge(loss_fn: Callable[[Any, Any], Any], output: Any, target: Any, whole: Iterable[Tensor] = ()) -> Tensor:
    """The loss. Raises ValueError if the loss function writes into what other microbatches get too."""
    before = _versions(whole)
    loss = loss_fn(output, target)
    check_loss(loss)
    if before != _versions(whole):
        raise ValueError("loss_fn writes into a part of the batch that other microbatches get too; let it clone().")
    return loss  # type: ignore[no-any-return]


def _versions(value: Any) -> list[int]:
    """How often each tensor has been written into."""
    if not value:
        return []
    tensors = (leaf for leaf in tree_leaves(value) if isinstance(leaf, Tensor) and not leaf.is_inference())
    return [tensor._version for tensor in tensors]


def among(names: Iterable[str], extras: Mapping[str, Any]) -> dict[str, Any]:
    """Of a microbatch's extras, those with these names."""
    return {name: extras[name] for name in names if name in extras} if extras else {}


def _parameters(layer: nn.Module) -> dict[str, inspect.Parameter]:
    """What a layer's forward takes by name beside the data, its first parameter."""
    try:
        _, *more = inspect.signature(getattr(layer, "_orig_mod", layer).forward).parameters.values()
    except (TypeError, ValueError):  # scripted, or without any parameter
        return {}
    return {one.name: one for one in more if one.kind in (one.POSITIONAL_OR_KEYWORD, one.KEYWORD_ONLY)}
