"""A million small things at once: what they are, and that the garbage collector is left as it was."""

import gc
from collections.abc import Iterator
from itertools import repeat

import pytest
from strategies import refused

from ppcourse.analysis.simulate import simulate
from ppcourse.analysis.timeline import Span
from ppcourse.schedules import build
from ppcourse.schedules.action import Action, Op
from ppcourse.schedules.bulk import collector_paused, lane, records


@pytest.fixture(params=[True, False], ids=["on", "off"])
def was_on(request: pytest.FixtureRequest) -> Iterator[bool]:
    """The collector, on or off; on again after the test."""
    (gc.enable if request.param else gc.disable)()
    yield request.param
    gc.enable()


def test_the_collector_is_paused_and_then_as_it_was(was_on: bool) -> None:
    with collector_paused():
        assert not gc.isenabled()
        with collector_paused():
            pass
        assert not gc.isenabled()
    assert gc.isenabled() == was_on


def test_it_is_as_it_was_after_an_error_too(was_on: bool) -> None:
    with refused("no"), collector_paused():
        raise ValueError("no")
    assert gc.isenabled() == was_on


def test_who_builds_and_simulates_leaves_it_as_it_was(was_on: bool) -> None:
    assert simulate(build("1f1b", 2, 3)).spans
    assert gc.isenabled() == was_on


def test_records_are_what_a_call_for_each_would_make() -> None:
    actions = [Action(3, Op.W, i) for i in range(4)]
    made = lane(3, Op.W, 4)
    assert made == actions
    assert {*map(type, made)} == {Action}
    assert next(records(Span, repeat(1), actions, [2.0], [3.0])).end == 3.0
