"""Is a plan legal? Every broken rule as data: a code, a place, and a sentence."""

import reprlib
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from ppcourse.schedules.action import RIGHT, Action, Op, is_action
from ppcourse.schedules.bulk import collector_paused
from ppcourse.schedules.dependencies import Numbering, Result
from ppcourse.schedules.replay import Replay
from ppcourse.schedules.schedule import Schedule, ScheduleError
from ppcourse.schedules.waits import waits_of

Place = tuple[int, int]  # (rank, position)

Order = tuple[range, ...]  # stretches of a replay

VERDICT = "_verdict"  # where a plan that was looked at keeps what was found


class Violation(NamedTuple):
    """A broken rule, and where: `plan.rows[rank][position]` (position -1: something that is not there).

    code   out-of-range   a stage, op or microbatch that the plan does not have, or what is no action
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


def demand_schedule(plan: object) -> None:
    """Raise ValueError for what is not a plan: its name, or its text, say."""
    if not isinstance(plan, Schedule):
        right = 'take build("gpipe", p=4, m=8), or read your own with Schedule.from_text or from_rows'
        raise ValueError(f"A Schedule belongs here, and not {reprlib.repr(plan)}; {right}.")


def check(plan: Schedule) -> None:
    """Raise ScheduleError with the first violation's sentence, if there is one."""
    order_of(plan)


def order_of(plan: Schedule) -> Order:
    """An order in which the plan can run (see Replay). Raises ScheduleError like check."""
    violations, order = _verdict(plan)
    if violations:
        raise ScheduleError(violations[0].message)
    return order


def validate(plan: Schedule) -> tuple[Violation, ...]:
    """The violations of the rules, none for a legal plan; linear in the number of actions.

    What each rank runs is looked at first, and everything wrong with it is told. Only if all the work is
    there, once and in its place, is the plan replayed; if it stops before its end, one violation says why.
    """
    return _verdict(plan)[0]


def _verdict(plan: Schedule) -> tuple[tuple[Violation, ...], Order]:
    """What is wrong, and the order in which the plan was replayed; a plan never changes, so neither do they."""
    demand_schedule(plan)
    known: tuple[tuple[Violation, ...], Order] | None = plan.__dict__.get(VERDICT)
    if known is None:
        violations = tuple(_out_of_place(plan)) or tuple(_miscounted(plan))
        order: Order = ()
        if not violations:
            replay = Replay(plan)
            with collector_paused():
                order = tuple(replay)
            violations = tuple(_stuck(plan, replay))
        known = plan.__dict__[VERDICT] = violations, order
    return known


def _out_of_place(plan: Schedule) -> Iterator[Violation]:
    stages, m = plan.num_stages, plan.num_microbatches
    for rank in waits_of(plan).strays:
        for position, action in enumerate(plan.rows[rank]):
            if not is_action(action):
                sentence = f"Rank {rank} runs {action!r}, but {RIGHT}."
                yield Violation("out-of-range", rank, position, sentence)
                continue
            stage, _, i = action
            if not (0 <= stage < stages and 0 <= i < m):
                sentence = f"the plan has stages 0 to {stages - 1} and microbatches 0 to {m - 1}."
                yield Violation("out-of-range", rank, position, f"Rank {rank} runs {action}, but {sentence}")
            elif (home := plan.rank_of(stage, i)) != rank:
                yield Violation("wrong-rank", rank, position, _stray_sentence(plan, rank, action, home))
    for rank, position in sorted(plan.overlapped):
        pair = plan.rows[rank][position : position + 2] if 0 <= rank < plan.num_ranks else ()
        if [action.op for action in pair if isinstance(action, Action)] != [Op.F, Op.B]:
            sentence = f"Rank {rank} overlaps a pair at position {position} that is not an F and then a B."
            yield Violation("overlap", rank, position, sentence)
        elif pair[0]._replace(op=Op.B) == pair[1]:
            sentence = f"Rank {rank} overlaps {pair[0]} with {pair[1]}, which cannot start before it ends."
            yield Violation("overlap", rank, position, sentence)


def _stray_sentence(plan: Schedule, rank: int, action: Action, home: int) -> str:
    which = f" for microbatch {action.microbatch}" if plan.placement.opposite else ""
    return f"Rank {rank} runs {action}, but stage {action.stage} lives on rank {home}{which}."


def _miscounted(plan: Schedule) -> Iterator[Violation]:
    if waits_of(plan).whole:
        return
    numbering = waits_of(plan).numbering
    yield from _doubled(plan, numbering)
    needed = numbering.size if plan.trains else numbering.size // len(Result)
    made = {number for row in plan.rows for action in row for number in numbering.results(action)}
    yield from _missing(plan, numbering, [number for number in range(needed) if number not in made])


def _doubled(plan: Schedule, numbering: Numbering) -> Iterator[Violation]:
    first: dict[int, Place] = {}
    for rank, row in enumerate(plan.rows):
        for position, action in enumerate(row):
            numbers = numbering.results(action)
            clash = next((first[number] for number in numbers if number in first), None)
            if clash:
                yield _twice(plan, (rank, position), clash)
            for number in numbers:
                first.setdefault(number, (rank, position))


def _missing(plan: Schedule, numbering: Numbering, numbers: list[int]) -> Iterator[Violation]:
    lost: dict[tuple[int, int], list[Result]] = {}
    for number in numbers:
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


def _how(gone: Sequence[Result], stage: int, microbatch: int) -> str:
    """What is missing, as the actions to add."""
    if Result.ACTIVATION in gone:
        rest = [result for result in gone if result is not Result.ACTIVATION]
        forward = str(Action(stage, Op.F, microbatch))
        return f"{forward} and {_how(rest, stage, microbatch)}" if rest else forward
    split = Action(stage, Op.I, microbatch), Action(stage, Op.W, microbatch)
    if len(gone) == 2:
        return f"{Action(stage, Op.B, microbatch)} (or {split[0]} and {split[1]})"
    return str(split[0] if gone[0] is Result.INPUT_GRAD else split[1])


def _stuck(plan: Schedule, replay: Replay) -> Iterator[Violation]:
    """If the replay stopped before its end, the circle of ranks that wait for each other."""
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
    seen: dict[int, None] = {}  # in order, and quick to ask
    rank = min(waits_for)
    while rank not in seen:
        seen[rank] = None
        rank = waits_for[rank]
    path = list(seen)
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
    action, needed = _written(plan, rank, here), plan.rows[rank][later]
    return f"Rank {rank} runs {action} at position {here}, but needs {needed} for it, at position {later}."


def _deadlock_sentence(plan: Schedule, circle: list[int], steps: dict[int, tuple[int, Place]]) -> str:
    """`steps`: for each rank that stands still, its position, and the place of what it waits for."""
    said = []
    for rank in [*circle, *sorted(set(steps) - set(circle))]:
        position, (owner, place) = steps[rank]
        action, needed = _written(plan, rank, position), plan.rows[owner][place]
        before = steps[owner][0]
        stands = _written(plan, owner, before)
        when = "stands at" if str(needed) in stands.split("+") else f"has only after {stands}"
        said.append(f"rank {rank} stands at {action} and waits for {needed}, which rank {owner} {when}")
    return f"Deadlock: {'; '.join(said)}."


def _written(plan: Schedule, rank: int, position: int) -> str:
    """The action there; both of an overlapped pair."""
    pair = (rank, position) in plan.overlapped
    return "+".join(map(str, plan.rows[rank][position : position + 1 + pair]))
