"""The CSV of torch.distributed.pipelining: it reads and runs what we write, and we read what it writes."""

import json
import random
import re
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import pytest
import torch_ranks
from hypothesis import given
from hypothesis import strategies as st
from strategies import quick, random_homes, random_order, random_orders, refused

from ppcourse.analysis.in_flight import in_flight
from ppcourse.analysis.simulate import simulate
from ppcourse.schedules import SCHEDULES, build
from ppcourse.schedules.action import Action, Op
from ppcourse.schedules.forward_only import forward_only
from ppcourse.schedules.placement import table
from ppcourse.schedules.schedule import Schedule, ScheduleError
from ppcourse.schedules.validate import validate

ORDERS = json.loads((Path(__file__).parent / "data" / "unit_costs.json").read_text())["orders"]["rows"]
WRITTEN = [name for name in SCHEDULES if name != "dualpipe"]  # which keeps stages on two ranks


def with_losses_in_order(plan: Schedule) -> Schedule:
    """The same plan, its microbatches renamed so that the last stage runs them from 0 on."""
    last = plan.num_stages - 1
    order = [i for row in plan.rows for stage, op, i in row if (stage, op) == (last, Op.F)]
    rows = (tuple(action._replace(microbatch=order.index(action.microbatch)) for action in row) for row in plan.rows)
    return replace(plan, rows=tuple(rows))


@st.composite
def overlapped_plans(draw: st.DrawFn) -> Schedule:
    """Plans in which some neighbouring F and B are joined."""
    plan, rng = with_losses_in_order(draw(random_orders())), random.Random(draw(st.integers(0, 2**32)))
    pairs = [
        (rank, n)
        for rank, row in enumerate(plan.rows)
        for n, (one, other) in enumerate(pairwise(row))
        if (one.op, other.op) == (Op.F, Op.B) and rng.random() < 0.7
    ]
    return replace(plan, name="mine", overlapped=frozenset(pairs))


# what is written


def test_is_one_line_a_rank_and_one_cell_an_action(tmp_path: Path) -> None:
    Schedule.from_text("0F0 0F1 0F2+0B0 0B1 0B2").to_csv(tmp_path / "plan.csv")
    assert (tmp_path / "plan.csv").read_text() == "0F0,0F1,(0F2;0B0)OVERLAP_F_B,0B1,0B2\n"


def test_is_read_back(tmp_path: Path) -> None:
    @quick
    @given(overlapped_plans())
    def read_back(plan: Schedule) -> None:
        plan.to_csv(tmp_path / "mine.csv")
        assert Schedule.from_csv(tmp_path / "mine.csv") == plan

    read_back()


def test_gives_the_plan_its_files_name_or_yours(tmp_path: Path) -> None:
    path = tmp_path / "fast.csv"
    build("gpipe", 2, 2).to_csv(path)
    assert Schedule.from_csv(path).name == "fast"
    assert Schedule.from_csv(str(path), "faster").name == "faster"


IDLE_RANK = Schedule("mine", table([0, 0], 2), 1, (tuple(map(Action.parse, ["0F0", "1F0", "1B0", "0B0"])), ()))

MISFITS = {
    "a stage on two ranks": (
        build("dualpipe", 4, 8),
        "Stage 0 lives on ranks 0 and 3, and PyTorch has one rank for a stage, so dualpipe cannot",
        r"Stage \d is assigned to both rank",
    ),
    "a rank that does nothing": (
        IDLE_RANK,
        "Rank 1 does nothing, and PyTorch takes no empty rows, so mine cannot",
        r"rank=1, len\(compute_actions\[rank\]\)=0",
    ),
    "no backward": (
        forward_only(build("1f1b", 2, 2)),
        "There is no backward, and PyTorch takes no plan without one, so 1f1b (forward only) cannot",
        r"expected 2 total backwards,\s+but got B=0, I=0, W=0",
    ),
}


@pytest.mark.parametrize("case", MISFITS)
def test_of_what_torch_has_no_place_for_is_refused_and_not_written(
    case: str, tmp_path: Path, load: Callable[[Path, Schedule], str]
) -> None:
    plan, sentence, complaint = MISFITS[case]
    with refused(f"{sentence} be written as PyTorch's CSV.", ScheduleError):
        plan.to_csv(tmp_path / "plan.csv")
    assert not (tmp_path / "plan.csv").exists()
    by_hand = [",".join(plan._cells(rank, "({};{})OVERLAP_F_B")) for rank in range(plan.num_ranks)]
    (tmp_path / "plan.csv").write_text("".join(line + "\n" for line in by_hand))
    with pytest.raises(AssertionError, match=complaint):  # so it is no whim of ours
        load(tmp_path / "plan.csv", plan)


OUT_OF_ORDER = ["0F0 0F1 0B0 0B1", "1F0 1F1 1B0 1B1", "2F1 2F0 2B0 2B1"]


def test_of_losses_out_of_order_is_refused(tmp_path: Path) -> None:
    told = "Stage 2 runs its forwards out of order, and PyTorch takes the first loss for microbatch 0's"
    with refused(f"{told}, so mine cannot be written as PyTorch's CSV.", ScheduleError):
        Schedule.from_rows(OUT_OF_ORDER).to_csv(tmp_path / "plan.csv")


# what is read

SAME = "0F0 0B0\n1F0 1B0"


@pytest.mark.parametrize(
    "text",
    [
        "0F0,,,0B0\n,1F0,1B0,\n",
        "0F0,0B0\r\n1F0,1B0\r\n",
        "0F0,0B0\r1F0,1B0\r",
        "0F0,0B0\n1F0,1B0",
        "\ufeff0F0,0B0\n1F0,1B0\n",
        "0F0,0B0\n1F0,1B0\n\n\n",
        "0F0,0B0\r\r\n1F0,1B0\r\r\n",
        "\n0F0,0B0\n  \n1F0,1B0\n",
        " 0F0 , 0B0\n1F0\t,1B0 \n",
        '"0F0","0B0"\n"1F0","1B0"\n',
        "0UNSHARD,0F0,0SEND_F0,0RECV_B0,0B0,0REDUCE_GRAD,0RESHARD\n1RECV_F0,1F0, 1B0,1SEND_B0 \n",
    ],
    ids=[
        "idle slots",
        "Windows newlines",
        "old newlines",
        "no newline at the end",
        "a byte order mark",
        "blank lines at the end",
        "newlines written twice",
        "blank lines in between",
        "blanks around cells",
        "quotes",
        "communication",
    ],
)
def test_reads(text: str, tmp_path: Path) -> None:
    (tmp_path / "plan.csv").write_bytes(text.encode())
    assert Schedule.from_csv(tmp_path / "plan.csv").to_text() == SAME


EMPTY = "plan.csv has no actions; write one line a rank and one cell an action: `0F0,0B0`."
RIGHT = "is not an action; an action is a stage, one of F, B, I, W, and a microbatch, as in 2F0."


UNREADABLE = {
    "nothing": (b"", EMPTY),
    "blank lines": (b"\n\n", EMPTY),
    "idle slots only": (b",,\n,,\n", EMPTY),
    "no computing": (b"0UNSHARD,0RESHARD\n", EMPTY),
    "an unknown letter": (b"0F0,,0B0\n1F0,1X0,1B0\n", f"plan.csv, line 2, column 2: '1X0' {RIGHT}"),
    "after a blank line": (b"0F0,0B0\n\n1F0,1B0,1\n", f"plan.csv, line 3, column 3: '1' {RIGHT}"),
    "half a message": (b"0F0,0SEND_F\n", f"plan.csv, line 1, column 2: '0SEND_F' {RIGHT}"),
    "a reduction of a microbatch": (b"0REDUCE_GRAD0\n", f"plan.csv, line 1, column 1: '0REDUCE_GRAD0' {RIGHT}"),
    "semicolons": (b"0F0;0B0\n", f"plan.csv, line 1, column 1: '0F0;0B0' {RIGHT}"),
    "text": (b"0F0 0B0\n", f"plan.csv, line 1, column 1: '0F0 0B0' {RIGHT}"),
    "three at once": (
        b"(0F1;0B0;0F2)OVERLAP_F_B\n",
        f"plan.csv, line 1, column 1: '(0F1;0B0;0F2)OVERLAP_F_B' {RIGHT}",
    ),
    "half a pair": (b"(0F1;0B)OVERLAP_F_B\n", f"plan.csv, line 1, column 1: '0B' {RIGHT}"),
    "another encoding": (b"\xff\xfe0\x00F\x000\x00", "plan.csv is not text in UTF-8; save it as that."),
    "a picture": (b"\x89PNG\r\n\x1a\n", "plan.csv is not text in UTF-8; save it as that."),
    "zeros": (b"\x00\x00", f"plan.csv, line 1, column 1: '\\x00\\x00' {RIGHT}"),
    "one huge cell": (b"x" * 200_000, "plan.csv is not a CSV: field larger than field limit (131072)."),
}


@pytest.mark.parametrize("case", UNREADABLE)
def test_what_cannot_be_read_gets_a_sentence_that_says_where(case: str, tmp_path: Path) -> None:
    content, sentence = UNREADABLE[case]
    (tmp_path / "plan.csv").write_bytes(content)
    with refused(sentence, ScheduleError):
        Schedule.from_csv(tmp_path / "plan.csv")


def test_a_missing_file_is_missed_as_any_other(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=re.escape("plan.csv")):
        Schedule.from_csv(tmp_path / "plan.csv")


# torch's own loader


@pytest.fixture(scope="module")
def torch() -> SimpleNamespace:
    from torch.distributed.pipelining import schedules, stage

    return SimpleNamespace(**vars(schedules), stage=stage)


@pytest.fixture
def load(torch: SimpleNamespace) -> Callable[[Path, Schedule], str]:
    """Have torch's runtime read a file as the plan; what it read, as text."""

    def load(path: Path, plan: Schedule) -> str:
        runtime = torch._PipelineScheduleRuntime(
            [stand_in(torch, plan.num_ranks, plan.num_stages)], plan.num_microbatches
        )
        runtime._load_csv(path)
        read = [[str(action) for action in runtime.pipeline_order[rank]] for rank in range(plan.num_ranks)]
        return "\n".join(map(" ".join, read))

    return load


def stand_in(torch: SimpleNamespace, p: int, num_stages: int) -> Any:
    """What a schedule of torch's wants to know of a stage."""
    stage = mock.create_autospec(torch.stage.PipelineStage, instance=True)
    stage.group_rank, stage.group_size, stage.num_stages, stage.submod = 0, p, num_stages, None
    return stage


@pytest.mark.parametrize("text", ["0F0", "12F34", "3B1", "3I1", "3W10", "(0F4;3B1)OVERLAP_F_B"])
def test_torch_reads_every_kind_of_cell_as_the_same_text(torch: SimpleNamespace, text: str) -> None:
    assert str(torch._Action.from_str(text)) == text


@pytest.mark.parametrize(("p", "m"), [(4, 8), (2, 6)])
@pytest.mark.parametrize("name", WRITTEN)
def test_torch_loads_our_csv(load: Callable[[Path, Schedule], str], tmp_path: Path, name: str, p: int, m: int) -> None:
    plan = build(name, p, m)
    plan.to_csv(tmp_path / "plan.csv")
    read = re.sub(r"\((\w+);(\w+)\)OVERLAP_F_B", r"\1+\2", load(tmp_path / "plan.csv", plan))
    assert read == plan.to_text()


# torch's own schedules


@pytest.fixture
def dump(torch: SimpleNamespace, tmp_path: Path) -> Callable[..., Path]:
    """Have torch build one of its schedules and write it with its own method."""

    def dump(name: str, p: int, m: int, v: int, communication: bool = False) -> Path:
        stage = stand_in(torch, p, p * v)
        cls = getattr(torch, f"Schedule{name}")
        one_stage = issubclass(cls, torch.PipelineScheduleSingle)
        schedule = cls(stage if one_stage else [stage] * v, m)
        if communication:
            schedule._dump_csv(tmp_path / "torch.csv")
        else:
            torch.PipelineScheduleMulti._dump_csv(schedule, tmp_path / "torch.csv")
        return tmp_path / "torch.csv"

    return dump


TWO_STAGES = {
    "LoopedBFS": [0, 1, 0, 1],
    "Interleaved1F1B": [0, 1, 0, 1],
    "InterleavedZeroBubble": [0, 1, 0, 1],
    "ZBVZeroBubble": [0, 1, 1, 0],
    "DualPipeV": [0, 1, 1, 0],
}


@pytest.mark.parametrize("name", TWO_STAGES)
def test_we_read_the_schedules_of_torch(dump: Callable[..., Path], name: str) -> None:
    plan = Schedule.from_csv(dump(name, 2, 6, 2))
    assert validate(plan) == ()
    assert [plan.rank_of(stage, 0) for stage in range(4)] == TWO_STAGES[name]
    assert bool(plan.overlapped) == (name == "DualPipeV")


def test_we_skip_its_idle_slots(dump: Callable[..., Path]) -> None:
    path = dump("LoopedBFS", 2, 2, 2)
    assert path.read_text() == "0F0,0F1,2F0,2F1,,,2B1,2B0,0B1,0B0\n,1F0,1F1,3F0,3F1,3B1,3B0,1B1,1B0\n"
    assert Schedule.from_csv(path).to_text() == "0F0 0F1 2F0 2F1 2B1 2B0 0B1 0B0\n1F0 1F1 3F0 3F1 3B1 3B0 1B1 1B0"


@pytest.mark.parametrize("name", TWO_STAGES)
def test_we_read_the_same_with_its_communication(dump: Callable[..., Path], name: str) -> None:
    with_it = dump(name, 2, 6, 2, communication=True)
    assert "1RECV_F5" in with_it.read_text()
    plan = Schedule.from_csv(with_it)
    assert plan == Schedule.from_csv(dump(name, 2, 6, 2))


def test_we_see_that_what_torch_shows_as_1f1b_is_not_what_it_runs(dump: Callable[..., Path]) -> None:
    shown = Schedule.from_csv(dump("1F1B", 4, 8, 1))
    assert shown.rows[:3] == build("1f1b", 4, 8).rows[:3]
    assert [violation.message for violation in validate(shown)][:1] == [
        "Nobody runs 0F8 and 0B8 (or 0I8 and 0W8); rank 0 should, which holds stage 0."
    ]
    assert "Nobody runs 3F0; rank 3 should, which holds stage 3." in [found.message for found in validate(shown)]


SAME_ROWS = [
    ("gpipe", "GPipe", 1),
    ("interleaved", "Interleaved1F1B", 1),
    ("interleaved", "Interleaved1F1B", 3),
    ("zb-h1", "InterleavedZeroBubble", 1),
    ("dualpipe-v", "DualPipeV", 2),
]


@pytest.mark.parametrize(("ours", "theirs", "v"), [same for same in SAME_ROWS if same[0] in SCHEDULES])
@pytest.mark.parametrize(("p", "m"), [(4, 8), (2, 6)])
def test_ours_are_theirs_action_by_action(
    dump: Callable[..., Path], ours: str, theirs: str, v: int, p: int, m: int
) -> None:
    plan = build(ours, p, m, v)
    assert Schedule.from_csv(dump(theirs, p, m, v), ours) == plan


@pytest.mark.parametrize(("p", "m"), [(4, 8), (2, 6)])
def test_our_zb_v_is_theirs_but_for_one_w_that_waits_until_all_i_are_sent(
    dump: Callable[..., Path], p: int, m: int
) -> None:
    ours, theirs = build("zb-v", p, m), Schedule.from_csv(dump("ZBVZeroBubble", p, m, 2))
    assert ours.rows[0] == theirs.rows[0]
    for row, other in zip(ours.rows[1:], theirs.rows[1:], strict=True):
        moved = next(b for a, b in zip(row, other, strict=True) if a != b)
        assert moved.op == "W"
        assert [action for action in row if action != moved] == [action for action in other if action != moved]
        sent = [position for position, action in enumerate(row) if action.op == "I"]
        assert other.index(moved) < sent[-1] < row.index(moved)


# numbers that another program found

OUR_NAME = {
    "torch.GPipe": "gpipe",
    "torch.Interleaved1F1B": "interleaved",
    "torch.LoopedBFS": "breadth-first",
    "torch.ZBVZeroBubble": "zb-v",
    "torch.DualPipeV": "dualpipe-v",
    "1F1B": "1f1b",
    "ZB-H1": "zb-h1",
    "ZB-H2": "zb-h2",
}


def assert_unit_costs(plan: Schedule, row: dict[str, Any]) -> None:
    assert validate(plan) == ()
    timeline, stages = simulate(plan), row["v"]
    assert timeline.makespan == row["makespan"]
    assert set(timeline.busy) == {row["busy"]}
    assert max(timeline.idle) == row["bubble"]
    assert timeline.longest_stage_time - row["busy"] == row["bubble_of_longest_stage"]
    assert [stages * held for held in in_flight(plan, kept_for_w=0)] == row["held_until_i"]
    assert [stages * held for held in in_flight(plan)] == row["held_until_w"]


def called(row: dict[str, Any]) -> str:
    return f"{row['order']} p={row['p']} m={row['m']} v={row['v']}"


@pytest.mark.parametrize("row", [row for row in ORDERS if row["order"].startswith("torch.")], ids=called)
def test_unit_costs_of_torchs_orders(dump: Callable[..., Path], row: dict[str, Any]) -> None:
    path = dump(row["order"].removeprefix("torch."), row["p"], row["m"], row["v"])
    assert_unit_costs(Schedule.from_csv(path), row)


@pytest.mark.parametrize("row", [row for row in ORDERS if OUR_NAME.get(row["order"]) in SCHEDULES], ids=called)
def test_unit_costs_of_our_orders(row: dict[str, Any]) -> None:
    assert_unit_costs(build(OUR_NAME[row["order"]], row["p"], row["m"], row["v"]), row)


# torch's own runtime


def random_plan(seed: int) -> Schedule:
    """Stages anywhere on two ranks, any legal order, some backwards split."""
    rng = random.Random(seed)
    homes = random_homes(rng, most_ranks=2, most_chunks=3)
    while set(homes) != {0, 1}:
        homes = random_homes(rng, most_ranks=2, most_chunks=3)
    return with_losses_in_order(random_order(rng, homes, rng.randint(1, 5)))


RUN: dict[str, Schedule] = {
    **{f"{name} p=2 m=4": build(name, 2, 4) for name in WRITTEN},
    **{f"{name} p=4 m=8": build(name, 4, 8) for name in ("interleaved", "zb-v", "dualpipe-v") if name in SCHEDULES},
    "interleaved p=2 m=3 v=3": build("interleaved", 2, 3, 3),
    **{f"random {seed}": random_plan(seed) for seed in range(12)},
}


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """The folder in which ranks have left the gradients of all plans, and what they said on the way."""
    folder = tmp_path_factory.mktemp("torch")
    cases = {"out of order": (2, [0, 1, 2])}  # the only one on three ranks, since it ends them
    (folder / "out of order.csv").write_text("\n".join(OUT_OF_ORDER).replace(" ", ","))
    for name, plan in RUN.items():
        plan.to_csv(folder / f"{name}.csv")
        cases[name] = plan.num_microbatches, [plan.rank_of(stage, 0) for stage in range(plan.num_stages)]
    (folder / "cases.json").write_text(json.dumps(cases))
    command = [sys.executable, torch_ranks.__file__, str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=100, check=True)
    return folder, done.stderr


@pytest.mark.thorough
@pytest.mark.parametrize("name", RUN)
def test_torch_runs_our_plans_to_the_gradients_of_the_unsplit_model(ran: tuple[Path, str], name: str) -> None:
    import torch

    folder, said = ran
    plan = RUN[name]
    got: dict[int, torch_ranks.Gradients] = {}
    for rank in range(plan.num_ranks):
        left = folder / f"{name}.{rank}.pt"
        assert left.exists(), f"rank {rank} did not end:\n{said[-2000:]}"
        got |= torch.load(left)
    expected = torch_ranks.expected(plan.num_microbatches, plan.num_stages)
    for stage, gradients in enumerate(expected):
        assert list(got[stage]) == list(gradients)
        for parameter, gradient in gradients.items():
            torch.testing.assert_close(got[stage][parameter], gradient, rtol=1e-10, atol=1e-14)


@pytest.mark.thorough
def test_torch_cannot_run_losses_out_of_order(ran: tuple[Path, str]) -> None:
    folder, said = ran
    assert not list(folder.glob("out of order.*.pt"))
    assert "when running action 2B1" in said
