"""How many bytes a rank takes, and what for."""

import json
import math
from pathlib import Path
from typing import Any

import numpy
import pytest
from hypothesis import given
from hypothesis import strategies as st
from strategies import plans, quick, refused

from ppcourse.analysis.activations import (
    embedding_activations,
    head_activations,
    layer_activations,
    split_activations,
)
from ppcourse.analysis.buffers import GLOO_ROOM, link_of
from ppcourse.analysis.in_flight import in_flight_bytes
from ppcourse.analysis.ledger import KINDS, Ledger, side_by_side
from ppcourse.analysis.memory import Sizes, ledger
from ppcourse.analysis.tied import Tied
from ppcourse.schedules import build
from ppcourse.schedules.action import Action
from ppcourse.schedules.channels import channels
from ppcourse.schedules.forward_only import forward_only
from ppcourse.schedules.placement import Placement
from ppcourse.schedules.schedule import Schedule, ScheduleError

PUBLISHED: dict[str, Any] = json.loads((Path(__file__).parent / "data" / "activations.json").read_text())
RECEIVED = "receive buffers"
CLOSED = ["naive", "gpipe", "1f1b", "interleaved", "breadth-first", "zb-h1", "zb-h2"]


def rows(name: str) -> list[dict]:
    return PUBLISHED[name]["rows"]


# What a plan takes.


def test_1f1b_on_two_ranks_by_hand() -> None:
    """Rank 0 holds two microbatches, rank 1 one; two receives posted and one message on its way, each way."""
    sizes = Sizes(parameters=[100, 10], stashed=[7, 5], kept_for_w=3, boundary=[2, 9])
    first, last = ledger(build("1f1b", 2, 4), sizes).rows
    assert tuple(first.values()) == (200, 400, 1200, 14, 0, 4, 2)
    assert tuple(last.values()) == (20, 40, 120, 5, 0, 4, 2)
    assert tuple(first) == KINDS


def test_zb_h1_keeps_for_w_what_1f1b_has_given_back() -> None:
    """Rank 2 of 3 holds one microbatch of F's and owes W of the two that the warm-up of rank 0 is longer."""
    book = ledger(build("zb-h1", 3, 6), Sizes(stashed=10, kept_for_w=4))
    assert book.of("activations") == (30, 20, 10)
    assert book.of("kept for W") == (0, 4, 8)


def test_stages_that_live_on_two_ranks_are_paid_twice() -> None:
    book = ledger(build("dualpipe", 2, 4), Sizes(parameters=[100, 10], weight_bytes=1))
    assert book.of("parameters") == (110, 110)


def test_tied_weights_are_there_once_on_a_rank_that_has_several_of_their_stages() -> None:
    """Stages 0, 1 and 3 have 10 weights in common, 6 of them trained, and 5 bytes of buffers."""
    tied = [Tied((0, 1, 3), 10, 6, 5)]
    sizes = Sizes(parameters=[30, 40, 20, 50], trainable=[26, 36, 20, 46], buffers=[5, 6, 7, 8], tied=tied)

    def found(name: str, p: int, **more: Any) -> list[tuple[float, ...]]:
        book = ledger(build(name, p, 4), sizes, **more)
        return [book.of(kind) for kind in ("parameters", "gradients", "optimizer")]

    # a vee: stages 0 and 3 on rank 0, which tie; 1 and 2 on rank 1, which do not
    assert found("zb-v", 2) == [(2 * 70 + 8, 2 * 60 + 13), (4 * 66, 4 * 56), (12 * 66, 12 * 56)]
    # a loop: 0 and 2 on rank 0, 1 and 3 on rank 1
    assert found("interleaved", 2) == [(2 * 50 + 12, 2 * 80 + 9), (4 * 46, 4 * 76), (12 * 46, 12 * 76)]
    assert found("interleaved", 2, origin="formula") == found("interleaved", 2)
    # each on a rank of its own
    assert found("1f1b", 4)[0] == (65, 86, 47, 108)
    everything = ledger(build("interleaved", 1, 1, 4), sizes)
    assert everything.of("parameters") == (2 * (140 - 20) + 26 - 10,)
    assert everything.of("gradients") == (4 * (128 - 12),)


@quick
@given(plans, st.integers(0, 50), st.integers(0, 60))
def test_activations_and_what_w_keeps_are_together_at_their_peak(plan: Schedule, stashed: int, kept: int) -> None:
    book = ledger(plan, Sizes(stashed=stashed, kept_for_w=kept))
    both = zip(book.of("activations"), book.of("kept for W"), strict=True)
    assert tuple(map(sum, both)) == in_flight_bytes(plan, stashed, kept)


@pytest.mark.parametrize("name", CLOSED)
def test_formula_and_plan_agree_in_every_kind(name: str) -> None:
    sizes = Sizes(parameters=3, stashed=10, kept_for_w=7, boundary=1)
    for p in (1, 2, 3, 4, 6):
        for m in (1, 2, 3, 5, 8, 12, 24):
            if name == "interleaved" and m % p:
                continue
            for v in (1, 2, 3) if name in ("interleaved", "breadth-first") else (None,):
                plan = build(name, p, m, v)
                formula, simulated = ledger(plan, sizes, origin="formula"), ledger(plan, sizes)
                assert (formula.origin, simulated.origin) == ("formula", "simulated")
                for kind in KINDS:
                    assert formula.of(kind) == pytest.approx(simulated.of(kind)), (p, m, v, kind)


@pytest.mark.parametrize("name", ["naive", "gpipe", "1f1b", "zb-h1", "zb-h2"])
def test_where_a_rank_has_one_stage_the_stages_may_differ(name: str) -> None:
    sizes = Sizes([1, 2, 3, 4], stashed=[10, 40, 20, 30], kept_for_w=[1, 40, 5, 0], boundary=[6, 5, 4, 3])
    for m in (1, 3, 8, 20):
        for keep in (False, True):
            plan = build(name, 4, m)
            formula = ledger(plan, sizes, origin="formula", keep_outputs=keep)
            assert formula.rows == ledger(plan, sizes, keep_outputs=keep).rows


def test_where_there_is_no_closed_form_it_is_said_so() -> None:
    for plan in (build("dualpipe", 4, 8), build("interleaved", 4, 6), forward_only(build("1f1b", 4, 8))):
        with refused(f"There is no closed form for what {plan.name} holds here; take origin='simulated'."):
            ledger(plan, Sizes(), origin="formula")
    more_for_w = Sizes(stashed=1, kept_for_w=2)
    with refused("There is no closed form for what zb-h1 holds here; take origin='simulated'."):
        ledger(build("zb-h1", 4, 8), more_for_w, origin="formula")


def test_where_a_rank_holds_more_of_one_stage_than_of_another_there_is_no_closed_form_if_they_differ() -> None:
    unlike = Sizes(stashed=[1, 1, 2, 1])
    with refused("There is no closed form for what interleaved holds here; take origin='simulated'."):
        ledger(build("interleaved", 2, 4, 2), unlike, origin="formula")
    with refused("There is no closed form for what interleaved holds here; take origin='simulated'."):
        # rank 1 holds three halves: two microbatches of one stage, one of the other
        ledger(build("interleaved", 2, 2, 2), Sizes(stashed=[1, 1, 1, 2]), origin="formula")
    plan = build("breadth-first", 2, 4, 2)  # holds all of both
    assert ledger(plan, unlike, origin="formula").rows == ledger(plan, unlike).rows


# Messages.


def test_a_channel_has_one_receive_posted_beyond_what_its_plan_needs() -> None:
    """Rank 1 takes the microbatches in the order 2 0 1 in which they are not sent: window 3, four buffers if there
    were as many messages. Stage 0 hands on 5 bytes a microbatch."""
    plan = Schedule.from_text("0F0 0F1 0F2 0F3 0B2 0B0 0B1 0B3\n1F2 1B2 1F0 1B0 1F1 1B1 1F3 1B3")
    windows = {channel.destination: traffic.window for channel, traffic in channels(plan).items()}
    assert windows == {1: 3, 0: 1}
    assert ledger(plan, Sizes(boundary=5)).of("receive buffers") == (10, 20)


def test_no_more_is_posted_than_comes() -> None:
    assert ledger(build("1f1b", 2, 1), Sizes(boundary=5)).of("receive buffers") == (5, 5)


def test_a_buffer_is_as_large_as_the_largest_message_of_its_channel() -> None:
    """On three channels each: forwards 0 to 1 and 2 to 3 from rank 0, 1 to 2 from rank 1; gradients the other way."""
    book = ledger(build("interleaved", 2, 4, 2), Sizes(boundary=[1, 10, 100, 1000]))
    assert book.of("receive buffers") == (2 * 10 + 2 * 100, 2 * 100 + 2 * 10)
    assert book.of("sent outputs") == (100 + 10, 10 + 100)
    book = ledger(build("interleaved", 2, 4, 2), Sizes(boundary=[10, 1, 3, 1000]))  # the largest may be the first
    assert book.of("receive buffers") == (2 * 1 + 2 * 10, 2 * 10 + 2 * 1)


def test_all_messages_of_a_channel_count_whichever_stages_they_are_between() -> None:
    """One microbatch, but two forwards from rank 0 to rank 1; from rank 1 to rank 0 there is one."""
    book = ledger(build("breadth-first", 2, 1, 2), Sizes(boundary=5))
    assert book.of("receive buffers") == (5 + 2 * 5, 2 * 5 + 5)


def test_from_both_ends_messages_go_both_ways() -> None:
    """DualPipe on two ranks, 2 microbatches each way: each rank sends and gets both kinds, the activations of one
    direction and the gradients of the other."""
    book = ledger(build("dualpipe", 2, 4), Sizes(boundary=[3, 100], envelope=[2, 0], back=[7, 100]))
    assert book.of("receive buffers") == (2 * 5 + 2 * 7,) * 2
    assert book.of("sent outputs") == (5 + 7,) * 2
    place = Placement(2, (0, 1), (1, 0), 3)  # three microbatches one way, and the fourth the other way
    lopsided = Schedule("mine", place, 4, tuple(tuple(map(Action.parse, row.split())) for row in (
        "0F0 0F1 0F2 0B0 0B1 0B2 1F3 1B3", "1F0 1B0 1F1 1B1 1F2 1B2 0F3 0B3"
    )))  # fmt: skip
    assert ledger(lopsided, Sizes(boundary=5)).of("receive buffers") == (2 * 5 + 5, 2 * 5 + 5)


def test_a_message_takes_its_envelope_too() -> None:
    book = ledger(build("1f1b", 2, 4), Sizes(boundary=[5, 0], envelope=[3, 100]))
    assert book.of("receive buffers") == (16, 16)  # the last stage sends no activation
    assert book.of("sent outputs") == (8, 8)


def test_on_gloo_no_buffer_is_smaller_than_a_first_receive() -> None:
    plan = build("1f1b", 3, 4)
    book = ledger(plan, Sizes(boundary=[5, 2 * GLOO_ROOM, 0], envelope=1), link="gloo")
    small, large = GLOO_ROOM, 2 * GLOO_ROOM + 1
    assert book.of("receive buffers") == (2 * small, 2 * small + 2 * large, 2 * large)
    assert book.of("sent outputs") == (small, large + small, large)


def test_on_shared_memory_what_comes_before_its_turn_is_put_aside() -> None:
    """Rank 1 wants microbatch 2 first, before which 0 and 1 lie. Rank 0 gets what it wants in its order."""
    plan = Schedule.from_text("0F0 0F1 0F2 0F3 0B2 0B0 0B1 0B3\n1F2 1B2 1F0 1B0 1F1 1B1 1F3 1B3")
    assert ledger(plan, Sizes(boundary=5), link="shared").of("receive buffers") == (0, 10)
    pairwise = Schedule.from_text("0F0 0F1 0F2 0F3 0B1 0B0 0B3 0B2\n1F1 1B1 1F0 1B0 1F3 1B3 1F2 1B2")
    assert ledger(pairwise, Sizes(boundary=5), link="shared").of("receive buffers") == (0, 5)  # 0, and later 2
    for name in ("gpipe", "1f1b", "zb-h2"):
        for origin in ("formula", "simulated"):
            assert not any(ledger(build(name, 4, 8), Sizes(boundary=5), origin=origin, link="shared").of(RECEIVED))


def test_on_shared_memory_a_gradient_that_is_wanted_late_is_put_aside() -> None:
    """Rank 0 sends activation, gradient, activation; rank 1 wants both activations before the gradient."""
    plan = Schedule.from_text("0F0 2F0 2B0 0F1 2F1 2B1 0B0 0B1\n1F0 1F1 1B0 1B1")
    assert ledger(plan, Sizes(boundary=[3, 7, 0]), link="shared").of("receive buffers") == (0, 7)
    with refused("There is no closed form for what interleaved puts aside here; take origin='simulated'."):
        ledger(build("interleaved", 2, 4, 2), Sizes(), origin="formula", link="shared")
    assert ledger(build("interleaved", 3, 6, 2), Sizes(), origin="formula", link="shared").peak == 0


def test_another_link_is_refused() -> None:
    with refused("link is 'nccl'; what buffers take is known of posted, gloo, shared."):
        ledger(build("1f1b", 2, 4), Sizes(), link="nccl")
    names = ("gloo: it was asked for", "shared: the ranks are processes of one host", "nccl", "none: one process")
    assert [link_of(name) for name in names] == ["gloo", "shared", "posted", "posted"]


def test_inside_a_rank_nothing_is_sent() -> None:
    assert ledger(build("dualpipe-v", 1, 4), Sizes(boundary=1000)).peak == 0


def test_outputs_that_are_kept_add_up_with_the_microbatches() -> None:
    """As many as activations are held, and messages, which carry copies, one at a time as before."""
    plan = build("gpipe", 2, 8)
    sizes = Sizes(stashed=1, boundary=[3, 99])
    assert ledger(plan, sizes).of("sent outputs") == (3, 3)
    assert ledger(plan, sizes, keep_outputs=True).of("sent outputs") == (24 + 3, 3)


def test_a_plan_without_backward_sends_no_gradients() -> None:
    book = ledger(forward_only(build("1f1b", 2, 4)), Sizes(boundary=5))
    assert book.of("sent outputs") == (5, 0)
    assert book.of("receive buffers") == (0, 10)


# The table.


def test_a_ledger_prints_what_is_not_nothing() -> None:
    book = ledger(build("1f1b", 2, 4), Sizes(parameters=2**20, stashed=2**21, weight_bytes=4, gradient_bytes=4))
    assert str(book) == (
        "1f1b (simulated), MiB\n"
        "rank  parameters  gradients  optimizer  activations  total\n"
        "   0        4.00       4.00      12.00         4.00  24.00\n"
        "   1        4.00       4.00      12.00         2.00  22.00"
    )
    assert repr(book) == str(book)
    assert book.totals == (24 * 2**20, 22 * 2**20)
    one = ledger(build("zb-h1", 2, 2), Sizes(parameters=128, weight_bytes=8, gradient_bytes=0, optimizer_bytes=0))
    assert str(one).splitlines() == ["zb-h1 (simulated), KiB", "rank  parameters  total"] + [
        f"   {rank}        1.00   1.00" for rank in range(2)
    ]
    owed = ledger(build("zb-h1", 2, 2), Sizes(stashed=4, kept_for_w=3))
    assert str(owed).splitlines()[1].split() == ["rank", "activations", "kept", "for", "W", "total"]  # by rank 1 only
    assert book.peak == 24 * 2**20


def test_formula_plan_and_measurement_stand_side_by_side() -> None:
    """A measurement may not tell all kinds apart."""
    plan, sizes = build("1f1b", 2, 4), Sizes(parameters=64, stashed=32)
    measured = Ledger("1f1b", ({"weights": 1280.0, "other": 20.0}, {"weights": 1290.0}), "measured")
    assert side_by_side(ledger(plan, sizes, origin="formula"), ledger(plan, sizes), measured) == (
        "KiB a rank\n"
        "rank  formula  simulated  measured\n"
        "   0     1.19       1.19      1.27\n"
        "   1     1.16       1.16      1.26"
    )
    assert measured.of("other") == (20, 0)
    with refused("Side by side go one or more ledgers; there are none."):
        side_by_side()


def test_kinds_stand_side_by_side_and_so_do_ledgers_of_other_plans() -> None:
    sizes = Sizes(parameters=512, stashed=2048)
    alone = Ledger("reference", ({"parameters": 2048, "activations": 4096.0, "kept for W": 0.0},), "measured")
    assert side_by_side(ledger(build("1f1b", 2, 4), sizes), alone, kinds=KINDS) == (
        "KiB a rank\n"
        "rank         kind  1f1b simulated  reference measured\n"
        "   0   parameters            1.00                2.00\n"
        "   0    gradients            2.00                   -\n"
        "   0    optimizer            6.00                   -\n"
        "   0  activations            4.00                4.00\n"
        "   1   parameters            1.00                   -\n"
        "   1    gradients            2.00                   -\n"
        "   1    optimizer            6.00                   -\n"
        "   1  activations            2.00                   -"
    )


@pytest.mark.parametrize(
    ("sizes", "sentence"),
    [
        (
            {"parameters": -1},
            "Sizes.parameters is -1; it must be a finite number of at least 0, or a list of one a stage.",
        ),
        ({"weight_bytes": [2, 2]}, "Sizes.weight_bytes is [2, 2]; it must be a finite number of at least 0."),
        ({"stashed": [1, 2, 3]}, "Sizes.stashed has 3 numbers for 2 stages; give 2, or one number for all."),
    ],
)
def test_sizes_that_are_none_are_refused(sizes: dict, sentence: str) -> None:
    with refused(sentence):
        ledger(build("1f1b", 2, 4), Sizes(**sizes))


@pytest.mark.parametrize("rows", [None, 5, [5], "ab", [(1, 2)]])
def test_turns_and_ties_that_are_none_are_refused(rows: Any) -> None:
    for name, kind in (("turns", "Turn"), ("tied", "Tied")):
        with refused(f"Sizes.{name} is {rows!r}; it must be a list of {kind}, or () for none."):
            Sizes(**{name: rows})
    with refused("Sizes.tied is nan; it must be a finite number of at least 0, or a list of one a stage."):
        Sizes(tied=[Tied((0, 1), math.nan)])


def test_bytes_are_exact_whatever_kind_the_numbers_are_of() -> None:
    sizes = Sizes(parameters=2**24 + 1, weight_bytes=numpy.float32(1), gradient_bytes=numpy.float32(1))
    assert ledger(build("1f1b", 1, 1), sizes).of("parameters") == (2**24 + 1,)  # which 32 bits cannot tell
    assert ledger(build("1f1b", 1, 1), sizes).of("gradients") == (2**24 + 1,)


def test_what_is_not_known_is_no_zero() -> None:
    """A measurement over a link that cannot tell, and a kind that is misspelt."""
    book = Ledger("x", ({"activations": 3.0}, {}), "measured")
    assert book.of("activations") == (3, 0)
    with refused("This ledger (measured) does not tell 'receive buffers'; it tells activations."):
        book.of("receive buffers")
    with refused(f"No ledger here tells 'activation'; the kinds are {', '.join(KINDS)}."):
        side_by_side(book, kinds=["activation"])
    assert side_by_side(book, kinds=["receive buffers", "activations"]).splitlines()[2].split()[1:3] == [
        "activations",
        "3.00",
    ]


def test_arguments_that_are_none_are_refused() -> None:
    with refused("sizes is None, but it must be Sizes, for example profile(...).sizes(partition)."):
        ledger(build("1f1b", 2, 4), None)
    with refused("origin is 'measured'; it is 'simulated' or 'formula'. What a run measured is its ledger."):
        ledger(build("1f1b", 2, 4), Sizes(), origin="measured")


def test_a_plan_that_breaks_a_rule_has_no_ledger() -> None:
    with pytest.raises(ScheduleError):
        ledger(Schedule.from_text("0F0 0B0\n1B0 1F0"), Sizes())


# The closed forms of a transformer.


def test_a_layer_keeps_what_korthikanti_counted() -> None:
    for row in rows("korthikanti"):
        assert layer_activations(row["s"], row["b"], row["h"], row["a"]) == row["bytes"]


def test_selective_recomputation_saves_most_of_it_in_large_models() -> None:
    """80 of 114 and 64 of 98 parts in models of 175 and 530 billion parameters: 70% and 65%."""
    saved = []
    for row in rows("korthikanti")[1:]:
        shape = (row["s"], row["b"], row["h"], row["a"])
        saved.append(1 - layer_activations(*shape, recompute="selective") / row["bytes"])
    assert saved == pytest.approx([80 / 114, 64 / 98])


def test_tensor_and_sequence_parallelism_divide_what_table_2_says() -> None:
    for row in rows("korthikanti_parallel"):
        options = {"sequence_parallel": row["sequence_parallel"], "recompute": row["recompute"]}
        assert layer_activations(2048, 1, 12288, 96, t=8, **options) == pytest.approx(2048 * 12288 * row["per_sbh"])


def test_megatron_estimates_the_same_for_any_feed_forward_width() -> None:
    for row in rows("megatron_activation_per_layer"):
        options = {"ffn": row["ffn"], "t": row["t"], "sequence_parallel": True, "recompute": "selective"}
        assert layer_activations(row["s"], row["b"], row["h"], 16, **options) == row["bytes"]


def test_a_parameter_takes_as_many_bytes_as_megatron_says() -> None:
    plan = build("1f1b", 1, 1)
    for row in rows("megatron_bytes_per_param"):
        assert ledger(plan, Sizes(parameters=1, optimizer_bytes=12 / row["share"])).peak == row["bytes"]


def test_zero_bubble_counts_what_w_keeps() -> None:
    for row in rows("zb_activation_per_layer"):
        both = split_activations(row["s"], row["b"], row["h"], row["a"])
        assert both == (row["stashed"], row["kept_for_w"])
        assert both[0] == pytest.approx(layer_activations(row["s"], row["b"], row["h"], row["a"]), rel=1e-12)


def test_embedding_and_head_by_hand() -> None:
    assert embedding_activations(4, 2, 16) == 8 * 8 + 8 * 16
    assert head_activations(4, 2, 16, 100) == 4 * 8 * 16 + 4 * 8 * 100


@pytest.mark.parametrize("odd", [{"t": 0}, {"h": 0}, {"s": "a"}, {"ffn": 0}, {"b": math.nan}, {"a": True}])
def test_a_layer_of_no_size_is_refused(odd: dict) -> None:
    [(word, value)] = odd.items()
    with refused(f"{word} is {value!r}; it must be a whole number of at least 1."):
        layer_activations(**{"s": 16, "b": 2, "h": 8, "a": 2, **odd})


def test_another_way_to_recompute_is_refused() -> None:
    with refused("recompute is 'some'; it is none, selective or full."):
        layer_activations(1, 1, 1, 1, recompute="some")
