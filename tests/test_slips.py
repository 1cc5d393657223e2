"""Slips in calls of public functions: a sentence names the value, the rule, and something that works."""

from collections.abc import Callable
from typing import Any

import pytest
from strategies import refused

import ppcourse as pp

PLAN = pp.build("1f1b", 4, 8)
TIMELINE = pp.simulate(PLAN)
CALLS: dict[str, tuple[Callable[..., Any], dict[str, Any]]] = {
    "parse": (pp.Action.parse, {"text": "2F0"}),
    "op": (pp.Op, {"value": "F"}),
    "costs": (pp.Costs, {}),
    "sizes": (pp.Sizes, {}),
    "partition": (pp.partition, {"layer_costs": [1, 2, 3], "num_stages": 2}),
    "megatron_split": (pp.megatron_split, {"num_layers": 12, "num_ranks": 4}),
    "bubble_rate": (pp.formulas.bubble_rate, {"p": 4, "m": 8}),
    "step_time": (pp.formulas.step_time, {"p": 4, "m": 8, "forward": 1, "backward": 2, "v": 1}),
    "in_flight": (pp.formulas.one_f_one_b_in_flight, {"p": 4, "m": 8}),
    "microbatches": (pp.formulas.microbatches_for_rate, {"p": 4, "rate": 0.05}),
    "gantt": (lambda **options: pp.gantt(TIMELINE, **options), {}),
    "gantt_text": (lambda **options: pp.gantt_text(TIMELINE, **options), {}),
    "doctor": (pp.doctor, {"ranks": (1,)}),
    "draw_schedule": (pp.draw_schedule, {"p": 2, "m": 2}),
    "explore": (pp.explore, {}),
    "explore_m": (pp.explore_m, {}),
    "explore_overlap": (pp.explore_overlap, {}),
}
WHOLE = "it must be a whole number of at least"
FOR_EXAMPLE = "but it must be Costs, for example Costs(forward=1, comm=0.1)."
RANKS = "but it must be whole numbers of at least 1, as in doctor((2, 4))."
SIZE = "it must be a finite number of at least 0, or a list of one a stage."

SLIPS: list[tuple[str, dict[str, Any], str]] = [
    ("parse", {"text": 3}, "3 is not an action; an action is a stage, one of F, B, I, W, and a microbatch, as in 2F0."),
    ("op", {"value": "f"}, "'f' is not an op; an op is one of F, B, I, W."),
    ("costs", {"forward": "10ms"}, f"Costs.forward is '10ms'; {SIZE}"),
    ("sizes", {"parameters": "7B"}, f"Sizes.parameters is '7B'; {SIZE}"),
    ("partition", {"limits": 5}, "limits has nothing to hold down: give layer_memory, layer_stashed, or both."),
    ("megatron_split", {"first": 20}, "first and last ask for 20 of 12 layers; take at most 9."),
    ("megatron_split", {"first": 9, "last": 9}, "first and last ask for 18 of 12 layers; take at most 10."),
    ("bubble_rate", {"p": 0}, f"p, the number of ranks, is 0; {WHOLE} 1."),
    ("bubble_rate", {"m": "8"}, f"m, the number of microbatches, is '8'; {WHOLE} 1."),
    ("bubble_rate", {"m": 2.5}, f"m, the number of microbatches, is 2.5; {WHOLE} 1."),
    ("step_time", {"v": 0}, f"v, the stages of a rank, is 0; {WHOLE} 1."),
    ("in_flight", {"m": -8}, f"m, the number of microbatches, is -8; {WHOLE} 1."),
    ("microbatches", {"rate": 5}, "rate is 5; it must be a share above 0 and at most 1: 0.05 for 5%."),
    ("microbatches", {"rate": 0}, "rate is 0; it must be a share above 0 and at most 1: 0.05 for 5%."),
    ("gantt", {"width": 0}, "width is 0; it must be inches, at least 2, 9 for example."),
    ("gantt", {"width": "wide"}, "width is 'wide'; it must be inches, at least 2, 9 for example."),
    ("gantt_text", {"columns": 0}, f"columns is 0; {WHOLE} 20, 112 for example."),
    ("gantt_text", {"columns": "all"}, f"columns is 'all'; {WHOLE} 20, 112 for example."),
    ("doctor", {"ranks": 3}, f"ranks is 3, {RANKS}"),
    ("doctor", {"ranks": (0,)}, f"ranks is (0,), {RANKS}"),
    ("doctor", {"ranks": "4"}, f"ranks is '4', {RANKS}"),
    ("draw_schedule", {"rows": "0F0 0B0"}, "There are 1 rows for 2 ranks; write one a rank."),
    ("draw_schedule", {"costs": 3}, f"costs is 3, {FOR_EXAMPLE}"),
    ("explore", {"costs": 0}, f"costs is 0, {FOR_EXAMPLE}"),
    ("explore_m", {"costs": 3}, f"costs is 3, {FOR_EXAMPLE}"),
    (
        "explore_m",
        {"schedules": "1f1b"},
        "schedules is '1f1b', but it must be a list, as in ['gpipe', '1f1b'].",
    ),
    ("explore_overlap", {"costs": 3}, f"costs is 3, {FOR_EXAMPLE}"),
]


@pytest.mark.parametrize(("name", "slip", "sentence"), SLIPS, ids=[f"{name}-{slip}" for name, slip, _ in SLIPS])
def test_a_slip_is_told_in_a_sentence(name: str, slip: dict[str, Any], sentence: str) -> None:
    function, right = CALLS[name]
    with refused(sentence):
        function(**right | slip)


@pytest.mark.parametrize("name", CALLS)
def test_the_same_call_without_the_slip_is_taken(name: str) -> None:
    function, right = CALLS[name]
    assert function(**right) is not None


def test_a_plan_where_a_schedules_name_belongs_is_told_in_short() -> None:
    with pytest.raises(ValueError, match=r"^schedule is Schedule\(.{1,40}; it must be one of naive, gpipe, "):
        pp.explore(PLAN)  # type: ignore[arg-type]


@pytest.mark.parametrize("answer", [3, "p + m", [1, 2]])
def test_an_answer_that_should_be_a_function_is_told(answer: Any, own_progress: None) -> None:
    verdict = pp.grade("3.2", answer)
    assert verdict.message == f"your answer is {answer!r}, and this exercise asks for a function"


def test_whole_numbers_may_be_floats_in_a_formula() -> None:
    assert pp.formulas.bubble_rate(4, 8.0) == pp.formulas.bubble_rate(4, 8)  # type: ignore[arg-type]
