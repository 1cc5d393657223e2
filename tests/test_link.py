"""Both ends of a channel agree on what each message brings, whatever carries it and whatever order it is used in."""

import random
import threading
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from toys import assert_same, by_value, classifier, rows_of

import ppcourse as pp
from ppcourse.analysis.buffers import GLOO_ROOM
from ppcourse.runtime.errors import LinkError
from ppcourse.runtime.links import ends
from ppcourse.runtime.links.ends import Room, check_place, place_of
from ppcourse.runtime.links.level import Level
from ppcourse.runtime.links.link import GlooLink
from ppcourse.runtime.values import wire
from ppcourse.runtime.values.wire import Head
from ppcourse.schedules.channels import Channel, Kind, Message, channels, window

by_value(__name__)
quick = settings(max_examples=300, deadline=None, derandomize=True)
CHANNEL = Channel(0, 1, Kind.ACTIVATION)


def messages(count: int) -> list[Message]:
    return [Message(CHANNEL, 0, i) for i in range(count)]


@st.composite
def used_orders(draw: st.DrawFn) -> list[int]:
    """An order in which messages 0, 1, … are used; near the order they are sent in, or far from it."""
    count, reach = draw(st.integers(1, 9)), draw(st.integers(0, 8))
    rng = random.Random(draw(st.integers(0, 2**32)))
    return sorted(range(count), key=lambda place: place + rng.uniform(0, reach))


lengths = st.one_of(st.integers(1, 200_000), st.just(GLOO_ROOM), st.just(GLOO_ROOM + 1))


def at_the_sender(room: Room, sizes: list[list[int]]) -> Iterator[int]:
    for step in sizes:
        for size in step:
            yield room.next()
            room.note(size)


def at_the_receiver(room: Room, sizes: list[list[int]], used: list[int], ahead: int) -> Iterator[int]:
    """As Incoming does it: post `ahead` receives, then one for each message used, in the order of `used`."""
    for step in sizes:
        noted = 0
        for _ in range(min(ahead, len(step))):
            yield room.next()
        for number, place in enumerate(used):
            while noted <= place:  # messages arrive in the order they are sent
                room.note(step[noted])
                noted += 1
            if ahead + number < len(step):
                yield room.next()


@pytest.mark.thorough
@quick
@given(used_orders(), st.data())
def test_both_ends_count_to_the_same_room(used: list[int], data: st.DataObject) -> None:
    count, steps = len(used), data.draw(st.integers(1, 3))
    sizes = data.draw(st.lists(st.lists(lengths, min_size=count, max_size=count), min_size=steps, max_size=steps))
    sent = messages(count)
    ahead = window(sent, [sent[place] for place in used]) + 1
    sender = list(at_the_sender(Room(ahead, count), sizes))
    receiver = list(at_the_receiver(Room(ahead, count), sizes, used, ahead))
    assert sender == receiver


@pytest.mark.thorough
@quick
@given(st.integers(1, 6), st.lists(lengths, min_size=1, max_size=9))
def test_no_message_needs_two_transfers_once_shapes_repeat(ahead: int, sizes: list[int]) -> None:
    rooms = list(at_the_sender(Room(ahead, len(sizes)), [sizes] * 3))
    assert all(room >= size for room, size in zip(rooms[len(sizes) :], sizes * 2, strict=True))
    assert rooms == sorted(rooms)


def test_the_first_messages_find_room_for_sixteen_kilobytes() -> None:
    assert list(at_the_sender(Room(2, 3), [[1, 1, 1]])) == [16 * 1024] * 3


def test_a_message_that_is_not_the_one_awaited_is_named_and_never_used() -> None:
    check_place(messages(2)[1], Head(10, 1, 0, stage=0, microbatch=1, sent_at=0))
    sentence = r"expected the activation of stage 0, microbatch 1, but the gradient of stage 2, microbatch 3 came"
    with pytest.raises(LinkError, match=sentence):
        check_place(messages(2)[1], Head(10, 1, 1, stage=2, microbatch=3, sent_at=0))


def test_what_buffers_took_is_of_one_step() -> None:
    link = object.__new__(GlooLink)
    ends = [SimpleNamespace(level=Level(), begin=lambda: None) for _ in range(2)]
    link._in, link._out = {CHANNEL: ends[0]}, {CHANNEL: ends[1]}
    for size, end in zip((3, 5), ends, strict=True):
        end.level.add(size)
        end.level.add(2)
        end.level.add(-size)
    assert link.buffers == (5, 7)
    link.begin()
    assert link.buffers == (2, 2)


# on ranks, over each link

each_link = pytest.mark.parametrize("link", ["gloo", "shared"])


@each_link
@pytest.mark.parametrize("name", ["gpipe", "1f1b", "interleaved"])
def test_the_same_gradients_come_over_every_link(link: str, name: str) -> None:
    inputs, targets = rows_of(10)
    result = pp.run(name, classifier(), inputs, targets, p=3, m=4, loss_fn=F.cross_entropy, link=link)
    assert result.link.partition(":")[0] == link
    assert_same(result, pp.reference_step(classifier(), inputs, targets, loss_fn=F.cross_entropy))


def test_every_link_counts_the_same_messages_and_bytes() -> None:
    runs = [
        pp.run("1f1b", classifier(), *rows_of(8), p=3, m=4, loss_fn=F.cross_entropy, link=link)
        for link in ("gloo", "shared")
    ]
    assert runs[0].messages == runs[1].messages == 2 * 2 * 4
    assert runs[0].message_bytes == runs[1].message_bytes


@each_link
def test_orders_that_need_a_window_run_over_every_link(link: str) -> None:
    rows = ["0F0 0F1 0F2 0F3 0B0 0B1 0B2 0B3", "1F3 1F1 1F0 1F2 1B2 1B3 1B0 1B1"]
    inputs, targets = rows_of(8)
    result = pp.run(rows, classifier(), inputs, targets, loss_fn=F.cross_entropy, link=link)
    assert_same(result, pp.reference_step(classifier(), inputs, targets, loss_fn=F.cross_entropy))


class Carry(nn.Module):
    """Hands on a tensor of a dtype beside the data."""

    def __init__(self, dtype: torch.dtype) -> None:
        super().__init__()
        self.dtype = dtype

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        return x, torch.tensor([0, 1, 1]).to(self.dtype)


class Use(nn.Module):
    def __init__(self, dtype: torch.dtype) -> None:
        super().__init__()
        self.dtype = dtype

    def forward(self, given: tuple[Tensor, Tensor]) -> Tensor:
        assert given[1].dtype == self.dtype
        return given[0] + given[1].to(torch.complex64).real.double()


@each_link
@pytest.mark.parametrize(
    "dtype",
    [torch.bfloat16, torch.float16, torch.bool, torch.int8, torch.complex64, torch.float8_e4m3fn],
    ids=str,
)
def test_case_R39_dtypes_cross_over_every_link(link: str, dtype: torch.dtype) -> None:  # noqa: N802
    model = [nn.Linear(4, 3).double(), Carry(dtype), Use(dtype)]
    inputs, targets = rows_of(4)
    result = pp.run("1f1b", model, inputs, targets, p=2, m=2, loss_fn=F.cross_entropy, link=link, partition=(2, 1))
    assert_same(result, pp.reference_step(model, inputs, targets, loss_fn=F.cross_entropy))


def test_a_step_over_gloo_is_over_when_all_is_sent_and_tells_what_could_not_be(monkeypatch: pytest.MonkeyPatch) -> None:
    plan, gone = pp.build("1f1b", 2, 1), threading.Event()
    errors: list[Exception] = []

    class Work:
        def wait(self) -> None:
            gone.wait(60)
            if errors:
                raise errors[0]

    monkeypatch.setattr(ends, "_group", lambda: type("Group", (), {"send": lambda *_: Work()})())
    link = GlooLink(plan, 0)
    (message,) = next(traffic.sent for channel, traffic in channels(plan).items() if channel.source == 0)
    link.send(link.pack(message, torch.ones(3)))
    over = threading.Thread(target=link.finish)
    over.start()
    over.join(0.05)
    assert over.is_alive()
    gone.set()
    over.join(60)
    assert not over.is_alive()
    errors.append(RuntimeError("no route"))
    link.send(link.pack(message, torch.ones(3)))
    with pytest.raises(LinkError, match="could not send to rank 1: no route"):
        link.finish()
    link.close()


def test_kinds_and_rests_of_long_messages_do_not_meet_over_gloo() -> None:
    """Between two ranks of an interleaved plan, both kinds go both ways."""
    tags = [ends._tag(Channel(0, 1, kind), lane) for kind in Kind for lane in (0, 1)]
    assert len(set(tags)) == len(tags)


def test_a_message_that_was_not_expected_over_gloo_is_an_error_and_no_number(monkeypatch: pytest.MonkeyPatch) -> None:
    plan = pp.build("1f1b", 2, 2)
    expected, other = channels(plan)[CHANNEL].sent

    class Group:
        def recv(self, buffers: list[Tensor], *_: int) -> Any:
            came = wire.pack(torch.ones(3), *place_of(other), room=buffers[0].numel(), visible=1)
            buffers[0][: came.numel()].copy_(came)
            return SimpleNamespace(wait=lambda: None)

    monkeypatch.setattr(ends, "_group", Group)
    link = GlooLink(plan, 1)
    link.begin()
    with pytest.raises(
        LinkError, match=r"expected the activation of stage 0, microbatch 0, but the activation of .* 1 cam"
    ):
        link.receive(expected)
    link.close()
