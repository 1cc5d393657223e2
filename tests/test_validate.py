"""Is a plan legal? Each rule by its code and its sentence; the verdict against a brute-force execution."""

import json
import math
import pickle
import random
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise, product

import numpy as np
import pytest
from hypothesis import given
from strategies import allowed, made, needed, plans, quick, random_homes, random_order, refused

from ppcourse.analysis.in_flight import in_flight, in_flight_bytes
from ppcourse.analysis.memory import Sizes, held_by_plan
from ppcourse.analysis.simulate import simulate
from ppcourse.analysis.trace import chrome_trace
from ppcourse.lab.gantt_text import gantt_text
from ppcourse.schedules import SCHEDULES, build
from ppcourse.schedules.action import Action, Op
from ppcourse.schedules.blocking import blocking
from ppcourse.schedules.channels import channels
from ppcourse.schedules.forward_only import forward_only
from ppcourse.schedules.placement import loop, table
from ppcourse.schedules.schedule import Schedule, ScheduleError
from ppcourse.schedules.validate import _circle, check, validate
from ppcourse.schedules.waits import waits_of

BROKEN = [
    ("0F0 0B0 0B0", "duplicate", 0, 2, "Rank 0 runs 0B0 at position 2, but did that at position 1."),
    ("0F0 0I0 0W0 0W0", "duplicate", 0, 3, "Rank 0 runs 0W0 at position 3, but did that at position 2."),
    (
        "0F0 0I0 0W0 0B0",
        "duplicate",
        0,
        3,
        "Rank 0 runs 0B0 at position 3, but did part of that, as 0I0, at position 1.",
    ),
    ("0F0 0F1 0B1", "missing", 0, -1, "Nobody runs 0B0 (or 0I0 and 0W0); rank 0 should, which holds stage 0."),
    ("0F0 0F1 0I0 0B1", "missing", 0, -1, "Nobody runs 0W0; rank 0 should, which holds stage 0."),
    ("0F0 0F1 0W0 0B1", "missing", 0, -1, "Nobody runs 0I0; rank 0 should, which holds stage 0."),
    ("0F0 0B0\n1F0 1B0 1B1", "missing", 1, -1, "Nobody runs 1F1; rank 1 should, which holds stage 1."),
    ("0F0 0F1\n1F0", "missing", 1, -1, "Nobody runs 1F1; rank 1 should, which holds stage 1."),
    ("0F0 1B0\n1F0 0B0", "wrong-rank", 0, 1, "Rank 0 runs 1B0, but stage 1 lives on rank 1."),
    ("0B0 0F0", "order", 0, 0, "Rank 0 runs 0B0 at position 0, but needs 0F0 for it, at position 1."),
    ("0F0 0W0 0I0", "order", 0, 1, "Rank 0 runs 0W0 at position 1, but needs 0I0 for it, at position 2."),
    ("1F0 0F0 0B0 1B0", "order", 0, 0, "Rank 0 runs 1F0 at position 0, but needs 0F0 for it, at position 1."),
    ("0F0+0I0 0W0", "overlap", 0, 0, "Rank 0 overlaps a pair at position 0 that is not an F and then a B."),
    ("0F0+0B0", "overlap", 0, 0, "Rank 0 overlaps 0F0 with 0B0, which cannot start before it ends."),
    (
        "0F0 0B0 0F1 0B1\n1F1 1B1 1F0 1B0",
        "deadlock",
        0,
        1,
        "Deadlock: rank 0 stands at 0B0 and waits for 1B0, which rank 1 has only after 1F1;"
        " rank 1 stands at 1F1 and waits for 0F1, which rank 0 has only after 0B0.",
    ),
    (
        "0F0 0F1+0B0 0B1\n1F1 1F0 1B0 1B1",
        "deadlock",
        0,
        1,
        "Deadlock: rank 0 stands at 0F1+0B0 and waits for 1B0, which rank 1 has only after 1F1;"
        " rank 1 stands at 1F1 and waits for 0F1, which rank 0 stands at.",
    ),
    (
        "0F0 0B0 0F1 0B1\n1F1 1B1 1F0 1B0\n2F0 2B0 2F1 2B1",
        "deadlock",
        0,
        1,
        "Deadlock: rank 0 stands at 0B0 and waits for 1B0, which rank 1 has only after 1F1;"
        " rank 1 stands at 1F1 and waits for 0F1, which rank 0 has only after 0B0;"
        " rank 2 stands at 2F0 and waits for 1F0, which rank 1 has only after 1F1.",
    ),
    (
        "0F0 0B0 0F1 0B1\n1F1 1F0 1B0 1B1\n2F1 2F0 2B0 2B1",
        "deadlock",
        0,
        1,
        "Deadlock: rank 0 stands at 0B0 and waits for 1B0, which rank 1 has only after 1F1;"
        " rank 1 stands at 1F1 and waits for 0F1, which rank 0 has only after 0B0;"
        " rank 2 stands at 2F1 and waits for 1F1, which rank 1 stands at.",
    ),
    (
        "0F0 0F1 0B0 0B1\n1F0 1B0 1F1 1B1\n2F1 2B1 2F0 2B0",
        "deadlock",
        1,
        1,
        "Deadlock: rank 1 stands at 1B0 and waits for 2B0, which rank 2 has only after 2F1;"
        " rank 2 stands at 2F1 and waits for 1F1, which rank 1 has only after 1B0;"
        " rank 0 stands at 0B0 and waits for 1B0, which rank 1 stands at.",
    ),
]


@pytest.mark.parametrize(("text", "code", "rank", "position", "message"), BROKEN, ids=[c[1] for c in BROKEN])
def test_a_broken_rule_is_told_with_its_place(text: str, code: str, rank: int, position: int, message: str) -> None:
    found = [tuple(violation) for violation in validate(Schedule.from_text(text))]
    assert (code, rank, position, message) in found
    with pytest.raises(ScheduleError):
        check(Schedule.from_text(text))


@pytest.mark.parametrize("action", [Action(2, Op.F, 0), Action(-1, Op.F, 0), Action(0, Op.F, 3), Action(0, Op.B, -1)])
def test_a_stage_or_microbatch_that_the_plan_does_not_have_is_out_of_range(action: Action) -> None:
    plan = build("gpipe", 2, 3)
    wrong = replace(plan, rows=((*plan.rows[0], action), plan.rows[1]))
    sentence = f"Rank 0 runs {action}, but the plan has stages 0 to 1 and microbatches 0 to 2."
    assert [tuple(violation) for violation in validate(wrong)] == [("out-of-range", 0, 6, sentence)]


NO_ACTIONS = [
    *(Action(stage, Op.F, 0) for stage in (0.0, math.nan, "0", None, True, np.float64(0))),
    *(Action(0, Op.F, microbatch) for microbatch in (0.5, "0", None, True)),  # True: as good as 1, to Python
    *(Action(0, op, 0) for op in ("X", "", None, [], 1)),
    *((0, "F"), (0, Op.F, 0), (0, Op.F, 0, 0), "0F0", "0F", 7, None),
]


@pytest.mark.parametrize("wrong", NO_ACTIONS, ids=repr)
@pytest.mark.parametrize("ask", [validate, simulate, blocking])
def test_what_is_no_action_is_out_of_range(ask: Callable[[Schedule], object], wrong: Action) -> None:
    """In a plan built directly; what is read is looked at as it is read."""
    plan = build("gpipe", 1, 2)
    plan = replace(plan, rows=((wrong, *plan.rows[0]),))
    right = "an action is a stage, one of F, B, I, W, and a microbatch, as in 2F0"
    sentence = f"Rank 0 runs {wrong!r}, but {right}."
    if ask is validate:
        assert [tuple(violation) for violation in validate(plan)] == [("out-of-range", 0, 0, sentence)]
    else:
        with refused(sentence, ScheduleError):
            ask(plan)


def test_a_pair_with_what_is_no_action_is_told_with_it() -> None:
    plan = build("gpipe", 1, 2)
    plan = replace(plan, rows=(("0F0", *plan.rows[0][1:]),), overlapped=frozenset({(0, 0)}))
    assert [violation.code for violation in validate(plan)] == ["out-of-range", "overlap"]


def test_numbers_of_numpy_and_letters_for_ops_are_as_good_as_ours() -> None:
    plan = Schedule("mine", loop(1), 1, ((Action(np.int64(0), "F", np.int32(0)), Action(0, Op.B, 0)),))
    assert validate(plan) == ()
    assert simulate(plan).makespan == 3


def test_a_number_that_numpy_cannot_hold_is_out_of_range() -> None:
    plan = build("gpipe", 1, 2)
    plan = replace(plan, rows=((Action(10**20, Op.F, 0), Action(np.int64(0), Op.F, 0), *plan.rows[0][1:]),))
    assert [violation.code for violation in validate(plan)] == ["out-of-range"]


@pytest.mark.parametrize("name", ["1f1b", "zb-h1", "dualpipe-v"])
def test_a_plan_in_letters_and_numbers_of_numpy_is_the_same_to_all_who_read_it(name: str) -> None:
    plan = build(name, 2, 6)
    rows = tuple(tuple(Action(np.int64(s), op.value, np.int32(i)) for s, op, i in row) for row in plan.rows)
    other = replace(plan, rows=rows)
    readers: list[Callable[[Schedule], object]] = [
        validate,
        simulate,
        channels,
        in_flight,
        forward_only,
        lambda plan: validate(forward_only(plan)),
        lambda plan: held_by_plan(plan, Sizes(stashed=5.0, kept_for_w=2.0)),
        lambda plan: gantt_text(simulate(plan)),
        lambda plan: json.dumps(chrome_trace(simulate(plan))),
        str,
    ]
    for read in readers:
        assert read(other) == read(plan)


def test_a_stage_on_a_rank_that_there_is_not_is_missing() -> None:
    plan = replace(build("gpipe", 1, 2), placement=table([0, 3], 1))
    assert {violation.code for violation in validate(plan)} == {"missing"}


@pytest.mark.parametrize("name", [name for name in SCHEDULES if not name.startswith("dualpipe")])  # B beside I and W
def test_that_all_is_there_is_known_without_a_closer_look(name: str) -> None:
    plan = build(name, 3, 7)
    assert waits_of(plan).whole
    assert waits_of(forward_only(plan)).whole
    assert waits_of(plan) is waits_of(plan)


def test_a_plan_of_nothing_is_legal() -> None:
    assert validate(Schedule("empty", table([], 0), 0, ())) == ()


def test_what_was_found_out_about_a_plan_is_no_load_when_it_is_sent() -> None:
    plan = build("1f1b", 4, 32)
    light = len(pickle.dumps(plan))
    check(plan)
    sent = pickle.loads(pickle.dumps(plan))
    assert len(pickle.dumps(plan)) < 1.5 * light
    assert simulate(sent).spans == simulate(plan).spans


def test_all_that_is_out_of_place_is_told_at_once() -> None:
    found = validate(Schedule.from_text("0F0 1B0 1B1\n1F0 0B0 0B1"))
    places = [(violation.code, violation.rank, violation.position) for violation in found]
    assert places == [("wrong-rank", rank, position) for rank in (0, 1) for position in (1, 2)]


def test_all_that_is_missing_or_done_twice_is_told_at_once() -> None:
    found = validate(Schedule.from_text("0F0 0F0 0F1 0F2 0B1\n1F0 1F1 1B0 1B1 1B1 1B2"))
    said = [(violation.code, violation.message.split(";")[0].split(",")[0]) for violation in found]
    assert said == [
        ("duplicate", "Rank 0 runs 0F0 at position 1"),
        ("duplicate", "Rank 1 runs 1B1 at position 4"),
        ("missing", "Nobody runs 0B0 (or 0I0 and 0W0)"),
        ("missing", "Nobody runs 0B2 (or 0I2 and 0W2)"),
        ("missing", "Nobody runs 1F2"),
    ]


def test_check_raises_the_first_violation_as_a_sentence() -> None:
    plan = Schedule.from_text("0F0 0F0 0B0 0B0")
    with pytest.raises(ScheduleError, match=r"^Rank 0 runs 0F0 at position 1, but did that at position 0\.$"):
        check(plan)
    with pytest.raises(ValueError, match="0F0"):
        check(plan)


def test_a_stage_that_lives_on_two_ranks_runs_each_microbatch_on_one_of_them() -> None:
    plan = build("dualpipe", 4, 8)
    (first, *rest), *between, last = plan.rows
    moved = replace(plan, rows=(tuple(rest), *between, (first, *last)), overlapped=frozenset())
    sentence = "Rank 3 runs 0F0, but stage 0 lives on rank 0 for microbatch 0."
    assert [tuple(violation) for violation in validate(moved)] == [("wrong-rank", 3, 0, sentence)]


@pytest.mark.parametrize("place", [(5, 0), (-1, 2), (0, -2), (0, 99)])  # -1: the last rank, for a list
def test_a_pair_marked_where_nothing_is_is_told(place: tuple[int, int]) -> None:
    plan = replace(build("gpipe", 2, 3), overlapped=frozenset({place}))
    sentence = f"Rank {place[0]} overlaps a pair at position {place[1]} that is not an F and then a B."
    assert [tuple(violation) for violation in validate(plan)] == [("overlap", *place, sentence)]


ASKED = [check, validate, simulate, blocking, in_flight, lambda plan: in_flight_bytes(plan, 1), forward_only]


@pytest.mark.parametrize("ask", ASKED)
@pytest.mark.parametrize(("wrong", "told"), [("gpipe", "'gpipe'"), (None, "None"), (["0F0 0B0"], "['0F0 0B0']")])
def test_a_name_or_text_where_a_plan_belongs_is_told(
    ask: Callable[[Schedule], object], wrong: Schedule, told: str
) -> None:
    right = 'take build("gpipe", p=4, m=8), or read your own with Schedule.from_text or from_rows'
    with refused(f"A Schedule belongs here, and not {told}; {right}."):
        ask(wrong)


def test_a_circle_of_many_ranks_is_found_in_linear_time() -> None:
    def seconds(p: int) -> float:
        ring = {rank: (rank + 1) % p for rank in range(p)}
        start = time.process_time()
        assert _circle(ring) == list(range(p))
        return time.process_time() - start

    assert min(seconds(8000) for _ in range(3)) < 24 * min(seconds(1000) for _ in range(3))


@quick
@given(plans)
def test_legal_plans_have_no_violations(plan: Schedule) -> None:
    assert validate(plan) == ()
    check(plan)


@pytest.mark.parametrize("name", SCHEDULES)
def test_forwards_alone_are_a_plan_but_one_backward_asks_for_all_of_them(name: str) -> None:
    short = forward_only(build(name, *allowed(name, 2, 2)))
    assert validate(short) == ()
    one_more = replace(short, rows=(short.rows[0], (*short.rows[1], Action(1, Op.B, 0))))
    assert {violation.code for violation in validate(one_more)} == {"missing"}


# The fuzz: does a plan that somebody changed at random still run?


def verdict(plan: Schedule) -> str:
    """By brute force, from the rows alone: "work" if it is not all there once, "stuck", or "legal"."""
    everything = [action for row in plan.rows for action in row]
    letters = "FIW" if any(action.op != "F" for action in everything) else "F"
    wanted = Counter(product(letters, range(plan.num_stages), range(plan.num_microbatches)))
    if Counter(fact for action in everything for fact in made(action)) != wanted:
        return "work"
    if any(plan.rank_of(a.stage, a.microbatch) != rank for rank, row in enumerate(plan.rows) for a in row):
        return "work"
    queues = []
    for rank, row in enumerate(plan.rows):
        steps = [[action] for action in row]
        for position in sorted((n for r, n in plan.overlapped if r == rank), reverse=True):
            steps[position : position + 2] = [row[position : position + 2]]
            if [action.op for action in steps[position]] != ["F", "B"]:
                return "work"
        queues.append(steps)
    known: set[tuple[str, int, int]] = set()
    while any(queues):
        able = [q for q in queues if q and all(needed(a, plan.num_stages) <= known for a in q[0])]
        if not able:
            return "stuck"
        for queue in able:
            for action in queue.pop(0):
                known |= made(action)
    return "legal"


def mutated(rng: random.Random, plan: Schedule) -> Schedule:
    """`plan` after one change: swap, drop, duplicate, move, or renumber."""
    rows = [list(row) for row in plan.rows]
    rank = rng.choice([rank for rank, row in enumerate(rows) if row])
    row, other = rows[rank], rng.choice(rows)
    n = rng.randrange(len(row))
    match rng.choice(["swap", "swap", "drop", "duplicate", "move", "move along", "renumber"]):
        case "swap":
            k = rng.choice([rng.randrange(len(row)), (n + 1) % len(row)])
            row[n], row[k] = row[k], row[n]
        case "drop":
            del row[n]
        case "duplicate":
            other.insert(rng.randint(0, len(other)), row[n])
        case "move":
            action = row.pop(n)
            other.insert(rng.randint(0, len(other)), action)
        case "move along":
            action = row.pop(n)
            row.insert(rng.randint(0, len(row)), action)
        case "renumber":
            stage, op, i = row[n]
            changed = [
                (stage - 1, op, i),
                (stage + 1, op, i),
                (stage, rng.choice(list(Op)), i),
                (stage, op, i ^ 1),
            ]
            row[n] = Action(*rng.choice(changed))
    return replace(plan, rows=tuple(map(tuple, rows)))


def joined(rng: random.Random, plan: Schedule) -> Schedule:
    """`plan` with some neighbouring F and B marked as overlapped."""
    pairs = set()
    for rank, row in enumerate(plan.rows):
        for n, (one, other) in enumerate(pairwise(row)):
            own = one[::2] == other[::2]  # a forward and its own backward: that cannot be, so seldom
            if (one.op, other.op) == ("F", "B") and rng.random() < (0.02 if own else 0.6):
                pairs.add((rank, n))
    return replace(plan, overlapped=frozenset(pairs))


def disagreements(seeds: range) -> tuple[list[str], Counter[str]]:
    """Mutants on which validator and brute force disagree, and how often each verdict came up."""
    wrong, seen = [], Counter[str]()
    for seed in seeds:
        rng = random.Random(seed)
        name = rng.choice(list(SCHEDULES))
        base = build(name, *allowed(name, rng.randint(1, 4), rng.randint(1, 4)))
        if rng.random() < 0.5:
            base = random_order(rng, random_homes(rng), rng.randint(1, 3))
        base = forward_only(base) if rng.random() < 0.1 else base
        mutant = mutated(rng, joined(rng, base) if rng.random() < 0.4 else base)
        if rng.random() < 0.3 and any(mutant.rows):
            mutant = mutated(rng, mutant)
        codes = {violation.code for violation in validate(mutant)}
        truth = verdict(mutant)
        found = "legal" if not codes else "stuck" if codes <= {"order", "deadlock"} else "work"
        # A pair that cannot overlap is told as a pair; the brute force only sees that it never starts.
        if found != truth and not (codes == {"overlap"} and truth == "stuck"):
            wrong.append(f"seed {seed}: {truth}, not {sorted(codes)}\n{mutant}")
        seen[truth] += 1
    return wrong, seen


def test_mutants_are_judged_as_by_brute_force() -> None:
    wrong, seen = disagreements(range(400))
    assert wrong == []
    assert min(seen[verdict] for verdict in ("legal", "stuck", "work")) > 40


@pytest.mark.slow
@pytest.mark.parametrize("first", range(400, 20_400, 2000))
def test_twenty_thousand_mutants_are_judged_as_by_brute_force(first: int) -> None:
    """In ten parts: on a busy machine all of them in one test would pass for a hang."""
    wrong, seen = disagreements(range(first, first + 2000))
    assert wrong == []
    assert min(seen[verdict] for verdict in ("legal", "stuck", "work")) > 200
