"""Drills: every card against the simulator or a count, every number in the bank, scores, interviews, the widget."""

import ast
import base64
import bisect
import itertools
import json
import math
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest
import torch

from ppcourse.analysis.in_flight import in_flight, in_flight_bytes
from ppcourse.analysis.partition import partition
from ppcourse.analysis.simulate import simulate
from ppcourse.analysis.timeline import Timeline
from ppcourse.lab import drills, progress
from ppcourse.lab.drills import bank, interview, scores
from ppcourse.lab.drills.bank import computed, lesson_06
from ppcourse.lab.drills.question import ASKED
from ppcourse.schedules import build
from ppcourse.schedules.channels import outgoing
from ppcourse.schedules.costs import Costs
from ppcourse.schedules.schedule import Schedule

SEEDS = range(16)
Given = Mapping[str, float]


@pytest.fixture(autouse=True)
def own_progress(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("PPCOURSE_PROGRESS", str(tmp_path / "progress.json"))
    monkeypatch.setattr(progress, "unsaved", {})
    return tmp_path / "progress.json"


# cards: the truth, without the closed forms


def step(name: str, given: Given, v: int | None = None, **other: float) -> Timeline:
    """A simulated step with the times of a card; t_b is split in two, which whole backwards do not see."""
    costs = Costs(given.get("t_f", 1), given.get("t_b", 2) / 2, given.get("t_b", 2) / 2, **other)
    return simulate(build(name, int(given["p"]), int(given["m"]), v), costs)


def zero_bubble(name: str, given: Given) -> Timeline:
    costs = Costs(given["t_f"], given["t_i"], given["t_w"])
    return simulate(build(name, int(given["p"]), int(given["m"])), costs)


def plan(name: str, given: Given, v: int | None = None) -> Schedule:
    return build(name, int(given["p"]), int(given["m"]), v)


def messages(schedule: Schedule) -> int:
    return sum(outgoing(schedule, action) is not None for row in schedule.rows for action in row)


def alone(given: Given) -> float:
    """One rank that does the work of all."""
    return simulate(build("gpipe", 1, int(given["m"])), Costs(given["p"], given["p"], given["p"])).makespan


def least(works: Callable[[int], bool], most: int) -> int:
    """The least number from 1 for which it works, if it works from there on."""
    return 1 + bisect.bisect_left(range(1, most), True, key=works)


def slow_last(given: Given) -> float:
    shares = [1.0] * (int(given["p"]) - 1) + [given["slow"]]
    half = [given["t_b"] / 2 * share for share in shares]
    return simulate(plan("1f1b", given), Costs([given["t_f"] * share for share in shares], half, half)).makespan


def uneven(given: Given) -> float:
    """The busy share of what each further microbatch adds: what remains when m is large."""
    p = int(given["p"])
    sizes = [float(size) for size in partition([1.0] * int(given["layers"]), p, "uniform")]
    few, many = (simulate(build("1f1b", p, m), Costs(sizes, sizes, sizes)) for m in (40, 80))
    return 100 * (sum(many.busy) - sum(few.busy)) / (p * (many.makespan - few.makespan))


def from_batch(given: Given) -> float:
    replicas = int(given["gpus"] / (given["p"] * given["t"]))
    own = range(int(given["batch"]))[::replicas]  # the samples of one replica
    m = (
        len(list(itertools.batched(own, int(given["b"]))))
        if sys.version_info >= (3, 12)
        else len(own) // int(given["b"])
    )
    return 100 * simulate(build("1f1b", int(given["p"]), m)).bubble_overhead


STATE = {"weights": torch.bfloat16, "gradients": torch.float32, "master": torch.float32} | dict.fromkeys(
    ("exp_avg", "exp_avg_sq"), torch.float32
)


def state(given: Given, parts: Mapping[str, float]) -> float:
    """GB, from the sizes of torch's own types; parts: over how many GPUs each of them is shared."""
    return sum(
        given["billions"] * torch.empty(1, dtype=kind).element_size() / parts[what] for what, kind in STATE.items()
    )


def zero_1(given: Given) -> float:
    whole = dict.fromkeys(STATE, given["p"])
    return state(given, whole | dict.fromkeys(("master", "exp_avg", "exp_avg_sq"), given["p"] * given["d"]))


def layer(given: Given) -> float:
    """Tensor by tensor: bytes of an element, elements, and whether tensor parallelism splits it."""
    s, b, h, a = (int(given[letter]) for letter in "sbha")
    wide, scores_of = s * b * h, a * s * s * b
    attention = [
        (2, wide, False),
        (2, 2 * wide, True),
        (2, scores_of, True),
        (1, scores_of, True),
        (2, scores_of, True),
    ]
    attention += [(2, wide, True), (2, wide, True), (1, wide, False)]  # V, input of the projection, dropout mask
    mlp = [(2, wide, False), (2, 4 * wide, True), (2, 4 * wide, True), (1, wide, False)]
    norms = [(2, wide, False), (2, wide, False)]
    return sum(size * n / (given["t"] if split else 1) for size, n, split in attention + mlp + norms) / 1e9


def across(given: Given) -> float:
    tensor = torch.empty(*(int(given[letter]) for letter in "bsh"), dtype=torch.bfloat16, device="meta")
    return messages(build("1f1b", 2, int(given["m"]))) * tensor.nbytes / 1e6


def ring(given: Given) -> float:
    """A ring all-reduce of d parts by d GPUs, done: GB that GPU 0 sends."""
    d = int(given["d"])
    held = [[{rank} for _ in range(d)] for rank in range(d)]  # whose gradients are in each part
    sent = 0
    for turn in range(2 * (d - 1)):
        for rank, part in [(rank, (rank - turn) % d) for rank in range(d)]:
            sent += rank == 0
            held[(rank + 1) % d][part] = held[(rank + 1) % d][part] | held[rank][part]
    assert all(part == set(range(d)) for row in held for part in row)
    return sent / d * given["billions"] * torch.empty(1, dtype=torch.bfloat16).element_size()


def first_layer(given: Given) -> float:
    p, v = int(given["p"]), int(given["v"])
    stage = build("interleaved", p, p, v).placement.stages_of(int(given["rank"]))[int(given["chunk"])]
    return 1 + sum(partition([1.0] * int(given["layers"]), p * v, "uniform")[:stage])


def stages_for(given: Given) -> float:
    def enough(v: int) -> bool:
        return 100 * step("interleaved", given, v).bubble_overhead <= given["percent"] + 1e-9

    return least(enough, 24)


def dual(given: Given) -> float:
    each = given["each"]
    return max(simulate(plan("dualpipe", given), Costs(each, each, each, overlap=given["pair"])).idle)


TRUTH: dict[str, Callable[[Given], float]] = {
    "bubble-overhead": lambda g: 100 * step("1f1b", g).bubble_overhead,
    "bubble-rate": lambda g: 100 * step("1f1b", g).bubble_rate,
    "efficiency": lambda g: 100 * sum(step("1f1b", g).busy) / (g["p"] * step("1f1b", g).makespan),
    "speed-up": lambda g: alone(g) / step("1f1b", g).makespan,
    "rate-from-overhead": lambda g: 100 * step("gpipe", g).bubble_rate,
    "microbatches-for-rate": lambda g: least(
        lambda m: 100 * step("1f1b", {**g, "m": m}).bubble_rate <= g["percent"] + 1e-9, 200
    ),
    "overhead-from-batch": from_batch,
    "step-time": lambda g: step("gpipe", g).makespan,
    "naive-step-time": lambda g: step("naive", g).makespan,
    "naive-against-pipelined": lambda g: step("naive", g).makespan / step("gpipe", g).makespan,
    "recomputed-step": lambda g: step("gpipe", {**g, "t_b": g["t_b"] + g["t_f"]}).makespan,
    "gpipe-with-hops": lambda g: step("gpipe", g, comm=g["hop"]).makespan,
    "slow-last-stage": slow_last,
    "uneven-layers": uneven,
    "held-in-1f1b": lambda g: in_flight(plan("1f1b", g))[int(g["rank"])],
    "gpipe-more-than-1f1b": lambda g: (
        in_flight_bytes(plan("gpipe", g), g["each"])[0] - in_flight_bytes(plan("1f1b", g), g["each"])[0]
    ),
    "layers-held": lambda g: in_flight_bytes(plan("1f1b", g), g["layers"] / g["p"])[int(g["rank"])],
    "training-state": lambda g: state(g, dict.fromkeys(STATE, g["p"] * g["t"])),
    "state-with-zero-1": zero_1,
    "layer-activations": layer,
    "bytes-across-a-cut": across,
    "ring-all-reduce": ring,
    "interleaved-overhead": lambda g: 100 * step("interleaved", g, int(g["v"])).bubble_overhead,
    "interleaved-rate": lambda g: 100 * step("interleaved", g, int(g["v"])).bubble_rate,
    "interleaved-messages": lambda g: messages(plan("interleaved", g, int(g["v"]))),
    "interleaved-held": lambda g: in_flight(plan("interleaved", g, int(g["v"])))[0],
    "interleaved-layer": first_layer,
    "v-for-overhead": stages_for,
    "zb-h1-bubble": lambda g: zero_bubble("zb-h1", g).idle[0],
    "zb-h2-bubble": lambda g: zero_bubble("zb-h2", g).longest_stage_time - zero_bubble("zb-h2", g).busy[0],
    "zb-h1-step": lambda g: zero_bubble("zb-h1", g).makespan,
    "zb-h2-held": lambda g: in_flight(plan("zb-h2", g))[0],
    "v-shape-held": lambda g: max(in_flight(plan("v-half" if g["half"] else "v-min", g))),
    "dualpipe-bubble": dual,
}
each_kind = pytest.mark.parametrize("kind", drills.kinds())


def test_every_kind_of_card_has_a_truth() -> None:
    assert set(drills.kinds()) == set(TRUTH)
    assert len(TRUTH) >= 15
    assert {drills.card(kind, 0).level for kind in TRUTH} == {1, 2, 3, 4}


@each_kind
def test_the_answer_of_a_card_is_what_the_simulator_or_a_count_says(kind: str) -> None:
    for seed in SEEDS:
        card = drills.card(kind, seed)
        assert card.answer == pytest.approx(TRUTH[kind](card.given), rel=1e-9, abs=1e-9), card
        assert card.answer > 0


@each_kind
def test_every_number_given_stands_in_the_text(kind: str) -> None:
    hidden = {"rate-from-overhead": {"p", "m"}, "dualpipe-bubble": set(), "v-shape-held": {"half"}}.get(kind, set())
    for seed in SEEDS:
        card = drills.card(kind, seed)
        numbers = {float(number) for number in re.findall(r"\d+(?:\.\d+)?", card.text)}
        assert {n for name, n in card.given.items() if name not in hidden} <= numbers


@each_kind
def test_the_worked_solution_computes_the_answer(kind: str) -> None:
    """It shows the numbers from which the answer comes, and an answer is told with it."""
    for seed in SEEDS:
        card = drills.card(kind, seed)
        told = card.judge(card.answer)
        assert told.right
        assert told.sentence == f"{card.shown}. {card.worked}"
        assert re.search(r"\d", card.worked)
        assert as_shown(card.shown) == pytest.approx(card.answer, rel=6e-4)


def as_shown(text: str) -> float:
    return float(text.split()[0].replace(",", ""))


@each_kind
def test_a_card_takes_what_is_near_and_nothing_else(kind: str) -> None:
    for seed in SEEDS:
        card = drills.card(kind, seed)
        near = card.answer * (1 + card.tolerance / 2)
        far = card.answer * (1 + 2 * card.tolerance) if card.tolerance else card.answer + 1
        assert card.judge(near).right
        assert card.judge(far).right is False
        assert card.judge(-card.answer).right is False
        if card.unit == "%":
            assert card.judge(card.answer / 100).right
            assert card.judge(f"{card.answer:.4f} %").right


@each_kind
def test_each_known_mistake_is_called_by_its_name(kind: str) -> None:
    sentences = set()
    for seed in SEEDS:
        card = drills.card(kind, seed)
        for sentence, wrong in card.confusions.items():
            told = card.judge(f"{wrong} %" if card.unit == "%" else wrong)
            assert told.right is False
            assert sentence in told.sentence
            sentences.add(sentence)
    assert len(sentences) >= 2


CONFUSED: dict[str, tuple[Callable[[Given], float], str]] = {
    "bubble-overhead": (lambda g: 100 * step("1f1b", g).bubble_rate, "that is the rate, idle ÷ all time"),
    "bubble-rate": (lambda g: 100 * step("1f1b", g).bubble_overhead, "that is the overhead, idle ÷ busy time"),
    "efficiency": (lambda g: 100 * step("1f1b", g).bubble_rate, "that is the rate, idle ÷ all time"),
    "speed-up": (
        lambda g: sum(step("1f1b", g).busy) / (g["p"] * step("1f1b", g).makespan),
        "that is the efficiency, busy ÷ all time",
    ),
    "step-time": (lambda g: step("naive", g).makespan, "that is one rank working at a time"),
    "naive-step-time": (lambda g: step("gpipe", g).makespan, "that is the pipelined step"),
    "held-in-1f1b": (lambda g: in_flight(plan("gpipe", g))[0], "that is GPipe, which holds all"),
    "zb-h1-bubble": (
        lambda g: step("1f1b", {**g, "t_b": g["t_i"] + g["t_w"]}).idle[0],
        "that is 1F1B's",
    ),
    "zb-h2-held": (lambda g: in_flight(plan("zb-h1", g))[0], "that is 1F1B and ZB-H1"),
    "interleaved-messages": (lambda g: messages(plan("1f1b", g)), "that is plain 1F1B"),
    "interleaved-overhead": (lambda g: 100 * step("1f1b", g).bubble_overhead, "that is without interleaving"),
    "interleaved-held": (lambda g: in_flight(plan("1f1b", g))[0], "that is plain 1F1B"),
    "gpipe-with-hops": (lambda g: step("gpipe", g).makespan, "that is with free hops"),
}


@pytest.mark.parametrize("kind", CONFUSED)
def test_the_mistake_that_a_sentence_names_is_the_one_that_was_made(kind: str) -> None:
    made, sentence = CONFUSED[kind]
    named = 0
    for seed in SEEDS:
        card = drills.card(kind, seed)
        wrong = made(card.given)
        told = card.judge(f"{wrong} %" if card.unit == "%" else wrong)
        named += told.right is False and sentence in told.sentence
    assert named >= len(SEEDS) - 3  # now and then two mistakes give one number, or a mistake the right one


@pytest.mark.parametrize(
    ("given", "right"),
    [("12.5", True), ("12.5 %", True), ("12.5%", True), ("1/8", True), (0.125, True), (12.5, True), ("0.125 %", False)],
)
def test_an_answer_may_be_written_in_many_ways(given: object, right: bool) -> None:
    card = drills.Card("k", 0, 3, 1, {}, "?", 12.5, "%", 0.01, "")
    assert card.judge(given).right is right


@pytest.mark.parametrize("given", ["", "many", None, ..., True, "1/0", "12,5", [3], math.nan, "inf", 10**400])
def test_what_is_no_number_is_no_try(given: object, capsys: pytest.CaptureFixture[str]) -> None:
    card = drills.card("step-time", 1)
    assert drills.answer(card, given).right is None
    assert capsys.readouterr().out == "○ step-time #1: An answer is a number in ms, as in 12 or 12.5.\n"
    assert progress.kept(scores.CARDS) == {}


def test_thousands_may_be_marked() -> None:
    assert drills.Card("k", 0, 3, 1, {}, "?", 12500, "ms", 0.01, "").judge("12,500").right


# drawing


def test_a_seed_makes_the_same_card_in_another_process() -> None:
    code = "from ppcourse.lab import drills; print([repr(drills.draw(s)) for s in range(5)])"
    there = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert there.strip() == str([repr(drills.draw(seed)) for seed in range(5)])


@each_kind
def test_cards_of_a_kind_differ(kind: str) -> None:
    assert len({drills.card(kind, seed).text for seed in SEEDS}) >= 6


def test_a_drawn_card_is_of_the_level_and_lesson_asked_for() -> None:
    assert all(drills.draw(seed, level=3).level == 3 for seed in SEEDS)
    assert all(drills.draw(seed, lesson=5).lesson == 5 for seed in SEEDS)
    assert len({drills.draw(seed).kind for seed in range(200)}) > len(TRUTH) / 2
    with pytest.raises(ValueError, match="There are no such cards"):
        drills.draw(0, level=5)


def test_a_kind_or_question_that_is_not_there_is_told_with_the_nearest() -> None:
    with pytest.raises(ValueError, match="Did you mean 'bubble-rate'"):
        drills.card("buble-rate", 0)
    with pytest.raises(ValueError, match="Did you mean 'choose-v'"):
        drills.question("chose-v")


def test_loading_drills_draws_no_picture_and_starts_no_torch() -> None:
    code = "import sys; from ppcourse.lab import drills; drills.draw(1); drills.questions(); print(sorted(sys.modules))"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert not {"'torch'", "'matplotlib'", "'ipywidgets'"} & set(re.findall(r"'\w+'", loaded))


# the bank

ALL = drills.questions()
each_question = pytest.mark.parametrize("question", ALL, ids=lambda one: one.name)
KNOWN_SOURCES = re.compile(
    r"Huang et al\. 2019(, §2\.3)?|Narayanan et al\. 2021, §(2\.2|3|3\.4)( and §3)?"
    r"|Korthikanti et al\. 2022(, §4\.2\.3|, Table 2)?"
    r"|Narayanan et al\. 2019 \(PipeDream\), §3\.3 of the 2018 preprint"
    r"|Lamy-Poirier 2023 \(Breadth-First Pipeline Parallelism\)"
    r"|Qi et al\. 2024 \(Zero Bubble(, arXiv 2401\.10241)?\), §[246]( and §4)?"
    r"|Qi et al\. 2024 \(controllable memory, arXiv 2405\.15362\)|DeepSeek-V3 report, (§3\.2\.1(,| and) )?Table 2"
    r"|DeepSeek's DualPipe repository|Megatron-LM's documentation of the distributed optimizer"
    r"(: bf16 weights, fp32 gradients)?"
    r"|Megatron-LM(, arguments\.py)?|[Ll]esson \d\d of this course.*|the simulator of this course"
)


def test_the_bank_has_enough_of_everything() -> None:
    assert len(ALL) >= 60
    assert {one.lesson for one in ALL} == set(range(14))
    assert set(Counter(one.level for one in ALL)) == {1, 2, 3, 4}
    assert min(Counter(one.level for one in ALL).values()) >= 10
    assert min(Counter(one.lesson for one in ALL).values()) >= 3


@each_question
def test_a_question_is_whole(question: drills.Question) -> None:
    assert 3 <= len(question.rubric) <= 5
    assert 2 <= len(question.follow_ups) <= 4
    assert question.wrong
    assert all(len(pair) == 2 and all(pair) for pair in question.wrong + question.follow_ups)
    assert 20 <= len(question.short.split()) <= 75  # 30 seconds at 150 words a minute
    assert 75 <= len(f"{question.short} {question.long}".split()) <= 300
    assert question.ask.endswith(("?", ".", "aloud."))
    assert re.fullmatch(r"[a-z0-9-]+", question.name)
    assert "  " not in question.ask + question.answer.replace("\n  - ", "")


@each_question
def test_sources_are_those_that_the_course_cites(question: drills.Question) -> None:
    for source in question.source.split("; "):
        assert KNOWN_SOURCES.fullmatch(source), source


def test_cards_cite_the_same_sources() -> None:
    for kind in drills.kinds():
        for source in drills.card(kind, 0).source.split("; "):
            assert KNOWN_SOURCES.fullmatch(source), source


def test_where_the_zero_bubble_formula_fails_it_is_for_the_reason_told() -> None:
    """Rank 0 has run p forwards when its first gradient comes, owes no W, and waits (p − 1)·t_i."""
    p, (t_f, t_i, t_w) = 4, lesson_06.UNEVEN
    timeline = simulate(build("zb-h1", p, 9), Costs(t_f, t_i, t_w))
    row = timeline.by_rank[0]
    first = next(n for n, span in enumerate(row) if span.action.op == "I")
    assert all(span.action.op == "F" for span in row[:first])
    assert row[first].start - row[first - 1].end == (p - 1) * t_i == timeline.longest_stage_time - timeline.busy[0]
    assert t_w > t_f


def test_really_asked_is_said_of_those_known_to_be_and_of_no_others() -> None:
    assert {one.name for one in drills.questions(asked=True)} == {
        "where-the-bubble-comes-from",
        "gpipe-against-1f1b",
        "how-interleaving-works",
        "explain-1f1b",
        "explain-dualpipe",
        "peak-with-and-without",
        "how-zero-bubble-works",
        "gpus-in-series",
        "pp-tp-dp",
        "choose-v",
        "checkpoint-a-pipeline",
        "why-microbatches",
        "interleaving-messages",
    }
    assert all((ASKED in repr(one)) is one.asked for one in ALL)


NOT_RESULTS = {
    *("27%", "19%", "13.7%"),  # a claim that is quoted because it is wrong
    *("20%", "10%", "30%", "100%", "0.1", "1.2", "1.4", "1.5", "0.2"),  # given in the question, or a bound
}


def test_no_result_is_typed() -> None:
    """A percentage or a decimal fraction in the bank's source is given in a question; what follows is computed."""
    found = set()
    for path in sorted(Path(bank.__file__).parent.glob("lesson_*.py")):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        sources = [node.value for node in ast.walk(tree) if isinstance(node, ast.keyword) and node.arg == "source"]
        for node in ast.walk(tree):
            if isinstance(node, ast.Constant) and isinstance(node.value, str) and node not in sources:
                found |= set(re.findall(r"\d+(?:\.\d+)?%|\d+\.\d+", node.value))
    assert found <= NOT_RESULTS


def test_computed_percentages_are_the_simulators() -> None:
    for p, m, v in itertools.product((2, 4, 8), (8, 16, 32), (1, 2, 4)):
        costs = Costs(1 / v, 1 / v, 1 / v)
        timeline = simulate(build("interleaved", p, m, v), costs)
        assert computed.overhead(p, m, v) == f"{round(100 * timeline.bubble_overhead, 1):g}%"
        assert computed.rate(p, m, v) == f"{round(100 * timeline.bubble_rate, 1):g}%"
        if v == 1:
            assert computed.efficiency(p, m) == f"{round(100 * (1 - timeline.bubble_rate), 1):g}%"
            assert computed.speed_up(p, m) == f"{alone({'p': p, 'm': m}) / timeline.makespan:.3g}"


PUBLISHED = {
    "gpipe-against-1f1b": ("21.9%", "32 against 8", "33.6 against 34.6"),
    "where-the-bubble-comes-from": ("37.5% overhead or 27.3% rate",),
    "four-numbers": ("72.7%", "2.91"),
    "derive-it": ("18 slots, 12 of work, 6 idle",),
    "how-many-microbatches": ("= 12.", "≤ 0.2: m ≥ 15"),
    "how-interleaving-works": ("21.9%, with v = 4 5.5%", "7 to 31", "9.75 microbatches instead of 8", "27.3% to 15.8%"),
    "interleaving-messages": ("4.43 times",),
    "choose-v": ("50.8 against 52.2, at 1.4 55.6 against 55.4",),
    "how-zero-bubble-works": ("33 becomes 27",),
    "h1-against-h2": ("H1 27, H2 24, work 24", "makespan is still 27", "7 against 4"),
    "when-the-formula-fails": ("says 24, the simulator 27", "3 against 9"),
    "explain-dualpipe": ("here p = 8: 9.",),
    "half-the-memory": ("5 and 4 instead of 8",),
    "gpus-in-series": ("33 t_f with equal stages", "makes it 45"),
    "claim-fold-the-hop": ("35.2", "33.6 for GPipe and 34.6 for 1F1B"),
    "claim-27-to-19": ("27.3% to 15.8%", "37.5% to 18.8%"),
    "claim-all-pass-gpu-1": ("640 ms as described, 220 ms as a pipeline",),
    "design-a-simulator": ("gives 33.",),
    "three-meanings-of-b": ("gives 3, and", "B = 2, gives 3."),
}


@pytest.mark.parametrize("name", PUBLISHED)
def test_what_a_question_says_is_what_is_known(name: str) -> None:
    for fact in PUBLISHED[name]:
        assert fact in drills.question(name).answer


def test_layers_named_in_questions_are_where_the_placement_has_them() -> None:
    placement = build("interleaved", 3, 6, 2).placement  # 24 layers: 4 a stage
    spans = {r: [(4 * stage + 1, 4 * stage + 4) for stage in placement.stages_of(r)] for r in range(3)}
    said = drills.question("how-interleaving-works").answer
    assert "rank 0 has layers {} to {} and {} to {}".format(*spans[0][0], *spans[0][1]) in said
    assert "{} to {} and {} to {}".format(*spans[1][0], *spans[1][1]) in said
    assert build("interleaved", 4, 4, 3).placement.rank_of(6, 0) == 2
    assert "Twelve; round robin, stage 6 is on rank 2" in drills.question("words").answer


def test_groups_of_eight_ranks_are_those_of_the_axes() -> None:
    said = drills.question("eight-ranks-two-by-two-by-two").answer
    for axis in (1, 2, 4):
        pairs = [f"{rank}-{rank + axis}" for rank in range(8) if not rank & axis]
        assert ", ".join(pairs) in said


def test_what_questions_say_of_sizes_without_a_number() -> None:
    hidden = simulate(Schedule.from_rows(longer_warm_up((6, 4, 2, 0), 8)), Costs(comm=1)).makespan
    assert hidden == simulate(build("gpipe", 4, 8), Costs(comm=1)).makespan  # "twice the usual hides a hop as long"
    assert build("dualpipe-v", 4, 8).placement.stages_of(0) == (0, 7)  # first and last on one rank
    with pytest.raises(ValueError, match="needs at least 2p"):
        build("dualpipe", 8, 14)
    assert simulate(build("zb-h1", 4, 8)).makespan == 3 + 8 * 3  # meets the bound with a split B


def test_what_is_said_of_random_delays_is_what_they_do() -> None:
    names = ("gpipe", "1f1b", "zb-h1", "interleaved", "zb-h2")
    said = re.findall(r"([\d.]+)%", drills.question("jitter").short)
    longer = dict(zip(names, map(float, said), strict=True))
    assert all(more > 10 for more in longer.values())  # the work alone is longer by a tenth
    assert abs(longer["gpipe"] - longer["1f1b"]) < 1  # "they lose about the same"
    assert min(longer, key=longer.__getitem__) == "zb-h2"


def longer_warm_up(warm_ups: tuple[int, ...], m: int) -> list[list[str]]:
    return [
        [f"{r}F{i}" for i in range(w)]
        + [action for i in range(w, m) for action in (f"{r}F{i}", f"{r}B{i - w}")]
        + [f"{r}B{i}" for i in range(m - w, m)]
        for r, w in enumerate(warm_ups)
    ]


def test_a_question_is_folded_in_a_notebook_and_short_in_a_terminal() -> None:
    one = drills.question("choose-v")
    shown = one._repr_markdown_()
    assert shown.count("<details>") == shown.count("</details>") == 6
    assert shown.index(one.ask) < shown.index("<details>") < shown.index(one.short)
    assert one.short not in repr(one)
    assert all(point in shown for point in one.rubric)


def test_a_picked_question_comes_from_its_seed() -> None:
    assert [drills.pick(s, level=2) for s in range(9)] == [drills.pick(s, level=2) for s in range(9)]
    assert len({drills.pick(s).name for s in range(60)}) > 25
    assert all(drills.pick(s, lesson=7).lesson == 7 for s in range(9))


# scores


def test_an_answer_to_no_card_is_told_what_a_card_is(own_progress: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert drills.answer("bubble-rate", 3).right is None  # type: ignore[arg-type]
    said = "○ 'bubble-rate' is no card; draw one first: card = drills.card('bubble-rate', seed=1)\n"
    assert capsys.readouterr().out == said
    assert not scores.scores(scores.CARDS)


def test_answers_and_scores_are_kept_beside_exercises(own_progress: Path, capsys: pytest.CaptureFixture[str]) -> None:
    progress.record("3.1", solved=True)
    card = drills.card("bubble-rate", 2)
    drills.answer(card, card.answer)
    drills.answer(card, 1000)
    drills.score("choose-v", 2)
    drills.score("choose-v", 4)
    saved = json.loads(own_progress.read_text())
    assert saved["exercises"]["3.1"]["solved"]
    assert saved[scores.CARDS] == {"bubble-rate": {"points": 1, "of": 2, "tries": 2}}
    assert saved[scores.QUESTIONS] == {"choose-v": {"points": 4, "of": 5, "tries": 2}}
    said = capsys.readouterr().out.splitlines()
    assert said[0].startswith("✓ bubble-rate #2: ")
    assert said[1].startswith("✗ bubble-rate #2: 1,000 is above the answer")
    assert said[2:] == ["✎ choose-v: 2 of 5 points", "✎ choose-v: 4 of 5 points"]


@pytest.mark.parametrize("points", [-1, 6, 2.5, True, None, "3"])
def test_a_score_outside_the_rubric_is_not_kept(points: object, capsys: pytest.CaptureFixture[str]) -> None:
    drills.score("choose-v", points)  # type: ignore[arg-type]
    assert capsys.readouterr().out.startswith("○ choose-v: the rubric has 5 points")
    assert progress.kept(scores.QUESTIONS) == {}


def test_summary_counts_by_level_and_names_the_weakest(capsys: pytest.CaptureFixture[str]) -> None:
    drills.answer(drills.card("bubble-rate", 2), 1000)
    drills.score("words", 4)
    drills.score("choose-v", 1)
    capsys.readouterr()
    drills.summary()
    _, first, second, *_, again = capsys.readouterr().out.splitlines()
    kinds_1, questions_1 = len(drills.kinds(1)), len(drills.questions(1))
    assert first.split() == f"1 0 of 1 1 of {kinds_1} 1 of {questions_1} 4 of 4".split()
    assert second.split()[-3:] == ["1", "of", "5"]
    assert again == "again: bubble-rate, choose-v"


@pytest.mark.parametrize(
    "entry", [None, 3, [], {}, {"points": "3", "of": 4, "tries": 1}, {"points": 9, "of": 4, "tries": 1}]
)
def test_a_score_that_cannot_be_read_counts_as_none(entry: object, capsys: pytest.CaptureFixture[str]) -> None:
    progress.update(scores.QUESTIONS, "words", lambda before: entry)
    progress.update(scores.CARDS, "bubble-rate", lambda before: entry)
    drills.summary()
    drills.score("words", 3)
    drills.answer(drills.card("bubble-rate", 1), 1000)
    assert progress.kept(scores.QUESTIONS)["words"] == {"points": 3, "of": 4, "tries": 1}
    assert progress.kept(scores.CARDS)["bubble-rate"] == {"points": 0, "of": 1, "tries": 1}


def test_a_progress_file_whose_sections_are_no_tables_is_put_aside(own_progress: Path) -> None:
    own_progress.write_text(json.dumps({"exercises": {}, "predictions": {}, scores.CARDS: [1]}))
    assert progress.kept(scores.CARDS) == {}
    assert own_progress.with_suffix(".broken").exists()


# mock interviews


class Clock:
    """Seconds, told by the test."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def needed(items: tuple[interview.Item, ...]) -> int:
    return sum(3 if isinstance(item, drills.Card) else 6 for item in items)


@pytest.mark.parametrize("minutes", [6, 15, 20, 45, 90])
def test_an_interview_fits_its_time_and_gets_harder(minutes: int) -> None:
    for seed in range(20):
        items = interview.plan(seed, minutes)
        assert minutes - 6 < needed(items) <= minutes
        assert [item.level for item in items] == sorted(item.level for item in items)
        names = [item.kind if isinstance(item, drills.Card) else item.name for item in items]
        assert len(set(names)) == len(names)
        assert len({item.lesson for item in items}) >= min(len(items), 7)
    assert len({str(interview.plan(seed, minutes)) for seed in range(20)}) > 6


def test_an_interview_of_45_minutes_has_nine_parts_of_all_levels() -> None:
    items = interview.plan(7, 45)
    assert Counter(type(item).__name__ for item in items) == {"Question": 6, "Card": 3}
    assert {item.level for item in items} == {1, 2, 3, 4}
    assert repr(drills.mock(7)) == "Interview 7: 6 questions and 3 cards in 45 minutes"


def test_really_asked_questions_come_more_often() -> None:
    items = [item for seed in range(150) for item in interview.plan(seed, 45)]
    asked = [item.asked for item in items if isinstance(item, drills.Question)]
    assert sum(asked) / len(asked) > 1.3 * len(drills.questions(asked=True)) / len(ALL)


def test_an_interview_from_first_question_to_report(capsys: pytest.CaptureFixture[str]) -> None:
    clock = Clock()
    talk = drills.mock(3, minutes=15, clock=clock)
    first, second, card = talk.items
    assert isinstance(first, drills.Question)
    assert isinstance(card, drills.Card)
    talk.next()
    assert capsys.readouterr().out == f"1 of 3 · 6 minutes for this · 15:00 min left\n{first}\n"
    clock.now += 90
    for then, _ in first.follow_ups:
        talk.follow_up()
        assert capsys.readouterr().out == f"Then: {then}\n"
    talk.follow_up()
    assert capsys.readouterr().out == "No follow-up left; reveal() shows the answers.\n"
    talk.reveal()
    assert capsys.readouterr().out == f"{first.answer}\n"
    talk.score(2)
    talk.next()
    assert f"2 of 3 · 6 minutes for this · 13:30 min left\n{second}" in capsys.readouterr().out
    clock.now += 400
    talk.score(1)
    assert "(0:40 min more than planned)" in capsys.readouterr().out
    talk.next()
    talk.answer(card.answer)
    capsys.readouterr()
    talk.next()
    most = len(first.rubric) + len(second.rubric) + 1  # type: ignore[union-attr]
    said = capsys.readouterr().out.splitlines()
    assert said[:2] == ["That was all.", f"Interview 3: 4 of {most} points, 3 of 3 answered"]
    assert progress.kept(scores.INTERVIEWS) == {"3 (15 min)": {"points": 4, "of": most, "tries": 1}}
    assert progress.kept(scores.QUESTIONS)[first.name]["points"] == 2
    drills.summary()
    assert f"interviews: 3 (15 min) 4 of {most}" in capsys.readouterr().out


def test_what_comes_after_the_end_does_not_count(capsys: pytest.CaptureFixture[str]) -> None:
    clock = Clock()
    talk = drills.mock(3, minutes=15, clock=clock)
    clock.now += 3600  # nothing is asked yet, so the clock stands
    assert talk.left == 15
    talk.next()
    clock.now += 15 * 60
    talk.score(2)
    assert "(after the end, so it does not count)" in capsys.readouterr().out
    assert talk.points == {}
    assert progress.kept(scores.INTERVIEWS) == {}
    talk.next()
    assert capsys.readouterr().out.startswith("Time is up.\n")


def test_the_first_answer_to_a_card_counts(capsys: pytest.CaptureFixture[str]) -> None:
    talk = drills.mock(3, minutes=15, clock=Clock())
    for _ in range(3):
        talk.next()
    assert isinstance(talk.item, drills.Card)
    talk.answer("what?")
    assert talk.points == {}
    talk.answer(10**8)
    talk.answer(talk.item.answer)
    assert talk.points == {talk.item.name: 0}
    assert capsys.readouterr().out.endswith("You answered this card; next() asks on.\n")


def test_calls_in_a_wrong_order_are_told(capsys: pytest.CaptureFixture[str]) -> None:
    talk = drills.mock(3, minutes=15, clock=Clock())
    talk.reveal()
    talk.score(1)
    talk.answer(1)
    assert capsys.readouterr().out == 3 * "Nothing is asked; next() asks.\n"
    talk.next()
    capsys.readouterr()
    talk.answer(1)
    assert capsys.readouterr().out == "Say it aloud, reveal(), then score(points).\n"


@pytest.mark.parametrize("minutes", [0, 5, math.nan, -1])
def test_an_interview_needs_time_for_one_question(minutes: float) -> None:
    with pytest.raises(ValueError, match="but one question takes 6"):
        drills.mock(1, minutes=minutes)


# the widget


def controls(deck) -> list:
    import ipywidgets

    inside = [w for child in deck.children for w in (child.children if isinstance(child, ipywidgets.Box) else [child])]
    return [widget for widget in inside if not isinstance(widget, ipywidgets.HTML)]


def test_every_control_has_a_label_and_a_place_in_the_order_of_tab() -> None:
    deck = drills.deck(seed=3)
    assert [widget.description for widget in controls(deck)] == [
        *("Kind", "Card no.", "Answer", "Check", "Solution", "Next card"),
    ]
    assert all(widget.tabbable is not False and not widget.disabled for widget in controls(deck))


def test_enter_checks_once_and_the_verdict_is_announced() -> None:
    deck = drills.deck(seed=3, kind="step-time")
    assert repr(deck.card).splitlines()[1][:20] in deck.text.value
    deck.field.value = str(deck.card.answer)
    deck.check.click()  # what leaving the field and clicking would do
    assert "✓" in deck.verdict.value
    assert "aria-live='polite'" in deck.verdict.value
    assert progress.kept(scores.CARDS) == {"step-time": {"points": 1, "of": 1, "tries": 1}}
    deck.field.value = "1"
    assert "✗" in deck.verdict.value
    assert progress.kept(scores.CARDS)["step-time"]["tries"] == 2


def test_the_next_card_is_another_and_starts_empty() -> None:
    deck = drills.deck(seed=3, kind="step-time")
    before = deck.card
    deck.field.value = "1"
    deck.following.click()
    assert deck.card == drills.card("step-time", 4) != before
    assert deck.field.value == ""
    assert "✗" not in deck.verdict.value
    deck.choice.value = "bubble-rate"
    assert deck.card == drills.card("bubble-rate", 4)
    deck.solution.click()
    assert deck.card.worked in deck.verdict.value.replace("&#x27;", "'")


def test_where_no_widget_runs_text_and_picture_stand_in_its_place() -> None:
    deck = drills.deck(seed=3)
    bundle = deck._repr_mimebundle_()
    assert bundle["text/plain"] == repr(deck.card)
    assert base64.b64decode(bundle["image/png"]).startswith(b"\x89PNG")
    assert "application/vnd.jupyter.widget-view+json" in bundle


@pytest.mark.thorough
@each_kind
def test_a_picture_shows_all_of_its_card(kind: str) -> None:
    from ppcourse.lab.drills.widget import LINE, picture

    card = drills.card(kind, 1)
    data = base64.b64decode(picture(card))
    width, height = int.from_bytes(data[16:20]), int.from_bytes(data[20:24])
    lines = math.ceil(len(card.text) / LINE)
    assert width == 9 * 150
    assert height >= 150 * (0.6 + 0.2 * lines)
