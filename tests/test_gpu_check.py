"""The GPU check: each section fails where what it asks about is wrong, and no section can hide another.

No GPU is here. A dry run is a real one on the CPU; the way for GPUs runs on stand-ins, and what is shown of it is that
the check asks, compares and reports as it should, not that a GPU does anything.
"""

import json
import pickle
import re
import threading
import time
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

import ppcourse as pp
from ppcourse import cli
from ppcourse.analysis.timeline import Span, Timeline
from ppcourse.lab.gpu_check import allowance as allowances
from ppcourse.lab.gpu_check import check, gradients, machine, memory, nccl, notebook, streams, tasks, times, traces
from ppcourse.lab.gpu_check import setting as settings
from ppcourse.lab.gpu_check import training as trains
from ppcourse.lab.gpu_check.allowance import Allowance
from ppcourse.lab.gpu_check.finding import Finding, State, failed, impossible, judged
from ppcourse.lab.gpu_check.sections import SECTIONS, Section
from ppcourse.lab.gpu_check.setting import Setting
from ppcourse.lab.on_ranks import on_ranks
from ppcourse.runtime.models import Embedding
from ppcourse.schedules.costs import Costs

LONG = {"A GPT as fast as it can", "Training"}  # first optimizers of fresh ranks: torch imports for seconds
FEW = ("1f1b", "zb-v")


@pytest.fixture
def dry(tmp_path: Path) -> Setting:
    return Setting("cpu", 0, FEW, tmp_path)


@pytest.fixture
def wet(tmp_path: Path) -> Setting:
    return Setting("cuda", 1, FEW, tmp_path)


@pytest.fixture
def allowance() -> Allowance:
    return Allowance(60)


def state_of(report: str) -> dict[str, str]:
    """Outcomes by title, as the report's overview has them."""
    return dict(re.findall(r"^\| \d+\. (.*?) \| (.*?) \|", report, re.MULTILINE))


# dry: the same code on the CPU


@pytest.fixture
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """How long something takes is for a quiet machine to say, not for a test."""
    monkeypatch.setattr(check, "SECTIONS", [each._replace(seconds=20 * each.seconds) for each in SECTIONS])
    monkeypatch.setattr(times, "SLOWEST", 1e9)
    monkeypatch.setattr(times, "COVERED", 0.0)


@pytest.mark.thorough
def test_a_dry_run_passes_and_says_that_it_is_one(tmp_path, monkeypatch, capsys, patient) -> None:
    monkeypatch.setattr(check, "SECTIONS", [each for each in check.SECTIONS if each.title not in LONG])
    path = tmp_path / "new" / "dry.md"
    assert check.main(True, path, FEW) == 0
    report = path.read_text()
    assert report.startswith("# Dry run of the GPU check: on the CPU, nothing here ran on a GPU\n")
    assert "Left out: naive, gpipe, interleaved" in report
    gpu_only = {each.title for each in SECTIONS if each.needs_gpu}
    found = state_of(report)
    assert set(found) == {each.title for each in SECTIONS} - LONG
    for title, outcome in found.items():
        no = title in gpu_only or (title == "Profiler trace" and not Setting.knows("profiler"))
        assert outcome == ("not possible here" if no else "passed"), title
    assert report.count("needs a GPU: not run") == len(gpu_only)
    headings = [line for line in report.splitlines() if line.startswith("## ")]
    assert all(line.endswith("(dry, on the CPU)") for line in headings)
    assert capsys.readouterr().out.count("\n") == len(found) + 1


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_the_whole_dry_run_passes(tmp_path, patient) -> None:
    path = tmp_path / "dry.md"
    assert check.main(True, path) == 0
    report = path.read_text()
    assert set(state_of(report)) == {each.title for each in SECTIONS}
    for name in pp.SCHEDULES:
        assert report.count(f"| {name} |") >= 2, name  # gradients and a paced run
    assert "Not all schedules" not in report
    assert "Left out" not in report
    assert [*tmp_path.iterdir()] == [path]


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("gpus", [1, 2])
def test_the_way_of_a_gpu_runs_to_its_end_on_stand_ins(tmp_path, monkeypatch, patient, gpus: int) -> None:
    """Runs that say they were on a GPU, and were on the CPU: nothing is shown but that the check comes to its end."""
    real = settings.run, settings.train

    def run(*given: Any, device: str, link: str, profiler: Path | None = None, **options: Any) -> Any:
        if path := profiler or options.pop("snapshot", None):
            write_stand_ins(path, given[0])
        return replace(real[0](*given, **options), device=device, link=f"{link}: a stand-in")

    for module, size in ((memory, (32, 256)), (times, (32, 32))):
        monkeypatch.setattr(module, "SIZES", {"cuda": size})
    monkeypatch.setattr(streams, "LENGTH", 64)
    monkeypatch.setattr(settings, "run", run)
    monkeypatch.setattr(settings.Setting, "knows", staticmethod(lambda option: True))
    monkeypatch.setattr(settings, "train", lambda *given, device, **options: real[1](*given, **options))
    monkeypatch.setattr(check, "doctor", lambda ranks: SimpleNamespace(gpus=("a stand-in",) * gpus))
    seen = [([("CUDA", "0")], [("a stand-in", "0.0", "0")] * gpus)]
    monkeypatch.setattr(machine, "on_ranks", lambda *_: seen)
    monkeypatch.setattr(nccl, "on_ranks", lambda *_: [[0.0, 1.0, 2.0, 3.0]])
    path = tmp_path / "gpu.md"
    assert check.main(False, path, ("dualpipe", *FEW)) == 0
    report = path.read_text()
    assert report.startswith(f"# GPU check on {gpus} GPU")
    assert "dry" not in report
    assert state_of(report) == dict.fromkeys((each.title for each in SECTIONS), "passed")
    assert ("| dualpipe | 2 | 4 | nccl |" in report) == (gpus > 1)
    assert ("proves no channel" in report) == (gpus == 1)


def file_of(path: Path, rank: int) -> Path:
    return path.with_name(f"{path.stem}-rank-{rank}{path.suffix}")


def write_stand_ins(path: Path, plan: pp.Schedule) -> None:
    """For each rank a trace, or a snapshot."""
    for rank, row in enumerate(plan.rows):
        if path.suffix == ".json":
            ranges = [{"cat": "user_annotation", "name": str(action)} for action in row]
            events = [*ranges, kernel(7, 0, 1), kernel(9, 0, 1)]
            file_of(path, rank).write_text(json.dumps({"traceEvents": events}))
        else:
            written = {"segments": [{"total_size": 2**21}], "device_traces": [[{}]]}
            file_of(path, rank).write_bytes(pickle.dumps(written))


def test_without_a_gpu_only_a_dry_run_is_possible(tmp_path, monkeypatch, capsys) -> None:
    monkeypatch.setattr(check, "doctor", lambda ranks: SimpleNamespace(gpus=()))
    assert check.main(False, tmp_path / "report.md") == 2
    assert "--dry" in capsys.readouterr().err
    assert not (tmp_path / "report.md").exists()


def test_the_command_hands_over_its_options(monkeypatch) -> None:
    asked: list[Any] = []
    monkeypatch.setattr(check, "main", lambda *options: asked.append(options) or 1)
    assert cli.main(["gpu-check", "--dry", "--out", "x.md"]) == 1
    assert cli.main(["gpu-check"]) == 1
    assert asked == [(True, Path("x.md")), (False, None)]


# the runner: no section hides another


def one(title: str, function: Any, seconds: float = 60, **needs: Any) -> Section:
    return Section(title, function, seconds, **needs)


def test_a_section_that_raises_fails_and_the_others_run(dry, tmp_path) -> None:
    def raises(setting: Setting, allowance: Allowance) -> Finding:
        raise KeyError("lost")

    def passes(setting: Setting, allowance: Allowance) -> Finding:
        return judged([], "fine")

    outcomes = check.check(dry, tmp_path / "r.md", [one("a", passes), one("b", raises), one("c", passes)])
    assert [outcome.finding.state for outcome in outcomes] == [State.PASSED, State.FAILED, State.PASSED]
    assert "## 2. b: failed (dry, on the CPU)\n\nKeyError: 'lost'\n" in (tmp_path / "r.md").read_text()


@pytest.mark.parametrize(
    ("finding", "status"),
    [(failed("no"), 1), (judged([], "yes"), 0), (impossible("needs two"), 0), (judged([], "yes", cut=["x"]), 0)],
)
def test_the_exit_status_is_that_of_the_worst_section(tmp_path, monkeypatch, finding: Finding, status: int) -> None:
    monkeypatch.setattr(check, "SECTIONS", [one("a", lambda *_: judged([], "")), one("b", lambda *_: finding)])
    assert check.main(True, tmp_path / "r.md") == status
    assert finding.verdict in (tmp_path / "r.md").read_text()


def test_the_report_is_there_after_each_section(dry, tmp_path) -> None:
    path = tmp_path / "r.md"

    def looks(setting: Setting, allowance: Allowance) -> Finding:
        return judged([], f"{state_of(path.read_text())}")

    [_, outcome] = check.check(dry, path, [one("a", lambda *_: judged([], "")), one("b", looks)])
    assert outcome.finding.sentence == "{'a': 'passed', 'b': 'not run yet'}"


def test_what_needs_a_gpu_or_an_option_that_is_not_there_says_so(dry, wet) -> None:
    never = one("a", lambda *_: 1 // 0, needs_gpu=True)
    assert check.ask(dry, never) == impossible("needs a GPU: not run")
    lacks = one("b", lambda *_: 1 // 0, option="telescope")
    assert "telescope" in check.ask(wet, lacks).sentence
    assert check.ask(wet, lacks).state is State.IMPOSSIBLE


@pytest.mark.thorough
def test_a_section_that_does_not_return_is_ended_with_its_ranks(dry) -> None:
    def waits(setting: Setting, allowance: Allowance) -> Finding:
        on_ranks(lambda rank: time.sleep(600), 1, timeout=300)
        return judged([], "")

    began = threading.active_count()
    found = check.ask(dry, one("a", waits, seconds=2))
    assert found.state is State.FAILED
    assert found.sentence.startswith("Ended after its 2 s. ")
    quick = check.ask(dry, one("a", lambda *_: judged([], ""), seconds=600))
    assert quick.state is State.PASSED
    assert threading.active_count() <= began + 1


def test_nothing_begins_that_would_not_fit(monkeypatch) -> None:
    now = [0.0]
    monkeypatch.setattr(allowances.time, "monotonic", lambda: now[0])
    it = Allowance(100)
    done = []
    for name in it.each(["a", "b", "c", "d"]):
        done.append(name)
        now[0] += 30
    assert done == ["a", "b"]  # a third would end at 90, and 75 are for beginning
    assert it.cut == ["c", "d"]
    assert judged([], "fine", cut=it.cut).verdict == "passed, but cut short"
    assert judged(["no"], "fine", cut=it.cut).verdict == "failed"


def test_what_was_cut_is_in_the_report(dry, tmp_path) -> None:
    check.check(dry, tmp_path / "r.md", [one("a", lambda *_: judged([], "fine", cut=["v-min", "naive"]))])
    assert "Left out for lack of time:** v-min, naive." in (tmp_path / "r.md").read_text()


def test_all_sections_together_take_less_than_five_minutes() -> None:
    assert sum(each.seconds for each in SECTIONS) <= 290


# gradients


def faked(monkeypatch: pytest.MonkeyPatch, change: Any, link: str = "staged: a stand-in") -> list[dict[str, Any]]:
    """Let runs be one process's steps that `change` spoils; what was asked for."""
    asked = []

    def run(plan: Any, model: Any, inputs: Any, targets: Any, *, loss_fn: Any, **options: Any) -> Any:
        asked.append({"plan": plan, **options})
        if isinstance(model[0], Embedding):
            _, result = gradients.alone(plan.num_microbatches, plan.num_stages)
        else:
            result = pp.reference_step(model, inputs, targets, loss_fn=loss_fn, m=plan.num_microbatches)
        due = sum(len(each.sent) for each in gradients.channels(plan).values())
        return change(replace(result, messages=due, link=link, device=options["device"]))

    monkeypatch.setattr(settings, "run", run)
    return asked


def with_gradient(result: Any, name: str, grad: Any) -> Any:
    return replace(result, grads={**result.grads, name: grad})


def spoiled(number: int, by: float) -> Any:
    """Makes the largest entry of one weight's gradient wrong by this share of it."""

    def change(result: Any) -> Any:
        name = list(result.grads)[number]
        grad = result.grads[name].clone()
        grad.view(-1)[grad.abs().argmax()] *= 1 + by
        return with_gradient(result, name, grad)

    return change


def test_right_gradients_over_the_link_that_was_asked_for_pass(wet, monkeypatch) -> None:
    asked = faked(monkeypatch, lambda result: result)
    line = gradients.compared(wet, "zb-h1", 4, 8, "staged")
    assert line.wrong == ""
    assert line.cells[:6] == ("zb-h1", "4", "8", "staged", "6", "48 of 48")
    assert (asked[0]["device"], asked[0]["link"]) == ("cuda", "staged")


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (spoiled(0, 1e-7), "the gradient of 0.token.weight differs by 1e-07"),
        (spoiled(-1, 1e-7), ".logits.weight differs by 1e-07"),
        (lambda r: replace(r, loss=r.loss * 1.001), "the loss differs by 0.001"),
        (lambda r: replace(r, messages=r.messages - 1), "47 messages were sent, and the plan has 48"),
        (lambda r: replace(r, link="shared: a slip"), "the link was 'shared: a slip', not staged"),
        (lambda r: replace(r, device="cpu"), "the ranks ran on 'cpu', not on cuda"),
        (lambda r: with_gradient(r, "0.token.weight", None), "differs by inf"),
        (lambda r: with_gradient(r, "0.token.weight", r.grads["0.token.weight"] * torch.nan), "differs by inf"),
    ],
)
def test_whatever_is_wrong_with_a_step_is_told(wet, monkeypatch, change: Any, says: str) -> None:
    faked(monkeypatch, change)
    assert says in gradients.compared(wet, "1f1b", 4, 8, "staged").wrong


def test_masks_that_differ_from_schedule_to_schedule_are_told(dry, monkeypatch) -> None:
    faked(monkeypatch, lambda result: result)
    assert gradients.same_masks(dry) == ""
    turn = iter((0.0, 1e-6, 0.0))
    faked(monkeypatch, lambda result: spoiled(0, next(turn))(result))
    assert "between gpipe, p = 2, and zb-h1, p = 4" in gradients.same_masks(dry)


def test_dropout_that_does_nothing_is_told(dry, monkeypatch) -> None:
    monkeypatch.setattr(tasks.nn, "Dropout", lambda share: torch.nn.Identity())
    faked(monkeypatch, lambda result: result)
    assert gradients.same_masks(dry) == "Dropout changes nothing."


# NCCL


def test_one_gpu_proves_no_channel_and_says_so(wet, allowance, monkeypatch) -> None:
    monkeypatch.setattr(nccl, "on_ranks", lambda function, p, timeout: [[0.0, 1.0, 2.0, 3.0]])
    found = nccl.nccl(wet, allowance)
    assert found.state is State.PASSED
    assert "proves no channel" in found.sentence
    monkeypatch.setattr(nccl, "on_ranks", lambda function, p, timeout: [[0.0, 2.0, 4.0, 6.0]])
    assert nccl.nccl(wet, allowance).state is State.FAILED


@pytest.mark.parametrize(("gpus", "p"), [(2, 2), (3, 2), (5, 4)])
def test_from_two_gpus_on_every_schedule_runs_over_nccl(wet, allowance, monkeypatch, gpus: int, p: int) -> None:
    monkeypatch.setattr(nccl, "on_ranks", lambda function, p, timeout: [[0.0, 1.0, 2.0, 3.0]])
    asked = faked(monkeypatch, lambda result: result, "nccl: a stand-in")
    found = nccl.nccl(replace(wet, gpus=gpus, schedules=("gpipe", "dualpipe")), allowance)
    assert found.state is State.PASSED
    assert [(each["plan"].name, each["plan"].num_ranks, each["link"]) for each in asked] == [
        ("gpipe", p, "nccl"),
        ("dualpipe", p, "nccl"),
    ]
    faked(monkeypatch, spoiled(0, 1e-6), "nccl: a stand-in")
    assert nccl.nccl(replace(wet, gpus=gpus, schedules=("gpipe",)), allowance).state is State.FAILED


# memory


@pytest.fixture(scope="module")
def books() -> dict[str, Any]:
    """By schedule, its plan, ledger, sizes, as for a GPU."""
    task = tasks.wide_mlp(memory.LAYERS, 256, memory.PROFILED)
    plans = [pp.build(name, tasks.P, tasks.M) for name in memory.NAMES]
    return {plan.name: (plan, *memory.predicted(plan, task, 16384)) for plan in plans}


@pytest.mark.thorough
@pytest.mark.parametrize("name", memory.NAMES)
def test_one_microbatch_too_many_would_be_out_of_bounds(books, name: str) -> None:
    """Of all stages of its rank, on a GPU: a rank there has the buffers that the ledger counts and the CPU's meter does
    not see."""
    plan, book, sizes = books[name]
    stashed = sizes.of("stashed", plan.num_stages)
    for rank, bounds in enumerate(memory.bounds_of(plan, book, sizes, unsplit=1 / 16)):
        assert bounds.held < bounds.counted < bounds.most
        assert bounds.most - bounds.counted < sum(stashed[stage] for stage in plan.placement.stages_of(rank))


def test_the_ledgers_are_closed_forms_where_there_is_one(books) -> None:
    origins = {name: book.origin for name, (_, book, _) in books.items()}
    assert origins == {"gpipe": "formula", "1f1b": "formula", "interleaved": "simulated", "zb-h1": "formula"}


@pytest.mark.parametrize(
    ("peak", "state"),
    [
        (lambda b: b.held, State.PASSED),
        (lambda b: b.most - 1, State.PASSED),
        (lambda b: b.held - 1, State.FAILED),
        (lambda b: b.most + 1, State.FAILED),
    ],
)
def test_peaks_are_held_between_their_bounds(dry, allowance, monkeypatch, books, peak: Any, state: State) -> None:
    def run(plan: Any, *task: Any, **options: Any) -> Any:
        assert options["memory"]
        bounds = [*memory.bounds_of(*books[plan.name], 0.0)]
        peaks = [round(bound.held) + 1000 for bound in bounds]
        peaks[2] = round(peak(bounds[2]))
        baseline = (500,) * 4
        return SimpleNamespace(peak_bytes=[each + 500 for each in peaks], baseline_bytes=baseline, reserved_bytes=None)

    monkeypatch.setattr(settings, "run", run)
    monkeypatch.setattr(memory, "predicted", lambda plan, task, rows: books[plan.name][1:])
    found = memory.memory(replace(dry, schedules=("1f1b",)), allowance)
    assert found.state is state
    assert ("1f1b, rank 2" in found.sentence) == (state is State.FAILED)


# times


def paced_runs(monkeypatch: pytest.MonkeyPatch, *ratios: float) -> list[float]:
    """Let paced runs take these multiples of what is simulated, one after another; those that are left."""
    left = list(ratios)

    def run(plan: Any, *task: Any, pace: Costs, **options: Any) -> Any:
        return SimpleNamespace(timeline=SimpleNamespace(makespan=left.pop(0) * pp.simulate(plan, pace).makespan))

    monkeypatch.setattr(settings, "run", run)
    return left


@pytest.mark.parametrize(
    ("ratios", "state", "tries"),
    [
        ((1.02,), State.PASSED, 1),
        ((1.5, 1.02), State.PASSED, 2),
        ((1.5, 1.4, 1.2), State.FAILED, 3),
        ((0.9,), State.FAILED, 1),
    ],
)
def test_paced_steps_are_held_against_the_simulator(
    dry, allowance, monkeypatch, ratios: tuple[float, ...], state: State, tries: int
) -> None:
    left = paced_runs(monkeypatch, *ratios)
    found = times.paced(replace(dry, schedules=("v-half",)), allowance)
    assert found.state is state
    assert found.table[1][-1] == str(tries)
    assert not left


def steps(monkeypatch: pytest.MonkeyPatch, change: Any) -> None:
    """Let trainings end in a simulated step of milliseconds, changed."""

    def train(plan: Any, *task: Any, **options: Any) -> Any:
        lasts = 1e-4
        line = pp.simulate(plan, Costs(lasts, lasts, lasts) if plan.num_ranks > 1 else Costs(*(4 * lasts,) * 3))
        return SimpleNamespace(timeline=change(line) if plan.num_ranks > 1 else line)

    monkeypatch.setattr(settings, "train", train)
    monkeypatch.setattr(times.time, "perf_counter", iter(range(100)).__next__)


def moved(line: Timeline, name: str, by: float) -> Timeline:
    spans = [Span(s.rank, s.action, s.start + by, s.end + by) if str(s.action) == name else s for s in line.spans]
    return Timeline.of(line.name, line.num_ranks, spans, line.source)


def shrunk(line: Timeline) -> Timeline:
    """As if spans were what the host takes to launch the work."""
    spans = [span._replace(end=span.start + 1e-6) for span in line.spans]
    return Timeline.of(line.name, line.num_ranks, spans, line.source)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda line: line, None),
        (lambda line: moved(line, "1F0", -0.0005), None),  # clocks disagree by less than a millisecond
        (lambda line: moved(line, "1F0", -0.0015), "1F0 starts 1.50 ms before 0F0 ends."),
        (lambda line: moved(line, "2B3", -0.0015), "2B3 starts 1.50 ms before 3B3 ends."),
        (lambda line: moved(line, "3F7", 9.0), "s in 1.000 s."),
        (shrunk, "The spans of four ranks cover"),
    ],
)
def test_spans_that_cannot_be_are_told(dry, allowance, monkeypatch, change: Any, says: str | None) -> None:
    steps(monkeypatch, change)
    found = times.unpaced(dry, allowance)
    assert found.state is (State.FAILED if says else State.PASSED)
    assert (says or "No action starts before") in found.sentence


def test_a_span_that_ends_before_it_starts_is_told() -> None:
    line = pp.simulate(pp.build("gpipe", 2, 2))
    spans = (line.spans[0]._replace(end=-1.0), *line.spans[1:])
    back = Timeline.of(line.name, line.num_ranks, spans)
    assert list(times.early(back)) == [f"{line.spans[0].action} ends before it starts."]


# streams, traces, snapshots


def kernel(stream: int, ts: float, dur: float, name: str = "scan", cat: str = "kernel") -> dict[str, Any]:
    return {"cat": cat, "name": name, "ts": ts, "dur": dur, "args": {"stream": stream}}


def test_overlap_is_time_in_which_two_streams_have_kernels() -> None:
    events = [kernel(7, 0, 10), kernel(7, 10, 10), kernel(9, 5, 10), kernel(9, 30, 5)]
    others = [kernel(3, 0, 99, "ncclKernel_SendRecv"), kernel(4, 0, 99, cat="gpu_memcpy"), {"name": "no category"}]
    assert streams.kernels([*events, *others]) == streams.Kernels(2, 35, 10)
    assert streams.kernels([kernel(7, 0, 10), kernel(9, 10, 10)]).beside == 0
    assert streams.kernels([]) == streams.Kernels(0, 0, 0)


def gpu_traces(monkeypatch: pytest.MonkeyPatch, events: list[dict[str, Any]]) -> None:
    """Let runs write these events, for each rank, and trainings end in a simulated step."""

    def run(plan: Any, *task: Any, profiler: Path, **options: Any) -> Any:
        for rank, row in enumerate(plan.rows):
            ranges = [{"cat": "user_annotation", "name": str(action)} for action in row]
            file_of(profiler, rank).write_text(json.dumps({"traceEvents": [*ranges, *events]}))

    monkeypatch.setattr(settings, "run", run)
    overlap = Costs(1, 1, 1, overlap=2.5)
    train = lambda plan, *task, **options: SimpleNamespace(timeline=pp.simulate(plan, overlap))  # noqa: E731
    monkeypatch.setattr(settings, "train", train)


@pytest.mark.parametrize(
    ("events", "state", "says"),
    [
        ([kernel(7, 0, 4000), kernel(9, 2000, 4000)], State.PASSED, "ran at once for 4.00 of 16.00 ms"),
        ([kernel(7, 0, 4000), kernel(9, 4000, 4000)], State.PASSED, "Overlap was not seen"),
        ([kernel(7, 0, 4000), kernel(7, 4000, 4000)], State.FAILED, "Rank 1 ran all its kernels on one stream."),
        ([], State.FAILED, "The profiler saw no kernel"),
    ],
)
def test_two_streams_are_seen_or_missed(wet, allowance, monkeypatch, events: Any, state: State, says: str) -> None:
    gpu_traces(monkeypatch, events)
    found = streams.streams(wet, allowance)
    assert found.state is state
    assert says in found.sentence
    if state is State.PASSED:
        assert "A pair lasts 2500.00 ms, an F and a B that are alone 3000.00 ms" in found.sentence


def test_running_sums_have_gradients() -> None:
    layer, x = streams.Running(), torch.rand(2, 5, requires_grad=True)
    layer(x).sum().backward()
    assert x.grad is not None
    assert layer.scale.grad is not None


@pytest.mark.parametrize("spoil", ["nothing", "a range", "a kernel", "a file"])
def test_a_trace_has_every_action_and_a_gpus_has_kernels(wet, allowance, monkeypatch, spoil: str) -> None:
    gpu_traces(monkeypatch, [] if spoil == "a kernel" else [kernel(7, 0, 1)])
    plain = settings.run

    def run(*given: Any, profiler: Path, **options: Any) -> None:
        plain(*given, profiler=profiler, **options)
        path = file_of(profiler, 2)
        if spoil == "a range":
            path.write_text(path.read_text().replace('"2F3"', '"2F2"'))
        if spoil == "a file":
            path.unlink()

    monkeypatch.setattr(settings, "run", run)
    found = traces.trace(wet, allowance)
    assert found.state is (State.PASSED if spoil == "nothing" else State.FAILED)
    assert {"a range": "ranges of rank 2", "a kernel": "shows no kernel", "a file": "wrote 3 traces"}.get(
        spoil, "Every rank wrote a trace"
    ) in found.sentence


@pytest.mark.parametrize(("history", "state"), [([{}], State.PASSED), ([], State.FAILED)])
def test_a_snapshot_can_be_read_and_is_not_empty(wet, allowance, monkeypatch, history: Any, state: State) -> None:
    def run(plan: Any, *task: Any, snapshot: Path, **options: Any) -> None:
        for rank in range(plan.num_ranks):
            written = {"segments": [{"total_size": 2**21}], "device_traces": [history]}
            file_of(snapshot, rank).write_bytes(pickle.dumps(written))

    monkeypatch.setattr(settings, "run", run)
    assert traces.snapshot(wet, allowance).state is state


# the machine, this process, training


def test_a_rank_that_sees_other_gpus_than_doctor_is_told(wet, allowance, monkeypatch) -> None:
    device = ("H200", "9.0", "139.8")
    monkeypatch.setattr(machine, "on_ranks", lambda *_: [([("CUDA", "12.8"), ("NCCL", "2.28.9")], [device])])
    found = machine.machine(wet, allowance)
    assert found.state is State.PASSED
    assert found.table[1] == ("0", *device)
    assert "NCCL     2.28.9" in found.page
    assert machine.machine(replace(wet, gpus=2), allowance).state is State.FAILED


def test_versions_are_told_with_dots() -> None:
    assert machine.dotted((2, 28, 9)) == "2.28.9"
    assert machine.dotted(2809) == "2809"


@pytest.mark.parametrize(("started", "state"), [(False, State.PASSED), (True, State.FAILED)])
def test_cuda_in_this_process_is_told(wet, allowance, monkeypatch, started: bool, state: State) -> None:
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: started)
    assert notebook.notebook(wet, allowance).state is state


@pytest.mark.parametrize(
    ("losses", "says"),
    [
        ([5.0 - 0.1 * n for n in range(10)], None),
        ([5.0 - 0.01 * n for n in range(10)], "less than 0.5 down"),
        ([5.0 - 0.1 * n + 0.001 * (n == 9) for n in range(10)], "differ by 0.0002"),
    ],
)
def test_losses_fall_as_on_the_cpu(wet, allowance, monkeypatch, losses: list[float], says: str | None) -> None:
    monkeypatch.setattr(settings, "train", lambda *_, **options: SimpleNamespace(losses=losses))
    right = losses if says and "down" in says else [5.0 - 0.1 * n for n in range(10)]
    monkeypatch.setattr(trains, "train", lambda *_, **options: SimpleNamespace(losses=right))
    found = trains.training(wet, allowance)
    assert found.state is (State.FAILED if says else State.PASSED)
    assert (says or "The loss falls from 5.000 to 4.100") in found.sentence


def test_a_machine_of_many_gpus_is_checked_with_eight_ranks() -> None:
    assert [nccl.ranks_for(gpus) for gpus in (2, 3, 4, 7, 8, 72)] == [2, 2, 4, 6, 8, 8]
