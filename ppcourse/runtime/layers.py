"""The layers of a model."""

from collections.abc import Sequence
from typing import TypeAlias

from torch import nn
from torch.nn.parameter import is_lazy

Model: TypeAlias = nn.Sequential | Sequence[nn.Module]


def layers_of(model: Model) -> list[nn.Module]:
    """The layers of an nn.Sequential, or of a list of modules."""
    if not isinstance(model, nn.Sequential | list | tuple):
        raise ValueError(
            f"The model is a {type(model).__name__}; to be cut into stages it must be an nn.Sequential,"
            " or a list of layers."
        )
    if isinstance(model, nn.Sequential):
        _check_plain(model)
    layers = list(model)
    if not layers:
        raise ValueError("The model has no layers; it must be an nn.Sequential, or a list, of at least one.")
    for number, layer in enumerate(layers):
        if not isinstance(layer, nn.Module):
            raise ValueError(f"Layer {number} of the model is a {type(layer).__name__}, but a layer is an nn.Module.")
        if any(map(is_lazy, (*layer.parameters(), *layer.buffers()))):
            raise ValueError(
                f"Layer {number} ({type(layer).__name__}) has weights that have no shape yet, and would get others on"
                " each rank; run the model once in this process before, on any batch."
            )
    return layers


def _check_plain(model: nn.Sequential) -> None:
    """Raise ValueError for an nn.Sequential that is more than its layers: the ranks would not know the rest."""
    own = "forward" if type(model).forward is not nn.Sequential.forward else ""
    own = own or next((f"weight {name}" for name, _ in model.named_parameters(recurse=False)), "")
    own = own or ("hooks" if model._forward_hooks or model._forward_pre_hooks else "")
    if own:
        raise ValueError(
            f"The model has {own} of its own beside its layers, which a pipeline cannot cut; put that into a layer."
        )
