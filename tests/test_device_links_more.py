"""What the links between GPUs promise beyond right gradients: independence of what is sent, streams that stay apart."""

import random
import socket
import threading
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
import torch
from late import End, LateStreams, Rules
from test_device_links import Fleet, reference
from toys import assert_same, classifier, rows_of

import ppcourse as pp
from ppcourse.runtime.links import by_name as links
from ppcourse.runtime.links.device_link import DeviceLink, Form
from ppcourse.runtime.links.nccl import Nccl, in_one_order
from ppcourse.runtime.links.shared import Peer, SharedLink
from ppcourse.runtime.links.staged import TO_HOST
from ppcourse.runtime.machine.streams import streams_of
from ppcourse.runtime.processes import worker as workers
from ppcourse.runtime.values.wire import ALIGN
from ppcourse.schedules import SCHEDULES
from ppcourse.schedules.channels import Channel, Kind, channels

both = pytest.mark.parametrize("kind", ["nccl", "staged"])


def opened(kind: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> Fleet:
    fleet = Fleet(kind, folder)
    monkeypatch.setattr(workers, "open_link", fleet.open_link)
    return fleet


@both
def test_what_is_packed_stays_as_it_was_though_its_layer_writes_into_it_at_once(kind: str, tmp_path: Path) -> None:
    """A layer may hand on a buffer that it fills anew for each microbatch. The side streams stand still meanwhile."""
    fleet, plan, gate = Fleet(kind, tmp_path), pp.build("1f1b", 2, 1), threading.Event()
    ends = socket.socketpair()
    pair = [
        DeviceLink(plan, rank, SharedLink(plan, rank, {1 - rank: Peer(1 - rank, end)}), fleet.ferry(plan, rank))
        for rank, end in enumerate(ends)
    ]
    (message,) = channels(plan)[in_one_order(plan)[0]].sent
    for link in pair:
        link.begin()
    for name in (TO_HOST, message.channel):
        fleet.streams[0].sides[name].told.put(lambda: LateStreams.reach(gate))
    value = torch.ones(3)
    parcel = pair[0].pack(message, value)
    value.zero_()
    pair[0].send(parcel)
    gate.set()
    assert pair[1].receive(message).value.tolist() == [1.0, 1.0, 1.0]
    pair[0].finish()
    for end in ends:  # no gradient comes back any more
        end.shutdown(socket.SHUT_RDWR)
    for link in pair:
        link.close()


def test_cargo_of_any_sizes_crosses_in_one_piece_and_none_is_no_transfer() -> None:
    """Each tensor begins where a GPU reads any dtype well; of nothing there is no send, and so no receive."""
    channel, rules = Channel(0, 1, Kind.ACTIVATION), Rules()
    ferries = [Nccl(streams, {channel: End(rules, streams, channel)}) for streams in (LateStreams(), LateStreams())]
    for cargo in (
        [torch.tensor([True, False, True]), torch.arange(2.0).double(), torch.arange(5).short(), torch.ones(1)],
        [torch.empty(0, 3)],
    ):
        forms = [Form(tensor.dtype, tuple(tensor.shape), False) for tensor in cargo]
        ferries[0].load(channel, cargo).depart()
        came = ferries[1].unload(channel, forms, [])()
        assert [tensor.tolist() for tensor in came] == [tensor.tolist() for tensor in cargo]
        assert {tensor.storage_offset() * tensor.itemsize % ALIGN for tensor in came} == {0}
        ferries[0].finish()
    assert len(rules.wires[channel].sizes) == 1
    assert not rules.broken


def test_a_step_is_over_when_its_ferry_has_carried_all() -> None:
    done: list[str] = []

    class Logs:
        def carries(self, tensor: torch.Tensor) -> bool:
            return True

        def load(self, *_: Any) -> Any:
            return type("Load", (), {"aboard": lambda _: [], "depart": lambda _: done.append("departed")})()

        def finish(self) -> None:
            done.append("all carried")

    plan, ends = pp.build("1f1b", 2, 1), socket.socketpair()
    ferry: Any = Logs()
    link = DeviceLink(plan, 0, SharedLink(plan, 0, {1: Peer(1, ends[0])}), ferry)
    (message,) = channels(plan)[in_one_order(plan)[0]].sent
    link.begin()
    link.send(link.pack(message, torch.ones(3)))
    link.finish()
    assert done == ["departed", "all carried"]
    ends[0].shutdown(socket.SHUT_RDWR)
    link.close()


def test_jobs_of_one_process_use_the_same_side_streams(monkeypatch: pytest.MonkeyPatch) -> None:
    """A torch that is asked for ever more streams gives out old ones again, where NCCL may still be waiting."""
    made: list[Any] = []

    def new_stream(device: Any) -> int:
        made.append(device)
        return len(made)

    monkeypatch.setattr(torch.cuda, "Stream", new_stream)
    monkeypatch.setattr(torch.cuda, "stream", nullcontext)
    plan, device = pp.build("1f1b", 2, 2), torch.device("cuda:0")
    streams_of.cache_clear()
    for _ in range(3):
        ferry: Any = links._ferry("staged", plan, 0, device, None)
        for name in ("one", "another"):
            with ferry._streams.aside(name):
                pass
    streams_of.cache_clear()  # what stands in for streams here is not to outlive this
    assert made == [device, device]


def any_order(seed: int, ranks: int, m: int) -> list[str]:
    """Rows in which every rank takes microbatches as it likes; all forwards first, so that none waits in a circle."""
    rng = random.Random(seed)
    return [" ".join(f"{rank}{op}{i}" for op in "FB" for i in rng.sample(range(m), m)) for rank in range(ranks)]


@both
@pytest.mark.parametrize(("seed", "ranks"), [(0, 2), (1, 3), (2, 3)])
def test_whatever_order_each_rank_takes_microbatches_in_they_meet(
    kind: str, seed: int, ranks: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = pp.Schedule.from_rows(any_order(seed, ranks, 5))
    assert max(traffic.window for traffic in channels(plan).values()) > 1
    inputs, targets = rows_of(12)  # microbatches of two sizes: a mistaken match is seen
    (result,) = opened(kind, tmp_path, monkeypatch).run(plan, classifier(), inputs, targets)
    assert_same(result, reference(classifier(), inputs, targets))


@pytest.mark.slow
@both
@pytest.mark.parametrize("name", [name for name in SCHEDULES if name != "dualpipe"])  # which needs an even number
def test_every_schedule_runs_on_three_ranks_too(
    kind: str, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    inputs, targets = rows_of(13)
    (result,) = opened(kind, tmp_path, monkeypatch).run(pp.build(name, 3, 6), classifier(), inputs, targets)
    assert_same(result, reference(classifier(), inputs, targets))
