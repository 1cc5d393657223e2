"""One way to train a model on given GPUs, and what it would cost: a plan, a cut, a batch, and their predictions."""

import math
from dataclasses import dataclass
from functools import cached_property, lru_cache
from numbers import Real

from ppcourse.analysis.activations import Recompute
from ppcourse.analysis.hardware import GPU, Link, all_reduce_time
from ppcourse.analysis.ledger import Ledger, sized
from ppcourse.analysis.memory import Sizes, held_by_formula, held_by_plan, static, tally
from ppcourse.analysis.partition import partition
from ppcourse.analysis.shape import LayerWork, Shape, per_stage
from ppcourse.analysis.simulate import simulate
from ppcourse.schedules import build
from ppcourse.schedules.action import Op
from ppcourse.schedules.costs import Costs
from ppcourse.schedules.placement import Placement
from ppcourse.schedules.schedule import Schedule

REPEATING = ("interleaved", "dualpipe", "dualpipe-v")
SEARCH = 200  # patience with cuts for ranks that have several stages: there are many candidates


@dataclass(frozen=True)
class Cluster:
    """What there is to train with. For the words see `choose`."""

    gpus: int
    gpu: GPU
    link: Link
    network: Link
    per_node: int
    efficiency: float
    headroom: float

    @property
    def usable(self) -> float:
        """Bytes of a GPU that a plan may take."""
        return self.gpu.memory * (1 - self.headroom)

    @property
    def hop(self) -> Link:
        """What messages between stages pass. Replicas of a stage stand side by side, so stages lie far apart: within a
        node only if all GPUs are."""
        return self.link if self.gpus <= self.per_node else self.network

    def among(self, replicas: int) -> Link:
        """What the sums over the replicas of a stage pass."""
        return self.link if replicas <= self.per_node else self.network


@dataclass(frozen=True)
class Candidate:
    """A choice of counts, and what is predicted of it. All times are in seconds, all sizes in bytes.

    p, v, m          ranks of a pipeline, stages a rank, microbatches of a step in one pipeline
    data_parallel    how many pipelines there are
    microbatch       sequences in a microbatch
    share_optimizer  whether the replicas of a stage divide its optimizer state among them
    cut              layers of each stage, if not by the fastest cut
    """

    shape: Shape
    cluster: Cluster
    schedule: str
    p: int
    v: int
    m: int
    data_parallel: int
    microbatch: int
    recompute: Recompute = "selective"
    share_optimizer: bool = False
    cut: tuple[int, ...] | None = None

    def __str__(self) -> str:
        stages = f", v = {self.v}" if self.v > 1 else ""
        counts = f"p = {self.p}{stages}, {self.data_parallel} of them, m = {self.m} of {self.microbatch}"
        return f"{self.schedule}, {counts}"

    @property
    def plan(self) -> Schedule:
        return _plan(self.schedule, self.p, self.m, self.v)

    @property
    def num_stages(self) -> int:
        return self._short.num_stages

    @property
    def placement(self) -> Placement:
        return self._short.placement

    @cached_property
    def layers(self) -> tuple[int, ...]:
        """Layers of each stage, embedding and head counted in: cut so that the busiest rank has least to do."""
        if self.cut:
            return self.cut
        work = self.shape.work(1, self.recompute)  # in the same proportions for any microbatch
        return _cut(tuple(layer.total for layer in work), self.placement)

    @cached_property
    def costs(self) -> Costs:
        """What an action and a hop of the plan take."""
        forward, input_grad, weight_grad = self._times(1.0)
        hop = self.cluster.hop
        bandwidth = None if hop.bandwidth == math.inf else hop.bandwidth
        size = self.shape.boundary(self.microbatch)
        return Costs(forward, input_grad, weight_grad, comm=hop.latency, size=size, bandwidth=bandwidth)

    @cached_property
    def sizes(self) -> Sizes:
        """What a stage of the plan takes; 18 bytes a parameter, 6 and 12 ÷ replicas if they share."""
        return Sizes(
            self._by_stage("parameters"),
            optimizer_bytes=12 / self.data_parallel if self.share_optimizer else 12,
            stashed=self._by_stage("stashed"),
            kept_for_w=self._by_stage("kept_for_w"),
            boundary=self.shape.boundary(self.microbatch),
        )

    @cached_property
    def ledger(self) -> Ledger:
        """What each rank takes."""
        held = held_by_formula(self._short, self.sizes, m=self.m) or held_by_plan(self._settled, self.sizes)
        return tally(self._short, self.sizes, held, None)

    @property
    def shortage(self) -> tuple[float, str] | None:
        """How many bytes are missing on the rank that lacks most, and that in a sentence; None if all have enough.

        What a rank takes at least is looked at first, which needs no plan: its weights, and one microbatch of a stage.
        """
        sizes, stages, place = self.sizes, self.num_stages, self.placement
        stashed = sizes.of("stashed", stages)
        one = (max(stashed[stage] for stage in place.stages_of(rank)) for rank in range(self.p))
        least = tuple(sum(weights) + held for weights, held in zip(static(place, sizes), one, strict=True))
        known = max(least) > self.cluster.usable
        taken, usable = least if known else self.ledger.totals, self.cluster.usable
        rank = max(range(self.p), key=taken.__getitem__)
        if taken[rank] <= usable:
            return None
        need, may, short = map(sized, (taken[rank], usable, taken[rank] - usable))
        least_ = "at least " if known else ""
        return taken[rank] - usable, f"rank {rank} takes {least_}{need}, and may take {may}: short by {least_}{short}."

    @cached_property
    def pipeline(self) -> tuple[float, float]:
        """As simulated: the makespan, and the bubble rate."""
        timeline = simulate(self.plan, self.costs)
        return timeline.makespan, timeline.bubble_rate

    @cached_property
    def all_reduce_time(self) -> float:
        """Of the rank with most gradients, summed over the replicas after the last action, in a ring."""
        gradients, replicas = max(self.ledger.of("gradients")), self.data_parallel
        if self.placement.opposite:  # the second copy of a stage is a hop away, and counts as replicas do
            return all_reduce_time(gradients, 2 * replicas, self.cluster.hop)
        return all_reduce_time(gradients, replicas, self.cluster.among(replicas))

    @cached_property
    def step_time(self) -> float:
        """Pipeline and all-reduce, one after the other."""
        return self.pipeline[0] + self.all_reduce_time

    @property
    def utilisation(self) -> float:
        """Operations that the model needs, recomputation left out, ÷ those that all GPUs could do at their peak."""
        needed = sum(3 * layer.forward for layer in self.shape.work(self.microbatch))
        done = needed * self.m * self.data_parallel
        return done / (self.step_time * self.cluster.gpus * self.cluster.gpu.flops)

    @cached_property
    def least_time(self) -> float:
        """A bound that no simulation of the plan can be below: what a rank has to do, after the way of a first
        microbatch to it and, but for weight gradients, before the way of the last gradient back from it."""
        place, durations = self.placement, self.costs.durations(self.num_stages)
        hop = self.cluster.hop.carry(self.shape.boundary(self.microbatch))
        split = any(action.op is Op.W for row in self._short.rows for action in row)
        bound = 0.0
        for rank in range(self.p):
            stages = place.stages_of(rank)
            copies = 2 if place.opposite else 1
            forward, back, later = (
                self.m / copies * sum(durations[op][s] for s in stages) for op in (Op.F, Op.I, Op.W)
            )
            way = range(min(stages))
            hops = hop * len(way)
            before = sum(durations[Op.F][s] for s in way) + hops
            if split:
                after = max(later, sum(durations[Op.I][s] for s in way) + hops)
                bound = max(bound, before + forward + back + after)
            else:
                after = sum(durations[Op.B][s] for s in way) + hops
                bound = max(bound, before + forward + back + later + after)
        return bound + self.all_reduce_time

    def paced(self, factor: float = 1.0) -> tuple[Schedule, Costs]:
        """The plan, and its costs in seconds times `factor`, for `run(plan, ..., pace=costs)`: so many times as long
        as predicted, that slow ranks can keep up.

        Pace knows no bandwidth, so a hop is latency and transfer in one: the same unless messages queue.
        Raises ValueError for a factor that is not a finite number above 0.
        """
        if not (isinstance(factor, Real) and 0 < factor < math.inf):
            raise ValueError(f"factor is {factor!r}; it must be a finite number above 0.")
        hop = self.cluster.hop.carry(self.shape.boundary(self.microbatch))
        forward, input_grad, weight_grad = self._times(factor)
        return self.plan, Costs(forward, input_grad, weight_grad, comm=factor * hop)

    def _times(self, factor: float) -> tuple[tuple[float, ...], ...]:
        """Of F, I and W, stage by stage."""
        operation = factor / (self.cluster.gpu.flops * self.cluster.efficiency)
        words = ("forward", "input_grad", "weight_grad")
        return tuple(tuple(work * operation for work in self._by_stage(word)) for word in words)

    @cached_property
    def _short(self) -> Schedule:
        """A plan with fewer microbatches, quickly made: placement and channels are the same. Some schedules want many,
        or an even number. Raises ValueError if there is none with m."""
        for fewer in (2, 2 * self.p):
            try:
                return _short_plan(self.schedule, self.p, min(self.m, fewer + self.m % 2), self.v)
            except ValueError:
                continue
        return self.plan

    @property
    def _settled(self) -> Schedule:
        """A plan that holds as much. Where rows repeat themselves in the middle, that is one with a few rounds of p
        microbatches and what is left over of m."""
        enough = 3 * self.p + self.m % (2 * self.p)
        fewer = self.schedule in REPEATING and self.m > enough
        return _short_plan(self.schedule, self.p, enough, self.v) if fewer else self.plan

    @property
    def _work(self) -> tuple[LayerWork, ...]:
        return self.shape.work(self.microbatch, self.recompute)

    def _by_stage(self, word: str) -> tuple[float, ...]:
        return per_stage([getattr(layer, word) for layer in self._work], self.layers)


_short_plan = lru_cache(maxsize=1024)(build)
_plan = lru_cache(maxsize=8)(build)  # these are large


@lru_cache(maxsize=1024)
def _cut(costs: tuple[float, ...], placement: Placement) -> tuple[int, ...]:
    return partition(costs, placement.num_stages, placement=placement, patience=SEARCH)
