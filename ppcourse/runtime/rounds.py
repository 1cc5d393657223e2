"""Passing one microbatch through stages in this process, one stage after another, to time and to weigh them.

A round goes forward through all stages, then back with I, then with W. What is timed is the CPU time of one thread, as
ranks have one: what else the machine does does not count, nor what a layer waits for.

Weighed is each stage alone: it gets copies of what it was given, so that what is alive afterwards is what it keeps, and
nothing else. What two stages share where they are on one rank, neighbours.py finds out.
"""

import contextlib
import io
import random
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, NamedTuple

import numpy
import torch
from torch import Tensor, nn

from ppcourse.analysis.sharing import Turn
from ppcourse.runtime.meter import ACTIVATIONS, KEPT_FOR_W, Between, LiveBytes
from ppcourse.runtime.stages.neighbours import Both, Neighbours
from ppcourse.runtime.stages.stage import End, LossFunction, Stage
from ppcourse.runtime.stages.weights import counted
from ppcourse.runtime.values import wire
from ppcourse.runtime.values.handed_on import as_inputs, tensors_of
from ppcourse.runtime.values.together import bundled, copied

MOST_ROUNDS = 50


class Kept(NamedTuple):
    """What a stage takes of one microbatch; see Sizes, which has the same names."""

    stashed: int
    kept_for_w: int
    boundary: int
    envelope: int
    back: int


class Rounds:
    """Passes through layers of which nobody else has need."""

    def __init__(
        self,
        layers: Sequence[nn.Module],
        inputs: Any,
        targets: Any,
        loss_fn: LossFunction | None,
        extras: Mapping[str, Any],
        seed: int = 0,
    ) -> None:
        for layer in layers:
            layer.zero_grad(set_to_none=True)
        self.layers, self.loss_fn, self.extras, self.seed = layers, loss_fn, extras, seed
        self.inputs = copied(inputs)  # of their own, and not a part of the batch
        self.end = None if loss_fn is None else End(copied(targets), 1.0)

    def times(self, budget: float) -> tuple[list[tuple[float, float, float]], int]:
        """For each layer the medians of F, I and W, seconds of CPU time, and of how many rounds; one more warms up."""
        stages = self._stages([1] * len(self.layers))
        rounds: list[list[tuple[float, float, float]]] = []
        with _as_on_ranks():
            self._round(stages)  # warms up, with much that is done once only
            began = time.perf_counter()
            while not rounds or (len(rounds) < MOST_ROUNDS and time.perf_counter() - began < budget):
                rounds.append(self._round(stages))
        by_layer = zip(*rounds, strict=True)
        medians = [tuple(map(statistics.median, zip(*laps, strict=True))) for laps in by_layer]
        return [(f, i, w) for f, i, w in medians], len(rounds)

    def weigh(self, sizes: Sequence[int], recompute: bool = False) -> list[Kept]:
        """What each stage of so many layers keeps."""
        return self.weigh_with_turns(sizes, recompute, turns=False)[0]

    def weigh_with_turns(
        self, sizes: Sequence[int], recompute: bool = False, turns: bool = True
    ) -> tuple[list[Kept], list[Turn]]:
        """And what each shares with the one before it."""
        stages = self._stages(sizes, recompute)
        with _as_on_ranks():
            came, kept, grads = self._given(stages), list[Kept](), None
            both = list[Both]()
            for number, stage in reversed([*enumerate(stages)]):
                last = stage is stages[-1]
                weight, back = self._weighed(number, stage, came[number], grads, last)
                kept.insert(0, weight)
                if number and turns:
                    end = self.end if last else None
                    begin = self._first_gradients if last else partial(_always, grads)
                    pair = Neighbours(number, stages[number - 1], stage, came[number - 1], end, begin)
                    both.insert(0, pair.kept())
                grads = back
        return kept, [Turn(), *map(_turn, kept, kept[1:], both)]

    def sizes(self, sizes: Sequence[int], recompute: bool = False) -> dict[str, Any]:
        """What `Sizes` has of stages of so many layers, by its names."""
        kept, turns = self.weigh_with_turns(sizes, recompute)
        by_name = {name: [getattr(stage, name) for stage in kept] for name in Kept._fields}
        return {**by_name, "turns": turns, **counted([[*cut.values()] for cut in self._cut(sizes)])}

    def _given(self, stages: Sequence[Stage]) -> list[Any]:
        """What each stage is given."""
        came = [self.inputs]
        for stage in stages[:-1]:
            came.append(as_inputs(stage.forward(0, came[-1])))
            stage.stash.clear()
        return came

    def _stages(self, sizes: Sequence[int], recompute: bool = False) -> list[Stage]:
        last, cut = len(sizes) - 1, self._cut(sizes)
        stages = [Stage(x, self.loss_fn if s == last else None, self.seed, recompute) for s, x in enumerate(cut)]
        for stage in stages:
            stage.extras = {0: self.extras}
        return stages

    def _cut(self, sizes: Sequence[int]) -> list[dict[int, nn.Module]]:
        numbered = iter(enumerate(self.layers))
        return [dict(next(numbered) for _ in range(size)) for size in sizes]

    def _round(self, stages: Sequence[Stage]) -> list[tuple[float, float, float]]:
        value, forward, back, later = self.inputs, [], [], []
        for stage in stages:
            end = self.end if stage is stages[-1] else None
            output, seconds = _timed(partial(stage.forward, 0, value, end, split=True))
            forward.append(seconds)
            value = as_inputs(output)
        grads = self._first_gradients(value)
        for stage in reversed(stages):
            grads, seconds = _timed(partial(stage.input_grad, 0, grads))
            back.append(seconds)
        for stage in reversed(stages):
            later.append(_timed(partial(stage.weight_grad, 0))[1])
            stage.losses.clear()
        return list(zip(forward, back[::-1], later[::-1], strict=True))

    def _weighed(
        self, number: int, stage: Stage, given: Any, grads: Sequence[Tensor | None] | None, last: bool
    ) -> tuple[Kept, list[Tensor | None]]:
        """What a stage keeps, and the gradients of what it was given."""
        owner, meter = (number, 0), LiveBytes(nn.ModuleList(stage.layers.values()))
        meter.turn_to(owner)
        given = as_inputs(copied(given))
        if number:
            meter.watch(given)
        meter.leave_out((self.end, self.extras, None if number else given))
        with meter:
            output = stage.forward(0, given, self.end if last else None, split=True)
        grads = self._first_gradients(output) if last else grads
        boundary, messages = _nbytes(tensors_of(bundled(output))), (0, 0) if last else _messages(output)
        del given, output
        meter.boundary(Between(stashed=[owner]))
        stashed = meter.most[ACTIVATIONS]
        grads = copied(grads)
        meter.watch(grads)
        with meter:
            found = stage.input_grad(0, grads)
        back = copied(found)
        del grads, found
        meter.reset()
        meter.boundary(Between(owed=[owner]))
        stage.weight_grad(0)
        kept = int(stashed), int(meter.most[KEPT_FOR_W])
        return Kept(*kept, boundary, *messages), back

    def _first_gradients(self, output: Any) -> list[Tensor | None] | None:
        """Where backward begins: at the loss, or else with ones."""
        if self.end is not None:
            return None
        return [torch.ones_like(x) if x.requires_grad else None for x in tensors_of(output)]


def _turn(first: Kept, second: Kept, both: Both) -> Turn:
    """By how much two stages take more or less than each for itself; never less than nothing."""
    differences = (
        both.waiting - first.stashed,
        first.stashed + second.stashed - both.stashed,
        both.halfway[0] - first.stashed,
        second.kept_for_w - both.halfway[1],
        first.kept_for_w + second.kept_for_w - both.owed,
        both.returned - first.stashed,
    )
    return Turn(*(max(0, difference) for difference in differences))


def _always(value: Any, *_: Any) -> Any:
    return value


def _messages(output: Any) -> tuple[int, int]:
    """Bytes of a message beside its tensors, and of the message with their gradients."""
    message, grads = bundled(output), [torch.empty_like(x) if x.requires_grad else None for x in tensors_of(output)]
    try:
        return wire.pack(message).numel() - _nbytes(tensors_of(message)), wire.pack(grads).numel()
    except TypeError:  # cannot cross, and need not, inside a stage
        return 0, _nbytes(tensors_of(output))


def _nbytes(tensors: Sequence[Tensor]) -> int:
    return sum(x.numel() * x.itemsize for x in tensors)


@contextmanager
def _as_on_ranks() -> Iterator[None]:
    """One thread, gradients on. What layers print is for a run to show; the caller's random numbers of all kinds,
    threads and default dtype are as before afterwards."""
    threads, dtype = torch.get_num_threads(), torch.get_default_dtype()
    dice, numpy_dice = random.getstate(), numpy.random.get_state()
    with torch.random.fork_rng(devices=[]), torch.enable_grad(), contextlib.redirect_stdout(io.StringIO()):
        torch.set_num_threads(1)
        try:
            yield
        finally:
            torch.set_num_threads(threads)
            torch.set_default_dtype(dtype)
            random.setstate(dice)
            numpy.random.set_state(numpy_dice)


def _timed(work: Callable[[], Any]) -> tuple[Any, float]:
    began = time.thread_time()
    result = work()
    return result, time.thread_time() - began
