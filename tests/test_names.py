"""The table of what other projects call the schedules."""

import re

import pytest
from strategies import refused

from ppcourse.schedules import SCHEDULES
from ppcourse.schedules.names import ELSEWHERE, PROJECTS, Elsewhere, elsewhere

IN_TORCH = {name: entry.torch for name, entry in ELSEWHERE.items() if entry.torch}
FLAGS = [flags for entry in ELSEWHERE.values() for flags in (entry.megatron, entry.zero_bubble) if flags]


def test_has_every_schedule() -> None:
    assert set(SCHEDULES) <= set(ELSEWHERE)


def test_has_every_schedule_of_torch() -> None:
    from torch.distributed.pipelining import schedules

    there = {name for name in schedules.__all__ if name.startswith("Schedule")}
    assert set(IN_TORCH.values()) == there


@pytest.mark.parametrize("flags", sorted(set(FLAGS)))
def test_flags_are_flags_and_their_values(flags: str) -> None:
    assert re.fullmatch(r"(--[a-z][a-z-]+( (\d?[A-Z]+|half|min))? ?)+", flags)
    assert flags.startswith("--pipeline-model-parallel-size P")


def test_names_each_project_once() -> None:
    assert tuple(PROJECTS) == Elsewhere._fields
    assert len(set(PROJECTS.values())) == len(PROJECTS)


def test_tells_only_where_there_is_one() -> None:
    assert elsewhere("naive") == {}
    assert elsewhere("gpipe") == {"torch.distributed.pipelining": "ScheduleGPipe"}
    assert elsewhere("interleaved")["NVIDIA/Megatron-LM"] == (
        "--pipeline-model-parallel-size P --num-virtual-stages-per-pipeline-rank V"
    )
    assert list(elsewhere("dualpipe")) == ["deepseek-ai/DualPipe"]


def test_an_unknown_name_gets_those_there_are() -> None:
    with refused(f"There is no schedule 'gpip'; the table has {', '.join(ELSEWHERE)}."):
        elsewhere("gpip")
