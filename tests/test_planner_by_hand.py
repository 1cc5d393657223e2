"""The planner's arithmetic, written down by hand from the formulas of the papers that it cites: none of its own code
says what a step takes here.

A GPT of 6 layers, h = 64, s = 32, V = 512, on GPUs of 10¹² operations a second, of which half are reached, and links of
10 µs and 10⁹ bytes a second. Of a microbatch of b sequences:

                  F                        I                     W              weights         kept
    a layer       24 b s h² (1 + s/6h)     24 b s h² + 12 b s² h  24 b s h²      12 h² + 4 h     34 s b h
    head          2 b s h V                2 b s h V             2 b s h V      h V + 2 h       4 s b h (1 + V/h)
    embedding                                                                   h V             8 s b + s b h

F and the head: Narayanan et al. 2021, appendix. I computes twice the attention's products, and F's of them once more
(Korthikanti et al. 2022, §5: selective recomputation). Kept: the same, §4. 18 bytes a weight.
"""

import math

import pytest

from ppcourse.analysis.candidate import Candidate
from ppcourse.analysis.hardware import GPU, Link
from ppcourse.analysis.planner import MEMORY, Choice, choose
from ppcourse.analysis.shape import Shape

SHAPE = Shape(layers=6, hidden=64, heads=4, vocab=512, sequence=32)
LAYER, EMBEDDING, HEAD = 49_408, 32_768, 32_896  # weights
SPEED = 0.5e12
F, I, W, LOGITS = 6_815_744, 7_864_320, 6_291_456, 4_194_304  # operations for b = 2  # noqa: E741
KEPT, KEPT_EMBEDDING, KEPT_HEAD = 139_264, 4_608, 147_456  # bytes for b = 2
MESSAGE = 8_192  # bytes that cross a cut for b = 2: two a number


def planned(gpus: int, batch: int, names: list[str], memory: float = 1e9, **options: object) -> Choice:
    given = {"link": Link("cable", bandwidth=1e9, latency=1e-5), "efficiency": 0.5, "headroom": 0.0, "top": 1000}
    gpu = GPU("plain", memory, 1e12)
    return choose(SHAPE, gpus=gpus, gpu=gpu, batch=batch, schedules=names, **(given | options))


def one(choice: Choice, p: int, b: int) -> Candidate:
    [found] = [c for c in (*choice.candidates, *choice.slower) if (c.p, c.microbatch) == (p, b)]
    return found


def test_four_replicas_without_a_pipeline() -> None:
    """Two microbatches of two a replica, then a ring of four: six messages of a quarter of the gradients."""
    found = one(planned(4, 16, ["1f1b"]), p=1, b=2)
    assert found.m == 2
    weights = 6 * LAYER + EMBEDDING + HEAD
    assert weights == SHAPE.parameters == 362_112
    computing = 2 * (6 * (F + I + W) + 3 * LOGITS) / SPEED
    summing = 6 * (1e-5 + 4 * weights / 4 / 1e9)
    assert found.step_time == pytest.approx(computing + summing, rel=1e-12) == pytest.approx(2.786320128e-3)
    assert found.ledger.totals == (18 * weights + 6 * KEPT + KEPT_EMBEDDING + KEPT_HEAD,) == (7_505_664,)
    shared = one(planned(4, 16, ["1f1b"], share_optimizer=True), p=1, b=2)
    assert found.ledger.peak - shared.ledger.peak == 9 * weights  # 12 bytes of state, and 12 ÷ 4


def test_two_replicas_of_two_ranks() -> None:
    """1F1B, four microbatches. Rank 1 has more to do, f and b of the head on top, but waits once: rank 0 begins its
    third forward when the first gradient is back and used. From then on both are as late as each other."""
    found = one(planned(4, 16, ["1f1b"]), p=2, b=2)
    assert (found.m, found.layers) == (4, (4, 4))
    f, b = 3 * F / SPEED, 3 * (I + W) / SPEED
    rank_1 = f + b + 3 * LOGITS / SPEED
    hop = 1e-5 + MESSAGE / 1e9
    assert f + b + 2 * hop > rank_1  # so it waits
    pipeline = f + hop + rank_1 + (hop + b + f + hop) + 2 * rank_1 + hop + b
    assert found.pipeline[0] == pytest.approx(pipeline, rel=1e-12) == pytest.approx(777.411072e-6)
    summing = 2 * (1e-5 + 4 * (3 * LAYER + HEAD) / 2 / 1e9)
    assert found.step_time == pytest.approx(pipeline + summing, rel=1e-12) == pytest.approx(1521.891072e-6)
    messages = 2 * MESSAGE + MESSAGE  # two receives posted, one sent
    assert found.ledger.totals == (
        18 * (3 * LAYER + EMBEDDING) + 2 * (3 * KEPT + KEPT_EMBEDDING) + messages,
        18 * (3 * LAYER + HEAD) + 3 * KEPT + KEPT_HEAD + messages,
    )


def test_four_ranks_by_gpipe_and_what_they_are_short_of() -> None:
    """Four microbatches of four. Jobs that are all alike go through a row of machines in the sum of their times, and
    for each further job the longest of them; forward, and then back."""
    choice = planned(4, 16, ["gpipe"])
    found = one(choice, p=4, b=4)
    assert (found.m, found.layers) == (4, (3, 2, 2, 1))  # no stage has more than two decoder layers; the head is alone
    f, b = 2 * 2 * F / SPEED, 2 * 2 * (I + W) / SPEED  # of two layers, for twice as many sequences
    head = 2 * LOGITS / SPEED
    hop = 1e-5 + 2 * MESSAGE / 1e9
    makespan = (3 * f + head + 3 * f + 3 * hop) + (2 * head + 3 * b + 3 * b + 3 * hop)
    assert found.step_time == pytest.approx(makespan, rel=1e-12) == pytest.approx(1215.268608e-6)
    ends, middle = 3 * 2 * MESSAGE, 6 * 2 * MESSAGE
    bytes_ = (
        18 * (2 * LAYER + EMBEDDING) + 4 * 2 * (2 * KEPT + KEPT_EMBEDDING) + ends,
        18 * 2 * LAYER + 4 * 2 * 2 * KEPT + middle,
        18 * 2 * LAYER + 4 * 2 * 2 * KEPT + middle,
        18 * HEAD + 4 * 2 * KEPT_HEAD + ends,
    )
    assert found.ledger.totals == bytes_
    assert max(bytes_) == 4_682_752
    assert one(planned(4, 16, ["gpipe"], memory=4_682_752), p=4, b=4).layers == found.layers  # just enough
    # with a byte less a decoder layer moves from rank 0 to rank 3, which still does least: no time is lost
    even = 18 * 2 * LAYER + 4 * 2 * 2 * KEPT + middle
    for memory in (4_682_751, even):
        other = one(planned(4, 16, ["gpipe"], memory=memory), p=4, b=4)
        assert (other.layers, other.ledger.peak) == ((2, 2, 2, 2), even)
        assert other.step_time == pytest.approx(found.step_time, rel=1e-12)
    short = planned(4, 16, ["gpipe"], memory=even - 1)
    [refused] = [each for each in short.refused if each.what == str(found)]
    assert (refused.kind, refused.by) == (MEMORY, 4_682_752 - even + 1)
    assert refused.why == "rank 0 takes 4.5 MiB, and may take 3.9 MiB: short by 564.0 KiB."


def test_weights_that_do_not_fit_need_no_plan_to_be_refused() -> None:
    """Of the rank that lacks most, weights and one microbatch of its stage."""
    small = planned(4, 16, ["gpipe"], memory=2_000_000)
    [refused] = [each for each in small.refused if each.what == "gpipe, p = 4, 1 of them, m = 4 of 4"]
    assert "takes at least" in refused.why
    assert refused.by == 18 * (2 * LAYER + EMBEDDING) + 2 * (2 * KEPT + KEPT_EMBEDDING) - 2_000_000


def test_one_microbatch_after_another_over_two_nodes() -> None:
    """Two nodes of two: replicas of a stage stand side by side, so cuts lie between nodes, and sums inside."""
    network = Link("far", bandwidth=1e8, latency=1e-4)
    found = one(planned(4, 16, ["naive"], per_node=2, network=network), p=2, b=2)
    hop = 1e-4 + MESSAGE / 1e8
    alone = (6 * (F + I + W) + 3 * LOGITS) / SPEED
    summing = 2 * (1e-5 + 4 * (3 * LAYER + HEAD) / 2 / 1e9)
    assert found.step_time == pytest.approx(4 * (alone + 2 * hop) + summing, rel=1e-12)
    assert found.ledger.of("activations") == (3 * KEPT + KEPT_EMBEDDING, 3 * KEPT + KEPT_HEAD)


def test_zb_h1_on_two_ranks() -> None:
    """Three microbatches of one, free messages. Rank 1 has the head on top and never waits: what it needs has come when
    it is done with what is before. So the step is rank 0's first forward, and all that rank 1 does."""
    free = Link("free", bandwidth=math.inf, latency=0.0)
    found = one(planned(2, 3, ["zb-h1"], link=free), p=2, b=1)
    assert (found.m, found.layers) == (3, (4, 4))
    rows = ["0F0 0F1 0I0 0W0 0F2 0I1 0W1 0I2 0W2", "1F0 1I0 1F1 1I1 1W0 1F2 1I2 1W1 1W2"]
    assert found.plan.to_text().splitlines() == rows
    f, i, w, head = (3 * F / 2 / SPEED, 3 * I / 2 / SPEED, 3 * W / 2 / SPEED, LOGITS / 2 / SPEED)
    third = 2 * (f + i + 2 * head) + f + w + head  # when rank 1 is ready for its third forward
    assert f + (f + i + 2 * head) + i + w + f < f + third  # rank 0: first gradient, I, W, third forward
    assert found.step_time == pytest.approx(f + 3 * (f + i + w + 3 * head), rel=1e-12)
    kept = 3 * 32 * 32 * 64  # bytes of three layers from I until W, for b = 1
    first, last = found.ledger.rows
    assert (first["activations"], first["kept for W"]) == (2 * (3 * KEPT + KEPT_EMBEDDING) / 2, 0)
    # rank 1 holds most after its second F: one microbatch, and what W still needs of the first
    head_kept = 2 * 32 * (64 + 512)
    assert (last["activations"], last["kept for W"]) == ((3 * KEPT + KEPT_HEAD) / 2, kept + head_kept)


@pytest.mark.parametrize("batch", [1, 512])
def test_all_operations_of_gpt_3_are_those_of_the_papers(batch: int) -> None:
    """With full recomputation, 96 B s l h² (1 + s/6h + V/16lh): Narayanan et al. 2021, §5.1. What the model needs,
    72 B s l h² (1 + s/6h + V/12lh): Korthikanti et al. 2022, appendix A. 175 billion weights: the former, Table 1."""
    s, h, layers, vocab = 2048, 12288, 96, 51200
    shape = Shape(layers=layers, hidden=h, heads=96, vocab=vocab, sequence=s)
    work = shape.work(batch, "full")
    assert sum(layer.total for layer in work) == pytest.approx(
        96 * batch * s * layers * h**2 * (1 + s / (6 * h) + vocab / (16 * layers * h)), rel=1e-12
    )
    needed = 72 * batch * s * layers * h**2 * (1 + s / (6 * h) + vocab / (12 * layers * h))
    assert sum(3 * layer.forward for layer in work) == pytest.approx(needed, rel=1e-12)
    assert 174e9 < shape.parameters < 176e9


def test_utilisation_is_what_the_model_needs_of_what_the_gpus_could() -> None:
    found = one(planned(4, 16, ["1f1b"]), p=2, b=2)
    needed = 72 * 16 * 32 * 6 * 64**2 * (1 + 32 / (6 * 64) + 512 / (12 * 6 * 64))
    assert found.utilisation == pytest.approx(needed / (1521.891072e-6 * 4 * 1e12), rel=1e-9)
