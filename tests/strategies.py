"""What the tests draw from: sizes, costs, plans, and legal orders that nobody would write down.

The rules of a pipeline stand here once more, in other words than the package's, so that neither what is
drawn nor what is expected of it leans on the code under test.
"""

import random
import re
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st

from ppcourse.schedules import SCHEDULES, build
from ppcourse.schedules.action import Action, Op
from ppcourse.schedules.costs import Costs
from ppcourse.schedules.placement import table
from ppcourse.schedules.schedule import Schedule

quick = settings(max_examples=40, deadline=None, derandomize=True)

ranks = st.integers(1, 6)
microbatches = st.integers(1, 9)
times = st.integers(1, 20)

Fact = tuple[str, int, int]


def refused(sentence: str, error: type[Exception] = ValueError) -> Any:
    """`with refused("..."):` holds if the block is refused with exactly this sentence."""
    return pytest.raises(error, match=f"^{re.escape(sentence)}$")


def needed(action: Action, num_stages: int) -> set[Fact]:
    """What must be true before `action` starts; ("I", 2, 0): the input gradient of stage 2, microbatch 0."""
    stage, op, i = action
    if op == "W":
        return {("I", stage, i)}
    if op == "F":
        return {("F", stage - 1, i)} if stage > 0 else set()
    return {("F", stage, i)} | ({("I", stage + 1, i)} if stage + 1 < num_stages else set())


def made(action: Action) -> set[Fact]:
    """What is true after `action`."""
    return {(letter, action.stage, action.microbatch) for letter in ("IW" if action.op == "B" else action.op)}


def random_order(rng: random.Random, homes: list[int], m: int) -> Schedule:
    """A legal plan for stages that live on the ranks `homes`: at each step, anything that may run runs next.

    Some backwards are split into I and W, others are not. Ranks that come first in a random order tend to run
    ahead of the others, so that messages wait for each other in all ways.
    """
    todo = [
        Action(stage, Op(letter), i)
        for stage in range(len(homes))
        for i in range(m)
        for letter in rng.choice(["FB", "FIW"])
    ]
    known: set[Fact] = set()
    rows: list[list[Action]] = [[] for _ in range(1 + max(homes))]
    eager = rng.randrange(1 + max(homes))
    while todo:
        ready = [action for action in todo if needed(action, len(homes)) <= known]
        ahead = [action for action in ready if homes[action.stage] == eager]
        action = rng.choice(ahead if ahead and rng.random() < 0.5 else ready)
        todo.remove(action)
        rows[homes[action.stage]].append(action)
        known |= made(action)
    return Schedule("random", table(homes, len(rows)), m, tuple(map(tuple, rows)))


def random_homes(rng: random.Random, most_ranks: int = 3, most_chunks: int = 2) -> list[int]:
    """A rank for each stage; every rank has at least one stage, in no particular order."""
    p = rng.randint(1, most_ranks)
    homes = [*range(p), *(rng.randrange(p) for _ in range(rng.randint(0, p * (most_chunks - 1))))]
    rng.shuffle(homes)
    return homes


@st.composite
def random_orders(draw: st.DrawFn) -> Schedule:
    rng = random.Random(draw(st.integers(0, 2**32)))
    return random_order(rng, random_homes(rng), rng.randint(1, 5))


CHOOSES_V = ("interleaved", "breadth-first")


def allowed(name: str, p: int, m: int) -> tuple[int, int]:
    """The counts that `name` can have near these: DualPipe wants many microbatches, and even numbers."""
    if name == "dualpipe":
        p += p % 2
        return p, 2 * p + 2 * (m // 3)
    return (p, 2 * p + m // 3) if name == "dualpipe-v" else (p, m)


@st.composite
def built_plans(draw: st.DrawFn, names: Sequence[str] = tuple(SCHEDULES)) -> Schedule:
    name = draw(st.sampled_from(list(names)))
    p, m = allowed(name, draw(ranks), draw(microbatches))
    return build(name, p, m, draw(st.integers(1, 3)) if name in CHOOSES_V else None)


plans = st.one_of(built_plans(), random_orders())


def letters(plan: Schedule) -> str:
    """The ops of a plan: "FB", or "FIW" where every backward is split."""
    return "".join(sorted({action.op.value for row in plan.rows for action in row}, key="FBIW".index))


@st.composite
def equal_costs(draw: st.DrawFn) -> Costs:
    """The same whole numbers for every stage, so that sums are exact; free hops."""
    return Costs(draw(times), draw(times), draw(times))


@st.composite
def unequal_costs(draw: st.DrawFn, num_stages: int) -> Costs:
    """Whole numbers for each stage, none of the same length; hops that take time."""
    each = st.lists(st.integers(0, 20), min_size=num_stages, max_size=num_stages)
    return Costs(draw(each), draw(each), draw(each), comm=draw(st.integers(0, 5)))
