"""One stage on its rank: forward, backward, and what is kept in between."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from ppcourse.runtime.stages.again import FirstRun
from ppcourse.runtime.stages.buffers import Renewed, stateful, tensors_kept
from ppcourse.runtime.stages.cutting import closed, cutting
from ppcourse.runtime.stages.graph import Graph, aliases
from ppcourse.runtime.stages.split import SplitError, Splitter
from ppcourse.runtime.stages.twins import Twins, Watch
from ppcourse.runtime.values.extras import call, judge, taken_by
from ppcourse.runtime.values.handed_on import as_inputs, check_output, tensors_of
from ppcourse.runtime.values.together import Unrelated, copied, memory_of

LossFunction = Callable[[Any, Any], Tensor]
NO_TWINS = Twins()


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
    twins         what other ranks hold too, so that forward must not change it

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
        twins: Twins = NO_TWINS,
    ) -> None:
        self.layers, self.loss_fn = layers, loss_fn
        self.seed, self.recompute = seed, recompute
        self.stash: dict[int, Stash] = {}
        self.owed: dict[int, Splitter | None] = {}
        self.begin(0)
        self.whole: Sequence[Tensor] = ()
        self._watch = Watch(layers, twins) if any(twins) else None
        self.generators: Sequence[torch.Generator] = (torch.default_generator,)  # on a GPU, that GPU's too
        self.autocast: Callable[[], AbstractContextManager[None]] = nullcontext
        self._takes = {number: taken_by([layer]) for number, layer in layers.items()}
        self._modules = [module for layer in layers.values() for module in layer.modules()]
        self._buffered = [module for module in self._modules if tensors_kept([module])]
        self._renewed = Renewed(self._buffered)
        self._stateful, self._names = stateful(self._modules), names_of(layers)

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
        trains = torch.is_grad_enabled()
        keeps_graph, again = trains and not self.recompute, trains and self.recompute
        splitter = Splitter() if split else None
        first = FirstRun(self.layers, self._stateful, self._names) if again else None
        renewed = self._renewed.for_one() if keeps_graph and self._buffered else nullcontext()
        with self.autocast(), renewed, self._watch.watching() if self._watch else nullcontext():
            # layers, and the loss, may work in place, and running them again must find things as they came
            given, last = copied((inputs, end)) if again else (inputs, end)
            output, loss = self._compute(microbatch, given, last, splitter if keeps_graph else None)
        if loss is not None:
            self.losses.append(loss.detach())
        if keeps_graph:
            graph = Graph.of(tensors_of(output) if loss is None else [loss], splitter)
            self._keep(microbatch, inputs, lambda: graph)
        elif first:
            first.ended(output if loss is None else loss)
            self._keep(microbatch, inputs, lambda: self._run_again(microbatch, inputs, end, splitter, first))
            output = as_inputs(output)  # without the graph, which has told what requires a gradient
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

    def _keep(self, microbatch: int, inputs: Any, graph: Callable[[], Graph]) -> None:
        wanted = [leaf if leaf.requires_grad else None for leaf in tensors_of(inputs)]
        self.stash[microbatch] = Stash(wanted, graph)

    def _run_again(
        self, microbatch: int, inputs: Any, end: End | None, splitter: Splitter | None, first: FirstRun
    ) -> Graph:
        """F once more, this time keeping its graph; on what it found, and without a second trace of it."""
        with first.found_again() as results, self.autocast():
            output, loss = self._compute(microbatch, inputs, end, splitter)
            results += [output if loss is None else loss]
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


def names_of(layers: Mapping[int, nn.Module]) -> dict[Tensor, tuple[int, str]]:
    """{weight: (its first layer's number, its name there)}"""
    found: dict[Tensor, tuple[int, str]] = {}
    for number, layer in layers.items():
        for name, weight in layer.named_parameters():
            found.setdefault(weight, (number, name))
    return found


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
