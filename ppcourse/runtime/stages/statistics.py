"""Layers that keep statistics of the data, and that several ranks hold a copy of.

Each copy would see some of the microbatches only, and no two copies would end with the same statistics. Weights are
another matter: their gradients are summed.
"""

from collections import defaultdict

from torch.nn.modules.batchnorm import _NormBase

from ppcourse.runtime.prepare import Cut
from ppcourse.runtime.stages.buffers import stateful
from ppcourse.runtime.stages.twins import ONE_RANK, Twins


def check_statistics(cut: Cut) -> Twins:
    """What several ranks hold, which a forward must leave as it is.

    Raises ValueError if one of them is known to keep running statistics.
    """
    layers = {number: layer for stage in cut.stages for number, layer in stage.items()}
    copied = _copied(cut)
    for number, ranks in copied.items():
        for module in layers[number].modules():
            if isinstance(module, _NormBase) and module.training and module.running_mean is not None:
                name, homes = f"Layer {number} ({type(layers[number]).__name__})", " and ".join(map(str, sorted(ranks)))
                kind = type(module).__name__
                raise ValueError(f"{name} keeps statistics ({kind}), but lives on ranks {homes}, {ONE_RANK}")
    return twins_in(cut)


def twins_in(cut: Cut) -> Twins:
    """What several ranks hold of what may change: layers that can keep something, and weights."""
    tied = (names for names in cut.aliases.values() if len(set().union(*map(cut.holders, names))) > 1)
    return Twins(frozenset(_copied(cut)), frozenset(name for names in tied for name in names))


def _copied(cut: Cut) -> dict[int, set[int]]:
    """{number of a layer that can keep something: its ranks}, for those that several ranks hold, or hold a part of."""
    homes: dict[int, set[int]] = defaultdict(set)
    placement = cut.plan.placement
    keeping = {
        number: [id(module) for module in stateful(layer.modules())]
        for layers in cut.stages
        for number, layer in layers.items()
    }
    for stage, layers in enumerate(cut.stages):
        for module in (module for number in layers for module in keeping[number]):
            homes[module] |= {placement.ranks[stage], *placement.opposite[stage : stage + 1]}
    found = {number: set().union(*(homes[module] for module in modules)) for number, modules in keeping.items()}
    return {number: ranks for number, ranks in found.items() if len(ranks) > 1}
