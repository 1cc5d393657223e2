"""Which p, m, v and schedule: all that are possible, with predicted step time and memory, best first."""

from bisect import insort
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from numbers import Integral, Real
from typing import NamedTuple, TypeAlias

from ppcourse.analysis.activations import Recompute
from ppcourse.analysis.candidate import Candidate, Cluster
from ppcourse.analysis.hardware import GPU, GPUS, LINKS, Link, known
from ppcourse.analysis.leaner import leaner
from ppcourse.analysis.ledger import aligned, sized
from ppcourse.analysis.shape import Shape
from ppcourse.schedules import SCHEDULES, TWO_STAGES

MEMORY, LAYERS = "short of memory", "with more stages than layers"
BATCH, TOO_MANY = "that do not divide the batch", "with too many microbatches"
CONDITIONS = "against a schedule's conditions"

LEFT_OUT = ("naive", "zb-auto")  # never the best; planned for costs, which takes its time
MOST_GPUS = 1_000_000
STAGES_A_RANK = (2, 4, 8)  # tried where a schedule leaves v open
CHOOSES_V = ("interleaved", "breadth-first")


class Refused(NamedTuple):
    """Counts that are not possible, and the sentence that says why.

    kind   MEMORY, LAYERS, BATCH, TOO_MANY or CONDITIONS
    by     bytes that are missing with the fastest cut; none was found that fits
    """

    what: str
    why: str
    kind: str
    by: float = 0.0

    def __str__(self) -> str:
        return f"{self.what}: {self.why}"


@dataclass(frozen=True)
class Choice:
    """What is possible, best first.

    candidates   the fastest, in the order of their step times
    slower       the other feasible ones, in the order of the least they can take; none is faster than any candidate
    refused      all others, each with its reason

    Printed, a candidate's line says how many replicas of the pipeline there are, m microbatches of `each` sequences,
    the bubble rate, the all-reduce's share of the step, what is used of the GPUs' peak, and the fullest rank's memory.
    """

    cluster: Cluster
    batch: int
    candidates: tuple[Candidate, ...]
    slower: tuple[Candidate, ...]
    refused: tuple[Refused, ...]

    @property
    def best(self) -> Candidate:
        """The fastest. Raises ValueError if nothing is feasible, with what comes nearest."""
        if not self.candidates:
            raise ValueError(f"Nothing of this is feasible. {self._nearest()}")
        return self.candidates[0]

    def __str__(self) -> str:
        cluster = self.cluster
        way = cluster.link.name + (f", {cluster.network.name}" if cluster.gpus > cluster.per_node else "")
        lines = [f"{cluster.gpus} x {cluster.gpu.name}, {way}, {self.batch} sequences a step"]
        if self.candidates:
            lines += [aligned([HEAD, *(_cells(place, c) for place, c in enumerate(self.candidates, 1))])]
            lines += [f"{len(self.slower)} more are feasible, and not faster than these."] if self.slower else []
        else:
            lines += [f"Nothing of this is feasible. {self._nearest()}"]
        reasons = Counter(refused.kind for refused in self.refused)
        counted = ", ".join(f"{count} {kind}" for kind, count in reasons.most_common())
        return "\n".join([*lines, *([f"Refused: {counted}."] if counted else [])])

    __repr__ = __str__

    def _nearest(self) -> str:
        """The refused one that is least short of memory, of those of which it is known exactly if there are any."""
        unlike = [(refused.kind != MEMORY, "at least" in refused.why, refused.by) for refused in self.refused]
        return str(self.refused[unlike.index(min(unlike))])


HEAD = ("", "schedule", "p", "v", "replicas", "m", "each", "step", "bubble", "all-reduce", "utilisation", "memory")


def _cells(place: int, c: Candidate) -> Sequence[str]:
    counts = (str(place), c.schedule, *map(str, (c.p, c.v, c.data_parallel, c.m, c.microbatch)))
    shares = (f"{c.pipeline[1]:.1%}", f"{c.all_reduce_time / c.step_time:.1%}", f"{c.utilisation:.1%}")
    return (*counts, f"{c.step_time:.3g} s", *shares, sized(c.ledger.peak))


def choose(
    shape: Shape,
    *,
    gpus: int,
    gpu: str | GPU = "h100",
    batch: int,
    link: str | Link = "nvlink4",
    network: str | Link = "ndr",
    per_node: int = 8,
    schedules: Sequence[str] | None = None,
    efficiency: float = 0.5,
    headroom: float = 0.1,
    recompute: Recompute = "selective",
    share_optimizer: bool = False,
    most_microbatches: int = 512,
    top: int = 10,
) -> Choice:
    """Ranked ways to train `shape` on so many GPUs, all of them used.

    gpu               a name of GPUS in hardware.py, or a GPU of your own
    batch             sequences in a step, over all replicas
    link, network     between GPUs of a node, and between nodes: names of LINKS, or a Link of your own
    per_node          GPUs in a node
    schedules         their names; by default all but naive and zb-auto
    efficiency        what matrix products reach of the GPU's peak
    headroom          share of the memory that stays free: for context, communicators, fragments, and what an action
                      takes while it runs
    recompute         what is computed again instead of kept: none, selective, full
    share_optimizer   whether replicas divide the optimizer state among them (ZeRO-1, distributed optimizer)
    most_microbatches a pipeline with more in a step is refused
    top               how many candidates are ranked

    The step is predicted as `simulate` says, of unequal stages (embedding, head) and of messages that take their size
    ÷ bandwidth, and then the all-reduce of the largest stage's gradients. Memory is predicted as `ledger` says. Layers
    are cut so that the busiest rank has least to do, and where a rank lacks memory then, so that none does. No tensor
    parallelism; nothing overlaps the all-reduce; replicas of a stage are neighbours, as Megatron-LM places them.

    Raises ValueError for names and numbers that are none. What is not possible is no error, see Choice.refused.
    """
    if not isinstance(shape, Shape):
        raise ValueError(f"shape is {shape!r}; it must be a Shape, as in Shape(layers=32, hidden=4096, ...).")
    counts = {"gpus": gpus, "batch": batch, "per_node": per_node, "top": top, "most_microbatches": most_microbatches}
    for word, value in counts.items():
        if isinstance(value, bool) or not isinstance(value, Integral) or value < 1:
            raise ValueError(f"{word} is {value!r}; it must be a whole number of at least 1.")
    if gpus > MOST_GPUS:
        raise ValueError(f"gpus is {gpus!r}; it must be at most {MOST_GPUS:,}.")
    if not (isinstance(efficiency, Real) and 0 < efficiency <= 1):
        raise ValueError(f"efficiency is {efficiency!r}; it must be a share above 0 and up to 1.")
    if not (isinstance(headroom, Real) and 0 <= headroom < 1):
        raise ValueError(f"headroom is {headroom!r}; it must be a share of at least 0 and below 1.")
    cluster = Cluster(
        int(gpus), known(gpu, GPUS, GPU), known(link, LINKS, Link), known(network, LINKS, Link), int(per_node),
        float(efficiency), float(headroom),
    )  # fmt: skip
    usual = tuple(name for name in SCHEDULES if name not in LEFT_OUT)
    names = usual if schedules is None else tuple(schedules) if isinstance(schedules, Iterable) else ()
    if not names or not all(name in tuple(SCHEDULES) for name in names):
        raise ValueError(f"schedules is {schedules!r}; name one or more of {', '.join(SCHEDULES)}.")
    found = list(_all(shape, cluster, int(batch), names, most_microbatches, recompute, share_optimizer))
    candidates, slower = _ranked([each for each in found if isinstance(each, Candidate)], top)
    return Choice(cluster, batch, candidates, slower, tuple(each for each in found if isinstance(each, Refused)))


Found: TypeAlias = Candidate | Refused


def _all(
    shape: Shape,
    cluster: Cluster,
    batch: int,
    names: Sequence[str],
    most: int,
    recompute: Recompute,
    share_optimizer: bool,
) -> Iterator[Found]:
    """Every way to divide the GPUs into pipelines and the batch into microbatches of 1, 2, 4, … sequences."""
    for p in (p for p in range(1, cluster.gpus + 1) if cluster.gpus % p == 0):
        replicas = cluster.gpus // p
        if batch % replicas:
            why = f"a batch of {batch} does not divide evenly among {replicas} pipelines."
            yield Refused(f"p = {p}", why, BATCH)
            continue
        each = batch // replicas
        for b in (2**n for n in range(each.bit_length())):
            what, m = f"p = {p}, {replicas} of them, microbatches of {b}", each // b
            if each % b:
                why = f"the {each} sequences of a pipeline do not divide evenly into microbatches of {b}."
                yield Refused(what, why, BATCH)
            elif m > most:
                why = f"a step has {m} microbatches, more than {most}."
                yield Refused(what, why, TOO_MANY)
            else:
                for name, v in _schedules(p, names):
                    yield _checked(Candidate(shape, cluster, name, p, v, m, replicas, b, recompute, share_optimizer))


def _schedules(p: int, names: Sequence[str]) -> Iterator[tuple[str, int]]:
    """Names and v. A pipeline of one rank is the same in all, so one of them does."""
    if p == 1:
        yield ("1f1b" if "1f1b" in names else names[0]), 1
        return
    for name in names:
        yield from ((name, v) for v in (STAGES_A_RANK if name in CHOOSES_V else (2 if name in TWO_STAGES else 1,)))


def _checked(candidate: Candidate) -> Found:
    """The candidate, or why it is none."""
    what, layers = str(candidate), candidate.shape.layers + 2
    stages = candidate.p * (candidate.v if candidate.schedule in CHOOSES_V else 1)
    try:
        stages = max(stages, candidate.num_stages) if stages <= layers else stages
    except ValueError as error:
        return Refused(what, str(error), CONDITIONS)
    if stages > layers:
        why = f"{layers} layers, embedding and head counted in, do not make {stages} stages."
        return Refused(what, why, LAYERS)
    shortage = candidate.shortage
    if shortage is None:
        return candidate
    by, why = shortage
    return leaner(candidate) or Refused(what, why, MEMORY, by)


def _ranked(possible: Sequence[Candidate], top: int) -> tuple[tuple[Candidate, ...], tuple[Candidate, ...]]:
    """The fastest, and the rest. Simulated are only those that could be among the fastest, judged by the least time
    that they can take."""
    waiting = sorted(possible, key=lambda candidate: candidate.least_time)
    fastest: list[tuple[float, int]] = []  # step times, ascending, and places in `waiting`
    for place, candidate in enumerate(waiting):
        if len(fastest) >= top and candidate.least_time >= fastest[top - 1][0]:
            break
        insort(fastest, (candidate.step_time, place))
    places = [place for _, place in fastest[:top]]
    slower = [candidate for place, candidate in enumerate(waiting) if place not in places]
    return tuple(waiting[place] for place in places), tuple(slower)
