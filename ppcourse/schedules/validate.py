"""Is a plan legal? Every broken rule as data: a code, a place, and a sentence."""

from collections.abc import Iterator
from typing import NamedTuple

from ppcourse.schedules.action import Action, Op
from ppcourse.schedules.dependencies import Numbering, Result
from ppcourse.schedules.replay import Replay
from ppcourse.schedules.schedule import Schedule, ScheduleError

Place = tuple[int, int]  # (rank, position)


class Violation(NamedTuple):
    """A broken rule, and where: `plan.rows[rank][position]` (position -1: something that is not there).

    code   out-of-range   a stage or microbatch that the plan does not have
           wrong-rank     a stage away from the rank that holds it
           duplicate      the same work twice
           missing        work that nobody does
           overlap        a pair marked as overlapped that is not an F followed by a B that can do without it
           order          a rank that runs an action before something of its own that the action needs
           deadlock       ranks that wait for each other in a circle
    """

    code: str
    rank: int
    position: int
    message: str


def check(plan: Schedule) -> None:
    """Raise ScheduleError with the first violation's sentence, if there is one."""
    violations = validate(plan)
    if violations:
        raise ScheduleError(violations[0].message)


def validate(plan: Schedule) -> tuple[Violation, ...]:
    """The violations of the rules, none for a legal plan; linear in the number of actions.

    What each rank runs is looked at first, and everything wrong with it is told. Only if all the work is
    there, once and in its place, is the plan replayed; if it stops before its end, one violation says why.
    """
    found = tuple(_out_of_place(plan)) or tuple(_miscounted(plan))
    return found or tuple(_stuck(plan))


def _out_of_place(plan: Schedule) -> Iterator[Violation]:
    stages, m = plan.num_stages, plan.num_microbatches
    for rank, row in enumerate(plan.rows):
        for position, action in enumerate(row):
            stage, _, microbatch = action
            if not (0 <= stage < stages and 0 <= microbatch < m):
                sentence = f"the plan has stages 0 to {stages - 1} and microbatches 0 to {m - 1}."
                yield Violation("out-of-range", rank, position, f"Rank {rank} runs {action}, but {sentence}")
            elif (home := plan.rank_of(stage, microbatch)) != rank:
                sentence = f"Rank {rank} runs {action}, but stage {stage} lives on rank {home}."
                yield Violation("wrong-rank", rank, position, sentence)
    for rank, position in sorted(plan.overlapped):
        pair = plan.rows[rank][position : position + 2]
        if [action.op for action in pair] != [Op.F, Op.B]:
            sentence = f"Rank {rank} overlaps a pair at position {position} that is not an F and then a B."
            yield Violation("overlap", rank, position, sentence)
        elif pair[0]._replace(op=Op.B) == pair[1]:
            sentence = f"Rank {rank} overlaps {pair[0]} with {pair[1]}, which cannot start before it ends."
            yield Violation("overlap", rank, position, sentence)


def _miscounted(plan: Schedule) -> Iterator[Violation]:
    numbering = Numbering(plan.num_stages, plan.num_microbatches)
    first: list[Place | None] = [None] * numbering.size
    for rank, row in enumerate(plan.rows):
        for position, action in enumerate(row):
            clash = None
            for number in numbering.results(action):
                clash = clash or first[number]
                first[number] = first[number] or (rank, position)
            if clash:
                yield _twice(plan, (rank, position), clash)
    needed = numbering.size if plan.trains else numbering.size // len(Result)
    lost: dict[tuple[int, int], list[Result]] = {}
    for number in range(needed):
        if first[number] is None:
            result, stage, microbatch = numbering.describe(number)
            lost.setdefault((stage, microbatch), []).append(result)
    for (stage, microbatch), results in sorted(lost.items()):
        rank, work = plan.rank_of(stage, microbatch), _how(results, stage, microbatch)
        sentence = f"Nobody runs {work}; rank {rank} should, which holds stage {stage}."
        yield Violation("missing", rank, -1, sentence)


def _twice(plan: Schedule, place: Place, clash: Place) -> Violation:
    (rank, position), (other, before) = place, clash
    action, earlier = plan.rows[rank][position], plan.rows[other][before]
    what = "that" if action == earlier else f"part of that, as {earlier},"
    sentence = f"Rank {rank} runs {action} at position {position}, but did {what} at position {before}."
    return Violation("duplicate", rank, position, sentence)


def _how(gone: list[Result], stage: int, microbatch: int) -> str:
    """What is missing, as the action to add."""
    if Result.ACTIVATION in gone:
        return str(Action(stage, Op.F, microbatch))
    split = Action(stage, Op.I, microbatch), Action(stage, Op.W, microbatch)
    if len(gone) == 2:
        return f"{Action(stage, Op.B, microbatch)}, or {split[0]} and {split[1]}"
    return str(split[0] if gone == [Result.INPUT_GRAD] else split[1])


def _stuck(plan: Schedule) -> Iterator[Violation]:
    """Replay the plan; if it stops before its end, the circle of ranks that wait for each other."""
    replay = Replay(plan)
    for _ in replay:
        pass
    missing = replay.missing()
    if not missing:
        return
    maker = _makers(plan, replay)
    circle = _circle({rank: maker[needs[0]][0] for rank, needs in missing.items()})
    steps = {rank: (replay.stopped[rank], maker[needs[0]]) for rank, needs in missing.items()}
    if len(circle) == 1:
        here, (_, later) = steps[circle[0]]
        yield Violation("order", circle[0], here, _order_sentence(plan, circle[0], here, later))
    else:
        yield Violation("deadlock", circle[0], steps[circle[0]][0], _deadlock_sentence(plan, circle, steps))


def _circle(waits_for: dict[int, int]) -> list[int]:
    """Ranks each of which waits for the next, and the last for the first."""
    path: list[int] = []
    rank = min(waits_for)
    while rank not in path:
        path.append(rank)
        rank = waits_for[rank]
    return path[path.index(rank) :]


def _makers(plan: Schedule, replay: Replay) -> dict[int, Place]:
    """The action that would leave each number behind, among those that never ran."""
    return {
        number: (rank, position)
        for rank, row in enumerate(plan.rows)
        for position, action in enumerate(row)
        if position >= replay.stopped[rank]
        for number in replay.numbering.results(action)
    }


def _order_sentence(plan: Schedule, rank: int, here: int, later: int) -> str:
    action, needed = plan.rows[rank][here], plan.rows[rank][later]
    return f"Rank {rank} runs {action} at position {here}, but needs {needed} for it, at position {later}."


def _deadlock_sentence(plan: Schedule, circle: list[int], steps: dict[int, tuple[int, Place]]) -> str:
    """`steps`: for each rank that stands still, its position, and the place of what it waits for."""
    said = []
    for rank in [*circle, *sorted(set(steps) - set(circle))]:
        position, (owner, place) = steps[rank]
        action, needed = plan.rows[rank][position], plan.rows[owner][place]
        stands = plan.rows[owner][steps[owner][0]]
        when = "stands at" if needed == stands else f"has only after {stands}"
        said.append(f"rank {rank} stands at {action} and waits for {needed}, which rank {owner} {when}")
    return f"Deadlock: {'; '.join(said)}."
