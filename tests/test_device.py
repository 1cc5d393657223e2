"""Ranks on a GPU, as far as that can be seen without one: streams, clocks and order on a stand-in that keeps CUDA's
rules (virtual_gpu.py), and what runs on the CPU too as it is."""

import itertools
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from toys import by_value, classifier, rows_of
from virtual_gpu import Event, Host, VirtualGpu

import ppcourse as pp
from ppcourse.runtime import clock
from ppcourse.runtime.clock import Clock, Pace, StreamClock
from ppcourse.runtime.interpreter import Interpreter
from ppcourse.runtime.links.ends import Arrival
from ppcourse.runtime.links.lanes import Lanes, StreamLanes
from ppcourse.runtime.links.link import Parcel
from ppcourse.runtime.machine import device
from ppcourse.runtime.machine.moments import CudaMoments
from ppcourse.runtime.meter import Meter
from ppcourse.runtime.processes import worker
from ppcourse.runtime.processes.job import Job
from ppcourse.runtime.stages.batch import End
from ppcourse.runtime.stages.stage import Stage
from ppcourse.runtime.tracing import Files, traced
from ppcourse.schedules.channels import Kind

by_value(__name__)
LASTS = {pp.Op.F: 1.0, pp.Op.B: 2.0, pp.Op.I: 1.0, pp.Op.W: 1.0}
COMES = 3.0  # seconds between the messages that a rank gets


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> VirtualGpu:
    gpu = VirtualGpu()
    monkeypatch.setattr(clock, "time", Host(gpu))
    return gpu


class OnGpu:
    """A stage whose work is a number on the virtual GPU: what it hands on is the number of the work that made it."""

    def __init__(self, gpu: VirtualGpu, number: int) -> None:
        self.gpu, self.number = gpu, number
        self.stash: dict[int, int] = {}
        self.owed: dict[int, int] = {}

    @property
    def held(self) -> int:
        return len(self.stash) + len(self.owed)

    def _work(self, op: str, microbatch: int, given: Any, *own: int) -> int:
        needs = [int(leaf) for leaf in (given if isinstance(given, list) else [given]) if leaf is not None]
        name = f"{self.number}{op}{microbatch}"
        return self.gpu.work(name, LASTS[pp.Action.parse(name).op], [*needs, *own])

    def forward(self, microbatch: int, given: Any, end: Any, split: bool) -> Any:
        self.stash[microbatch] = self._work("F", microbatch, given)
        return torch.tensor(float(self.stash[microbatch]))

    def let_go(self, value: Any) -> Any:
        return value

    def backward(self, microbatch: int, given: Any) -> Any:
        return [torch.tensor(float(self._work("B", microbatch, given, self.stash.pop(microbatch))))]

    def input_grad(self, microbatch: int, given: Any) -> Any:
        self.owed[microbatch] = self._work("I", microbatch, given, self.stash.pop(microbatch))
        return [torch.tensor(float(self.owed[microbatch]))]

    def weight_grad(self, microbatch: int) -> None:
        self._work("W", microbatch, None, self.owed.pop(microbatch))


class FromAside:
    """A link: each message is there COMES seconds after the one before, on a side stream for which receive waits."""

    def __init__(self, gpu: VirtualGpu) -> None:
        self.gpu, self.received, self.packed = gpu, 0, 0

    def receive(self, message: Any) -> Arrival:
        self.received += 1
        with self.gpu.aside("from other ranks"):
            came = self.gpu.work(f"{message}", 0.0, [])
            there = Event(COMES * self.received, self.gpu.current.after)
        self.gpu.wait(there)
        value = torch.tensor(float(came))
        self.gpu.uses(value)
        return Arrival(value if message.channel.kind is Kind.ACTIVATION else [value], 0.0)

    def pack(self, message: Any, value: Any) -> Parcel:
        made = int(value[0] if isinstance(value, list) else value)
        assert self.gpu.done[made].stream == self.gpu.names[-1], "packed on another stream than the one that made it"
        self.packed += 1
        return Parcel(torch.empty(0), lambda: None)

    def send(self, parcel: Parcel) -> None: ...


class Notes:
    def __init__(self) -> None:
        self.finished: list[int] = []

    def write(self, rank: int, state: Any, position: int, finished: int) -> None:
        self.finished.append(finished)


def run_on(gpu: VirtualGpu, plan: pp.Schedule, rank: int, with_clock: Clock, lanes: Lanes) -> tuple[Any, Notes]:
    stages: Any = {number: OnGpu(gpu, number) for number in plan.placement.stages_of(rank)}
    link: Any = FromAside(gpu)
    notes: Any = Notes()
    interpreter = Interpreter(plan, rank, stages, link, with_clock, notes, Meter())
    interpreter.lanes = lanes
    start = torch.tensor(float(gpu.work("batch", 0.0, [])))
    inputs = dict.fromkeys(range(plan.num_microbatches), start)
    return interpreter.run(inputs, {}), notes


def lanes_for(gpu: VirtualGpu, plan: pp.Schedule, rank: int) -> Lanes:
    return StreamLanes(gpu) if plan.pairs[rank] else Lanes()  # type: ignore[arg-type]


PLANS = [pp.build(name, 4, 8) for name in ("1f1b", "interleaved", "zb-h1", "zb-v", "dualpipe", "dualpipe-v")]


@pytest.mark.parametrize("plan", PLANS, ids=lambda plan: plan.name)
def test_rows_keep_the_rules_of_streams_and_only_pairs_overlap(gpu: VirtualGpu, plan: pp.Schedule) -> None:
    for rank in range(plan.num_ranks):
        gpu.__init__()  # type: ignore[misc]
        step, _ = run_on(gpu, plan, rank, StreamClock(Host(gpu)), lanes_for(gpu, plan, rank))
        done = {work.name: work for work in gpu.done}
        row, pairs = plan.rows[rank], plan.pairs[rank]
        assert [span.action for span in step.spans] == list(row)
        for position, (first, second) in enumerate(itertools.pairwise(row)):
            one, two = done[str(first)], done[str(second)]
            assert (two.start < one.end) == (position in pairs), f"{first} {second}"
        for span in step.spans:
            assert span.start <= done[str(span.action)].start + 1e-6
            assert span.end >= done[str(span.action)].end - 1e-6


def test_pairs_are_where_lanes_are_seen(gpu: VirtualGpu) -> None:
    plan = pp.build("dualpipe", 4, 8)
    assert all(plan.pairs[rank] for rank in range(4))
    run_on(gpu, plan, 1, StreamClock(Host(gpu)), StreamLanes(gpu))  # type: ignore[arg-type]
    assert {work.stream for work in gpu.done if work.name[1:2] in "FBIW"} == set(plan.placement.stages_of(1))


class NeverWaits(StreamLanes):
    def join(self) -> None: ...


class NeverForks(StreamLanes):
    def fork(self) -> None:
        super().fork()
        self._fork = Event(0.0, frozenset())


class NeverTells(StreamLanes):
    def of(self, stage: int, given: Any) -> Any:
        return super().of(stage, None)


@pytest.mark.parametrize(
    ("careless", "complaint"),
    [(NeverWaits, "may not have made yet"), (NeverForks, "may not have made yet"), (NeverTells, "may be given away")],
)
def test_lanes_that_forget_something_are_found_out(gpu: VirtualGpu, careless: type, complaint: str) -> None:
    with pytest.raises(AssertionError, match=complaint):
        run_on(gpu, pp.build("dualpipe-v", 4, 8), 3, StreamClock(Host(gpu)), careless(gpu))


def test_the_host_runs_ahead_and_waits_only_after_the_row(gpu: VirtualGpu) -> None:
    plan = pp.build("1f1b", 4, 8)
    step, notes = run_on(gpu, plan, 0, StreamClock(Host(gpu)), Lanes())
    work = [work for work in gpu.done if work.stream == "trunk"]
    assert work[-1].told < 0.1 < work[-1].start
    assert gpu.host_waits
    assert min(gpu.host_waits) >= work[1].end  # the first that the host waits for is the end of 0F0
    assert notes.finished[-1] == 2 * len(plan.rows[0])  # told, then done: a driver sees that it gets on
    assert len(step.spans) == len(plan.rows[0])


def test_a_span_leaves_out_the_wait_for_its_inputs_and_is_in_the_hosts_time(gpu: VirtualGpu) -> None:
    gpu.now = 1000.0
    step, _ = run_on(gpu, pp.Schedule.from_text("0F0 0B0\n1F0 1B0"), 1, StreamClock(Host(gpu)), Lanes())
    forward = step.spans[0]
    assert forward.end - forward.start == pytest.approx(1.0, abs=0.01)
    assert 1000.0 < forward.start < 1001.0
    gpu.__init__()  # type: ignore[misc]
    step, _ = run_on(gpu, pp.Schedule.from_text("0F0 0B0\n1F0 1B0"), 1, StreamClock(Host(gpu)), Lanes())
    assert step.spans[0].start == pytest.approx(COMES, abs=0.01)
    assert step.spans[0].end - step.spans[0].start == pytest.approx(1.0, abs=0.01)


def test_a_moment_read_too_early_is_found_out(gpu: VirtualGpu) -> None:
    host = Host(gpu)
    first = host.record()
    gpu.work("0F0", 1.0, [])
    with pytest.raises(AssertionError, match="before it happened"):
        host.seconds(first, host.record())


def test_moments_of_cuda_are_its_timed_events_on_the_gpus_own_stream(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only the calls: no GPU is here."""
    calls: list[tuple[str, Any]] = []

    class Timed:
        def __init__(self, enable_timing: bool = False) -> None:
            calls.append(("made", enable_timing))

        def record(self, stream: Any) -> None:
            calls.append(("recorded", stream))

        def query(self) -> int:
            return 1

        def synchronize(self) -> None:
            calls.append(("waited", self))

        def elapsed_time(self, later: Any) -> float:
            calls.append(("until", later))
            return 250.0  # milliseconds

    monkeypatch.setattr(torch.cuda, "Event", Timed)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device=None: ("stream of", device))
    gpu = torch.device("cuda", 3)
    moments = CudaMoments(gpu)
    first, second = moments.record(), moments.record()
    assert calls == [("made", True), ("recorded", ("stream of", gpu))] * 2
    assert moments.reached(first) is True
    assert moments.seconds(first, second) == 0.25
    moments.wait(second)
    assert calls[4:] == [("until", second), ("waited", second)]


def test_work_from_before_the_step_does_not_shift_its_clock(gpu: VirtualGpu) -> None:
    gpu.work("the optimizer", 50.0, [])
    ticks = StreamClock(Host(gpu))
    ticks.begin()
    start = ticks.start(0.0)
    assert ticks.seconds(start) == pytest.approx(50.0, abs=0.01)


def test_a_pace_waits_for_the_gpu_and_then_for_the_same_deadlines(gpu: VirtualGpu) -> None:
    pace = Pace(pp.Costs(forward=10.0, input_grad=5.0, weight_grad=5.0), 1, Host(gpu))
    first, second = pp.Action.parse("0F0"), pp.Action.parse("0F1")
    assert pace.start(0.0) == pytest.approx(0.0, abs=0.01)
    gpu.work("0F0", 3.0, [])
    pace.worked()
    assert pace.end(first) == pytest.approx(10.0, abs=0.01)  # the GPU was quicker
    start = pace.start(0.0)
    gpu.work("0F1", 25.0, [])
    pace.worked()
    assert pace.seconds(pace.end(second)) == pytest.approx(start + 25.0, abs=0.01)  # and here it was not


def test_a_paced_action_starts_when_the_gpu_has_its_inputs(gpu: VirtualGpu) -> None:
    pace = Pace(pp.Costs(forward=10.0, input_grad=5.0, weight_grad=5.0), 1, Host(gpu))
    gpu.wait(Event(7.0, frozenset()))  # a copy that the stream was told to wait for
    assert pace.start(0.0) == pytest.approx(7.0, abs=0.01)


def test_a_worker_on_a_gpu_has_that_gpus_clock_and_moves_its_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    gpu, moved = VirtualGpu(), []
    host = Host(gpu)
    monkeypatch.setattr(clock, "time", host)
    monkeypatch.setattr(worker, "CudaMoments", lambda where: host)
    monkeypatch.setattr(worker, "enter", lambda where: moved.append(("enter", where)))
    monkeypatch.setattr(worker, "move", lambda what, where: moved.append((type(what).__name__, where)))
    monkeypatch.setattr(worker, "there", lambda value, where: moved.append(("batch", where)) or value)
    monkeypatch.setattr(worker, "generators", lambda where: (torch.default_generator,))
    plan: Any = pp.build("gpipe", 1, 2)
    layers = {0: {0: torch.nn.Linear(2, 2)}}
    board: Any = Notes()
    rank = worker.Worker(0, board, {})
    rank.open(Job(plan, layers, F.mse_loss, link="none: one rank", device="cuda:1"))
    x = torch.ones(2, 2)
    report = rank.step({0: x, 1: x}, {0: End(x, 0.5), 1: End(x, 0.5)}, {})
    assert moved == [("enter", "cuda:1"), ("function", "cuda:1"), ("ModuleDict", "cuda:1"), ("batch", "cuda:1")]
    assert len(report.spans) == 4
    assert max(span.end for span in report.spans) < 1.0  # the GPU's virtual time, not the host's


# what needs no stand-in


def test_a_tensor_that_comes_often_is_moved_once_and_the_rest_stays() -> None:
    mask, weight = torch.ones(2), torch.ones(3, requires_grad=True)
    given = {0: {"mask": mask, "n": 3}, 1: {"mask": mask, "w": weight}, 2: End(mask, 0.5)}
    moved = device.there(given, "meta")  # the one device beside the CPU that every torch has
    assert moved[0]["mask"] is moved[1]["mask"] is moved[2].target
    assert moved[0]["mask"].device.type == "meta"
    assert moved[0]["n"] == 3
    assert moved[1]["w"].requires_grad
    assert moved[1]["w"].is_leaf
    assert device.there(given, "cpu") is given


def test_a_rank_enters_its_own_gpu_before_cuda_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    done: list[Any] = []
    monkeypatch.setattr(torch.cuda, "set_device", done.append)
    monkeypatch.setattr(torch.cuda, "init", lambda: done.append("init"))
    device.enter("cpu")
    device.enter("cuda:1")
    assert done == [torch.device("cuda:1"), "init"]


def test_layers_on_a_gpu_draw_from_that_gpus_generator_too(monkeypatch: pytest.MonkeyPatch) -> None:
    gpus = torch.Generator(), torch.Generator()
    monkeypatch.setattr(torch.cuda, "default_generators", gpus)
    assert device.generators("cuda:1") == (torch.default_generator, gpus[1])
    assert device.generators("cpu") == (torch.default_generator,)


@pytest.mark.parametrize("cut", [[[0, 1]], [[0], [1]]])
def test_each_generator_begins_anew_for_layer_and_microbatch_whatever_the_cut(cut: list[list[int]]) -> None:
    own = torch.Generator()

    class Noise(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x + torch.rand(x.shape, generator=own)

    def through(parts: list[list[int]], microbatches: list[int]) -> dict[int, torch.Tensor]:
        stages = [Stage({n: Noise() for n in part}, None, seed=3) for part in parts]
        found = {}
        for i in microbatches:
            value = torch.zeros(4)
            for stage in stages:
                stage.generators = (torch.default_generator, own)
                value = stage.forward(i, value)
            found[i] = value
        return found

    once, again = through([[0, 1]], [0, 1]), through(cut, [1, 0])
    assert all(torch.equal(once[i], again[i]) for i in (0, 1))
    assert not torch.equal(once[0], once[1])


class Hungry(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 GiB.")


def test_a_gpus_memory_that_is_not_enough_is_told_with_rank_stage_and_action() -> None:
    layers = [torch.nn.Linear(4, 4), Hungry()]
    x = torch.zeros(4, 4)
    with pytest.raises(pp.RankError) as told:
        pp.run("gpipe", layers, x, x, loss_fn=F.mse_loss, p=2, m=2)
    assert (told.value.rank, told.value.stage, str(told.value.action)) == (1, 1, "1F0")
    assert told.value.cause == "OutOfMemoryError: CUDA out of memory. Tried to allocate 20.00 GiB."


@pytest.mark.thorough
def test_a_profile_has_a_range_for_each_action_of_its_rank(tmp_path: Path, capsys: Any) -> None:
    inputs, targets = rows_of(8)
    plan = pp.build("1f1b", 2, 3)
    pp.run(plan, classifier(), inputs, targets, loss_fn=F.cross_entropy, profiler=tmp_path / "trace.json")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["trace-rank-0.json", "trace-rank-1.json"]
    for rank in (0, 1):
        events = json.loads((tmp_path / f"trace-rank-{rank}.json").read_text())["traceEvents"]
        ranges = [event for event in events if event.get("cat") == "user_annotation"]
        named = [event["name"] for event in sorted(ranges, key=lambda event: event["ts"])]
        assert [name for name in named if name[0].isdigit()] == [str(action) for action in plan.rows[rank]]
    assert capsys.readouterr().out == ""  # the profiler would say when it starts and stops


WRONG: dict[str, tuple[dict[str, Any], str]] = {
    "no folder": ({"profiler": "nowhere/trace.json"}, "there is no folder"),
    "no path": ({"profiler": 3}, "profiler is 3, but it must be the path of a file"),
    "a snapshot of the CPU": ({"snapshot": "memory.pickle"}, "snapshot shows a GPU's allocator"),
}


@pytest.mark.parametrize("case", WRONG)
def test_files_that_cannot_be_had_are_a_sentence(case: str, monkeypatch: pytest.MonkeyPatch) -> None:
    options, part = WRONG[case]
    inputs, targets = rows_of(8)
    started: Callable[..., Any] = lambda *_: pytest.fail("a rank was started")  # noqa: E731
    monkeypatch.setattr("ppcourse.runtime.processes.session.pool_of", started)
    with pytest.raises(ValueError, match=part):
        pp.run("gpipe", classifier(), inputs, targets, loss_fn=F.cross_entropy, p=2, m=2, **options)


def test_a_snapshot_is_written_of_a_step_that_fails_too(monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[str] = []
    memory = torch.cuda.memory
    monkeypatch.setattr(memory, "_record_memory_history", lambda enabled="all": said.append(f"record {enabled}"))
    monkeypatch.setattr(memory, "_dump_snapshot", lambda path: said.append(f"dump {path}"))

    def out_of_memory() -> None:
        with traced(Files(snapshot="here")):
            raise RuntimeError("out of memory")

    with pytest.raises(RuntimeError, match="out of memory"):
        out_of_memory()
    assert said == ["record all", "dump here", "record None"]
