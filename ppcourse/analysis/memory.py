"""How many bytes each rank of a plan takes, and what for."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Literal, TypeAlias

from ppcourse.analysis import formulas
from ppcourse.analysis.buffers import Buffers, Link
from ppcourse.analysis.ledger import KINDS, Ledger
from ppcourse.analysis.sharing import Sharing, Turn
from ppcourse.analysis.tied import Tied, check_rows, counted_again
from ppcourse.schedules.action import Action, Op
from ppcourse.schedules.channels import Channel, Traffic, channels, outgoing
from ppcourse.schedules.costs import PerStage, check_size, per_stage
from ppcourse.schedules.placement import Placement
from ppcourse.schedules.schedule import Schedule
from ppcourse.schedules.validate import check


@dataclass(frozen=True)
class Sizes:
    """What the stages of a model take. Each is one number for every stage, or one number a stage.

    parameters        how many weights a stage has
    trainable         how many of them are trained, and so have a gradient and optimizer state; all by default
    weight_bytes      bytes of a weight; with 2, 4 and 12 the three make 18 a parameter: bf16 weights, float32
                      gradients, and float32 copies, Adam's two moments included (Megatron-LM,
                      theoretical_memory_usage.py). All float32 with Adam: 4, 4 and 8
    gradient_bytes    bytes of its gradient
    optimizer_bytes   bytes of optimizer state for it; `12 / data_parallel` where the replicas share it
    buffers           bytes of what a stage has beside weights (a norm's statistics); counted with them
    stashed           bytes that F keeps for the backward of one microbatch
    kept_for_w        what of it is left after I, until W
    boundary          bytes that a stage hands on for one microbatch
    envelope          bytes of a message beside these: what it is, and the shapes of its tensors
    back              bytes of the message that brings the gradient back for it; as many as both by default
    turns             for each stage, what it shares with the one before if both are on one rank (sharing.py); or
                      none: nothing is shared, and what is handed over there takes nothing
    tied              what several stages have, and a rank with several of them has once (tied.py)

    Raises ValueError for what is not a finite number of at least 0.
    """

    parameters: PerStage = 0.0
    weight_bytes: float = 2.0
    gradient_bytes: float = 4.0
    optimizer_bytes: float = 12.0
    stashed: PerStage = 0.0
    kept_for_w: PerStage = 0.0
    boundary: PerStage = 0.0
    envelope: PerStage = 0.0
    back: PerStage | None = None
    trainable: PerStage | None = None
    buffers: PerStage = 0.0
    turns: Sequence[Turn] = ()
    tied: Sequence[Tied] = ()

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if field.name in ("turns", "tied"):
                check_rows(f"Sizes.{field.name}", value, Turn if field.name == "turns" else Tied)
            elif value is not None or field.name not in ("back", "trainable"):
                check_size(f"Sizes.{field.name}", value, one_only=field.name.endswith("_bytes"))

    def of(self, name: str, num_stages: int) -> tuple[float, ...]:
        """The numbers called `name`, stage by stage. Raises ValueError if they are of another number of stages."""
        if name == "trainable" and self.trainable is None:
            name = "parameters"
        if name == "back" and self.back is None:
            both = zip(self.of("boundary", num_stages), self.of("envelope", num_stages), strict=True)
            return tuple(map(sum, both))
        return per_stage(f"Sizes.{name}", getattr(self, name), num_stages)

    def sharing(self, plan: Schedule) -> Sequence[Turn]:
        """The turns; none if no rank of the plan has two stages in a row that share anything.

        Raises ValueError if they are of another number of stages.
        """
        if self.turns and len(self.turns) != plan.num_stages:
            raise ValueError(
                f"Sizes.turns has {len(self.turns)} of them for {plan.num_stages} stages; give one for each."
            )
        homes = plan.placement.ranks, plan.placement.opposite
        follows = {s for ranks in homes for s in range(1, len(ranks)) if ranks[s] == ranks[s - 1]}
        return self.turns if self.turns and any(any(self.turns[stage]) for stage in follows) else ()


Held: TypeAlias = tuple[float, float, float]
"""Of one rank, at the moment at which it holds most: from F to B or I, from I to W, and outputs that were kept."""


def ledger(
    plan: Schedule,
    sizes: Sizes,
    *,
    origin: Literal["simulated", "formula"] = "simulated",
    keep_outputs: bool = False,
    link: Link = "posted",
) -> Ledger:
    """What each rank takes, by kind.

    origin         "simulated": found by going through the plan, for any; "formula": by the closed forms, for the
                   schedules that have one, where a rank's stages are alike and W keeps no more than F
    keep_outputs   whether what a stage has sent is kept until its backward, which needs no more than that it was
                   there; the message that carries it is a copy in any case
    link           how messages are awaited, see buffers.py: "posted" ahead of need, or as "gloo" or "shared" do it.
                   Messages on their way are counted as one a channel

    What an action takes while it runs and gives back at its end is left out: that is for a measurement.

    Raises ScheduleError for a plan that breaks a rule, and ValueError for sizes of another number of stages, another
    link, and where there is no closed form.
    """
    check(plan)
    if not isinstance(sizes, Sizes):
        raise ValueError(f"sizes is {sizes!r}, but it must be Sizes, for example profile(...).sizes(partition).")
    if origin not in ("simulated", "formula"):
        raise ValueError(f"origin is {origin!r}; it is 'simulated' or 'formula'. What a run measured is its ledger.")
    if origin == "simulated":
        held = held_by_plan(plan, sizes, keep_outputs)
        return tally(plan, sizes, held, channels(plan), link)
    found = held_by_formula(plan, sizes, keep_outputs)
    if found is None:
        raise ValueError(f"There is no closed form for what {plan.name} holds here; take origin='simulated'.")
    nothing = (0.0,) * plan.num_stages
    if link == "shared" and Buffers(plan, nothing, nothing).mixed:
        raise ValueError(f"There is no closed form for what {plan.name} puts aside here; take origin='simulated'.")
    return replace(tally(plan, sizes, found, None, link), origin="formula")


def tally(
    plan: Schedule,
    sizes: Sizes,
    held: Sequence[Held],
    traffic: Mapping[Channel, Traffic] | None,
    link: Link = "posted",
) -> Ledger:
    """The ledger of ranks that hold so much; without traffic, of channels whose messages are used in their order."""
    stages = plan.num_stages
    there = tuple(map(sum, zip(sizes.of("boundary", stages), sizes.of("envelope", stages), strict=True)))
    buffers = Buffers(plan, there, sizes.of("back", stages), link)
    received, sent = buffers.received(traffic), buffers.sent()
    rows = []
    for rank, weights in enumerate(static(plan.placement, sizes)):
        activations, owed, outputs = held[rank]
        numbers = (*weights, activations, owed, received[rank], sent[rank] + outputs)
        rows.append(dict(zip(KINDS, numbers, strict=True)))
    return Ledger(plan.name, tuple(rows), "simulated")


def static(placement: Placement, sizes: Sizes) -> Iterator[tuple[float, float, float]]:
    """For each rank, the bytes of weights, gradients and optimizer state."""
    names = "parameters", "trainable", "buffers"
    numbers = list(zip(*(sizes.of(name, placement.num_stages) for name in names), strict=True))
    for rank in range(placement.num_ranks):
        stages = placement.stages_of(rank)
        again = counted_again(sizes.tied, stages)
        each = zip(*(numbers[s] for s in stages), strict=True)
        weights, trained, buffers = (sum(all_) - less for all_, less in zip(each, again, strict=True))
        held = weights * float(sizes.weight_bytes) + buffers  # of a number of numpy's 32 bits, too
        yield held, trained * float(sizes.gradient_bytes), trained * float(sizes.optimizer_bytes)


def held_by_plan(plan: Schedule, sizes: Sizes, keep_outputs: bool = False) -> tuple[Held, ...]:
    """Found by going through each row; of equal moments, the first."""
    stashed, kept = sizes.of("stashed", plan.num_stages), sizes.of("kept_for_w", plan.num_stages)
    output = _outputs(plan, sizes) if keep_outputs else (0.0,) * plan.num_stages
    turns = sizes.sharing(plan)
    peaks = []
    for row in plan.rows:
        peak: Held = (0.0, 0.0, 0.0)
        most = activations = owed = outputs = 0.0
        sharing = Sharing(plan, turns) if turns else None
        for action in row:
            stage, op, _ = action
            if op == Op.F:
                activations, outputs = activations + stashed[stage], outputs + output[stage]
            elif op == Op.W:
                owed -= kept[stage]
            else:
                activations, outputs = activations - stashed[stage], outputs - output[stage]
                owed += kept[stage] if op == Op.I else 0.0
            if sharing:
                more = sharing.after(action)
                activations, owed = activations + more[0], owed + more[1]
            if activations + owed + outputs > most:
                most, peak = activations + owed + outputs, (activations, owed, outputs)
        peaks.append(peak)
    return tuple(peaks)


def _outputs(plan: Schedule, sizes: Sizes) -> tuple[float, ...]:
    """What each stage sends on, if it does."""
    boundary = sizes.of("boundary", plan.num_stages)
    sends = (outgoing(plan, Action(stage, Op.F, 0)) is not None for stage in range(plan.num_stages))
    return tuple(size if does else 0.0 for size, does in zip(boundary, sends, strict=True))


def closed_form(name: str, p: int, m: int, v: int = 1) -> tuple[tuple[float, float], ...] | None:
    """For each rank, how many microbatches it holds from F to B or I, and from I to W, where it holds most; in
    microbatches of all its stages. None where there is no closed form, or its conditions are not met.

    For Zero Bubble: warm-up w and one more, and from I to W one for each forward of warm-up that rank 0 has more;
    kept_for_w must not be more than stashed. For the others see formulas.py.
    """
    if name in ("gpipe", "breadth-first"):
        return ((m, 0),) * p
    if name == "naive":
        return ((1, 0),) * p
    if name == "1f1b":
        return tuple((held, 0) for held in formulas.one_f_one_b_in_flight(p, m))
    if name == "interleaved" and m % p == 0:
        return tuple((held, 0) for held in formulas.interleaved_in_flight(p, m, v))
    if name in ("zb-h1", "zb-h2"):
        deep = 2 if name == "zb-h2" else 1
        warm_up = [(p - 1 - rank) * deep for rank in range(p)]
        return tuple((min(m, w + 1), min(rank * deep, max(0, m - w - 1))) for rank, w in enumerate(warm_up))
    return None


def held_by_formula(
    plan: Schedule, sizes: Sizes, keep_outputs: bool = False, m: int | None = None
) -> tuple[Held, ...] | None:
    """By the closed form; None where it does not hold: more is kept for W than F had kept, a rank that holds a part
    of its microbatches' activations has stages of different sizes, or stages share what they keep.

    m   says how many microbatches there are, if not as many as in the plan
    """
    m = m or plan.num_microbatches
    counts = closed_form(plan.name, plan.num_ranks, m, plan.stages_per_rank)
    stashed, kept = sizes.of("stashed", plan.num_stages), sizes.of("kept_for_w", plan.num_stages)
    if counts is None or not plan.trains or any(k > s for k, s in zip(kept, stashed, strict=True)):
        return None
    if sizes.sharing(plan):
        return None
    output = _outputs(plan, sizes) if keep_outputs else (0.0,) * plan.num_stages
    held = []
    for rank, (whole, owed) in enumerate(counts):
        stages = plan.placement.stages_of(rank)
        if whole < m and len({(stashed[stage], output[stage]) for stage in stages}) > 1:
            return None
        each = [sum(numbers[stage] for stage in stages) for numbers in (stashed, kept, output)]
        held.append((whole * each[0], owed * each[1], whole * each[2]))
    return tuple(held)
