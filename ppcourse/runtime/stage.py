"""One stage on its rank: forward, backward, and what is kept in between."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map

from ppcourse.runtime.buffers import Buffers, Renewed, as_before, changed, copies, tensors_kept
from ppcourse.runtime.cutting import closed, cutting
from ppcourse.runtime.extras import call, judge, taken_by
from ppcourse.runtime.graph import Graph, aliases, can_have_gradient
from ppcourse.runtime.handed_on import check_output, tensors_of
from ppcourse.runtime.split import SplitError, Splitter
from ppcourse.runtime.together import Unrelated, copied, memory_of

LossFunction = Callable[[Any, Any], Tensor]
ONE_RANK = (
    "and each copy would see some of the microbatches only; put it in eval mode, or take a plan that has each layer on"
    " one rank."
)


class End(NamedTuple):
    """What a microbatch ends in: its target, and what its loss counts in the loss of the whole batch."""

    target: Any
    scale: float


class Stash(NamedTuple):
    """What a microbatch leaves between its F and its B or I.

    inputs   the tensors that the stage's graph starts from, None where no gradient is wanted
    graph    known since F, or found by running F again
    """

    inputs: list[Tensor | None]
    graph: Callable[[], Graph]


class Stage:
    """A slice of the model.

    layers        {number in the whole model: layer}, in order
    loss_fn       on the last stage only: (output, target) → one number
    seed          random numbers of a layer come from (seed, step, layer, microbatch) alone, so that neither the
                  cut nor the schedule changes them
    recompute     keep only the inputs of the stage, and run forward again before backward (Huang et al. 2019, §2.3)
    copied        numbers of layers that live on other ranks too, so that their buffers must not change

    extras        {microbatch: {name: what layers that take it by that name get}}, of this step
    whole         tensors that several microbatches get, of this step
    stash         {microbatch: what its B or I will need}
    owed          {microbatch: what its W will need}, from I on
    losses        of this step
    """

    def __init__(
        self,
        layers: dict[int, nn.Module],
        loss_fn: LossFunction | None,
        seed: int = 0,
        recompute: bool = False,
        copied: Iterable[int] = (),
    ) -> None:
        self.layers, self.loss_fn = layers, loss_fn
        self.seed, self.recompute = seed, recompute
        self.stash: dict[int, Stash] = {}
        self.owed: dict[int, Splitter | None] = {}
        self.begin(0)
        self.whole: Sequence[Tensor] = ()
        self.copied = {number for number in copied if number in layers}
        self.generators: Sequence[torch.Generator] = (torch.default_generator,)  # on a GPU, that GPU's too
        self.autocast: Callable[[], AbstractContextManager[None]] = nullcontext
        self._takes = {number: taken_by([layer]) for number, layer in layers.items()}
        self._modules = [module for layer in layers.values() for module in layer.modules()]
        self._buffered = [module for module in self._modules if tensors_kept([module])]
        self._renewed = Renewed(self._buffered)

    def begin(self, step: int, extras: Mapping[int, Mapping[str, Any]] | None = None) -> None:
        """Before each step."""
        self.step, self.extras = step, extras or {}
        self.losses: list[Tensor] = []
        every = dict.fromkeys(weight for layer in self.layers.values() for weight in layer.parameters())
        self._weights, self._memory = [weight for weight in every if weight.requires_grad], memory_of(every)

    @property
    def held(self) -> int:
        """Of how many microbatches something is kept."""
        return len(self.stash) + len(self.owed)

    def forward(self, microbatch: int, inputs: Any, end: End | None = None, split: bool = False) -> Any:
        """What this stage hands on. With an end the last stage also computes the loss, kept in `losses`.

        split   backward will come as I and W: cut the graph for it
        """
        keeps_graph = torch.is_grad_enabled() and not self.recompute
        again = torch.is_grad_enabled() and self.recompute
        splitter = Splitter() if split else None
        before = copies(self._modules) if again else copies(self._buffered) if keeps_graph and self.copied else {}
        renewed = self._renewed.for_one() if keeps_graph and self._buffered else nullcontext()
        with torch.set_grad_enabled(keeps_graph), self.autocast(), renewed:
            # layers, and the loss, may work in place, and running them again must find things as they came
            given, last = copied((inputs, end)) if again else (inputs, end)
            output, loss = self._compute(microbatch, given, last, splitter if keeps_graph else None)
        then = changed(before)
        self._check_copies(then)
        if loss is not None:
            self.losses.append(loss.detach())
        if keeps_graph:
            graph = Graph.of(tensors_of(output) if loss is None else [loss], splitter)
            self._keep(microbatch, inputs, lambda: graph)
        elif again:
            self._keep(microbatch, inputs, lambda: self._run_again(microbatch, inputs, end, splitter, then))
            output = self._announce_gradients(inputs, output)
        return output

    def backward(self, microbatch: int, grads: Sequence[Tensor | None] | None) -> list[Tensor | None]:
        """B: adds to the weights' gradients; the gradients of the input tensors, None for those that need none.

        grads   one for each tensor that forward handed on, None where nobody needed it; None: begin at the loss
        """
        stash = self.stash.pop(microbatch)
        edges, due = stash.graph().due(grads)
        if edges:
            torch.autograd.backward(edges, due)
        return [None if tensor is None else tensor.grad for tensor in stash.inputs]

    def input_grad(self, microbatch: int, grads: Sequence[Tensor | None] | None) -> list[Tensor | None]:
        """I: as B, but the weights' gradients wait for W. Frees what W does not need."""
        stash = self.stash.pop(microbatch)
        graph = stash.graph()
        self.owed[microbatch] = graph.splitter
        assert graph.splitter, f"forward of microbatch {microbatch} did not know that its backward is split"
        return graph.splitter.input_grad(*graph.due(grads), stash.inputs, self._weights)

    def weight_grad(self, microbatch: int) -> None:
        """W: adds to the weights' gradients what I left over."""
        splitter = self.owed.pop(microbatch)
        assert splitter
        splitter.weight_grad(self._weights)

    def let_go(self, value: Any) -> Any:
        """What this stage hands on, for whoever gets it without a message: he may write into it, and this stage go on
        to write into its buffers."""
        own = self._memory | memory_of(tensors_kept(self._buffered))
        return value if own.isdisjoint(memory_of(tensors_of(value))) else copied(value)

    def _check_copies(self, then: Buffers) -> None:
        """Raise RuntimeError if a layer that other ranks hold too has changed its buffers: each copy would do so for
        its own microbatches only."""
        written = {module for (module, _), old in then.items() if isinstance(old, Tensor)}
        for number in self.copied if written else ():
            if not written.isdisjoint(self.layers[number].modules()):
                name = f"Layer {number} ({type(self.layers[number]).__name__})"
                raise RuntimeError(f"{name} keeps statistics in a tensor, but has a copy on another rank, {ONE_RANK}")

    def _keep(self, microbatch: int, inputs: Any, graph: Callable[[], Graph]) -> None:
        wanted = [leaf if leaf.requires_grad else None for leaf in tensors_of(inputs)]
        self.stash[microbatch] = Stash(wanted, graph)

    def _announce_gradients(self, inputs: Any, output: Any) -> Any:
        """Without a graph, say that all that may require a gradient does; where it turns out not to, it is dropped."""
        if not self._weights and not any(tensor.requires_grad for tensor in tensors_of(inputs)):
            return output
        return tree_map(
            lambda x: x.detach().requires_grad_(can_have_gradient(x)) if isinstance(x, Tensor) else x, output
        )

    def _run_again(
        self, microbatch: int, inputs: Any, end: End | None, splitter: Splitter | None, buffers: Buffers
    ) -> Graph:
        """F once more, this time with a graph; to `buffers` as they were, and without a trace in them."""
        with as_before(buffers), self.autocast():
            output, loss = self._compute(microbatch, inputs, end, splitter)
        return Graph.of(tensors_of(output) if loss is None else [loss], splitter)

    def _compute(
        self, microbatch: int, inputs: Any, end: End | None, splitter: Splitter | None
    ) -> tuple[Any, Tensor | None]:
        value, extras, given = aliases(inputs), self.extras.get(microbatch, {}), Unrelated(inputs)
        with cutting(splitter, self._buffered) if splitter else nullcontext():
            for number, layer in self.layers.items():
                seed_for(self.seed, self.step, number, microbatch, self.generators)
                try:
                    value = call(number, layer, value, self._takes[number], extras, self.whole)
                except SplitError as error:
                    raise SplitError(f"Layer {number} ({type(layer).__name__}) {error}") from None
                given.check(number, layer)
                check_output(number, layer, value)
        value = closed(splitter, value) if splitter else value
        if self.loss_fn is None or end is None:
            return value, None
        loss = judge(self.loss_fn, value, end.target, self.whole)
        # what counts nothing may be 0 ÷ 0, with NaN for a gradient: a microbatch in which every target is ignored
        return value, loss * end.scale if end.scale else torch.zeros_like(loss.detach())


def seed_for(
    seed: int,
    step: int,
    layer: int,
    microbatch: int,
    generators: Sequence[torch.Generator] = (torch.default_generator,),
) -> None:
    """Seed the generators for one layer and microbatch."""
    # not torch.manual_seed, which asks every kind of device and takes a hundred times as long
    for generator in generators:
        generator.manual_seed(hash((seed, step, layer, microbatch)) & (2**63 - 1))
