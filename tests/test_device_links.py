"""The links between GPUs, on stand-ins that keep the rules of streams and of NCCL (late.py): no GPU is needed, and
what can only be seen on one is not claimed here. Ranks are threads; stages, interpreter and carrier are the real ones.
"""

import copy
import socket
import threading
import weakref
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from late import HANGS, End, LateStreams, Rules
from torch import Tensor, nn
from toys import assert_same, classifier, rows_of

import ppcourse as pp
from ppcourse.runtime.errors import LinkError
from ppcourse.runtime.links import nccl
from ppcourse.runtime.links.device_link import AHEAD, DeviceLink, Ferry
from ppcourse.runtime.links.nccl import Nccl, communicators, in_one_order
from ppcourse.runtime.links.shared import Peer, SharedLink
from ppcourse.runtime.links.staged import Staged
from ppcourse.runtime.prepare import cut
from ppcourse.runtime.processes import worker as workers
from ppcourse.runtime.processes.board import Board
from ppcourse.runtime.processes.job import Job
from ppcourse.runtime.processes.worker import Worker
from ppcourse.runtime.result import Result
from ppcourse.runtime.stages.batch import batch_of
from ppcourse.schedules import SCHEDULES
from ppcourse.schedules.channels import Channel, Kind, channels
from ppcourse.schedules.schedule import Schedule

Made = Callable[[Schedule, int, LateStreams], Ferry]


class Fleet:
    """Ranks as threads, whose links have stand-ins under them."""

    def __init__(self, kind: str, folder: Path) -> None:
        self.kind, self.folder, self.rules = kind, folder, Rules()
        self.streams: dict[int, LateStreams] = {}
        self.rows: dict[int, int] = {}  # the thread of each rank's row

    def ferry(self, plan: Schedule, rank: int) -> Ferry:
        streams = self.streams[rank] = LateStreams()
        if self.kind == "staged":
            return Staged(streams)
        mine = [channel for channel in channels(plan) if rank in channel[:2]]
        return Nccl(streams, {channel: End(self.rules, streams, channel) for channel in mine})

    def open_link(
        self, name: str, plan: Schedule, rank: int, peers: dict[int, Peer], latency: float, *_: Any
    ) -> DeviceLink:
        return DeviceLink(plan, rank, SharedLink(plan, rank, peers, latency), self.ferry(plan, rank))

    def run(self, plan: Schedule, model: Any, inputs: Any, targets: Any, steps: int = 1) -> list[Result]:
        """As pp.run, with threads; one result a step, whose gradients add up."""
        batch = batch_of(inputs, targets, {}, plan.num_microbatches, "mean", None)
        made = cut(plan, model, "uniform")
        ranks = range(plan.num_ranks)
        board = Board(self.folder / "board", plan.num_ranks, create=True)
        peers: dict[int, dict[int, Peer]] = {rank: {} for rank in ranks}
        sockets: dict[int, list[socket.socket]] = {rank: [] for rank in ranks}
        for a in ranks:
            for b in range(a):
                one, other = socket.socketpair()
                peers[a][b], peers[b][a] = Peer(b, one), Peer(a, other)
                sockets[a].append(one), sockets[b].append(other)

        def life(rank: int) -> list[tuple[Any, dict[str, Tensor | None]]]:
            try:
                return steps_of(rank)
            except BaseException:
                for each in sockets[rank]:  # as a process that ends: nobody waits for it
                    each.shutdown(socket.SHUT_RDWR)
                raise

        def steps_of(rank: int) -> list[tuple[Any, dict[str, Tensor | None]]]:
            self.rows[rank] = threading.get_ident()
            mine = Worker(rank, board, peers[rank])
            mine.open(Job(plan, copy.deepcopy(made.of_rank(rank)), F.cross_entropy, link=f"{self.kind}: on stand-ins"))
            begin = {i: x for i, x in enumerate(batch.inputs) if plan.rank_of(0, i) == rank}
            end = {i: x for i, x in enumerate(batch.ends) if plan.rank_of(plan.num_stages - 1, i) == rank}
            told = [(mine.step(begin, end, {}), copy.deepcopy(mine.gradients())) for _ in range(steps)]
            mine.close()
            return told

        with ThreadPoolExecutor(plan.num_ranks) as pool:
            told = list(pool.map(life, ranks))
        assert not self.rules.broken
        assert not [sentence for streams in self.streams.values() for sentence in streams.broken]
        return [_result(made.aliases, [of_rank[step] for of_rank in told]) for step in range(steps)]


def _result(aliases: dict[str, tuple[str, ...]], told: list[tuple[Any, dict[str, Tensor | None]]]) -> Any:
    def total(names: tuple[str, ...]) -> Tensor | None:
        found = [next((grads[n] for n in names if n in grads), None) for _, grads in told]
        kept = [grad for grad in found if grad is not None]
        return sum(kept[1:], start=kept[0]) if kept else None

    result = type("Told", (), {})()
    result.loss = sum(report.loss for report, _ in told)
    result.grads = {name: total(names) for name, names in aliases.items()}
    result.messages = sum(report.messages for report, _ in told)
    result.message_bytes = sum(report.message_bytes for report, _ in told)
    return result


@pytest.fixture(params=["nccl", "staged"])
def fleet(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Fleet:
    made = Fleet(request.param, tmp_path)
    monkeypatch.setattr(workers, "open_link", made.open_link)
    return made


def reference(model: Any, inputs: Any, targets: Any) -> Result:
    return pp.reference_step(model, inputs, targets, loss_fn=F.cross_entropy)


@pytest.mark.thorough
@pytest.mark.parametrize("name", list(SCHEDULES))
def test_every_schedule_gives_the_unsplit_models_gradients(fleet: Fleet, name: str) -> None:
    for p, m in ((2, 4), (4, 8)):
        plan = pp.build(name, p, m)
        model = nn.Sequential(*classifier(), nn.Tanh(), nn.Tanh())
        inputs, targets = rows_of(2 * m + 1)  # microbatches of two sizes
        (result,) = fleet.run(plan, model, inputs, targets)
        assert_same(result, reference(model, inputs, targets))
        assert result.messages == sum(len(traffic.sent) for traffic in channels(plan).values())


ODD = ["0F0 0F1 0F2 0F3 0B0 0B1 0B2 0B3", "1F3 1F1 1F0 1F2 1B2 1B3 1B0 1B1"]


def test_orders_that_need_a_window_and_several_steps(fleet: Fleet) -> None:
    """Receives are posted in the sender's order, whatever the row wants first."""
    plan = pp.Schedule.from_rows(ODD)
    assert max(traffic.window for traffic in channels(plan).values()) == 4
    inputs, targets = rows_of(8)
    first, second = fleet.run(plan, classifier(), inputs, targets, steps=2)
    expected = reference(classifier(), inputs, targets)
    assert_same(first, expected)
    assert second.grads["0.weight"] == pytest.approx(2 * first.grads["0.weight"])  # nobody has cleared them
    assert first.message_bytes == second.message_bytes > 0


class Widen(nn.Module):
    """Hands on tensors of several dtypes, an empty one, one that is nobody's view, and what is no tensor."""

    def forward(self, x: Tensor) -> Any:
        return {"x": x, "wide": (x.t().contiguous().t(), x > 0, torch.arange(3)), "none": None, "n": 2, "no": x[:0]}


class Narrow(nn.Module):
    def forward(self, given: Any) -> Tensor:
        wide, positive, steps = given["wide"]
        assert (steps.tolist(), given["none"], given["no"].shape[0]) == ([0, 1, 2], None, 0)
        given["x"].mul_(1.0) if not given["x"].requires_grad else None
        return given["x"] * given["n"] + wide * positive


@pytest.mark.parametrize("name", ["1f1b", "zb-h1"])
def test_whatever_a_layer_hands_on_crosses(fleet: Fleet, name: str) -> None:
    model = nn.Sequential(*classifier()[:2], Widen(), Narrow(), *classifier()[2:])
    inputs, targets = rows_of(6)
    (result,) = fleet.run(pp.build(name, 2, 3), model, inputs, targets)
    assert_same(result, reference(model, inputs, targets))


def test_what_is_not_in_the_gpus_memory_goes_with_the_note(fleet: Fleet, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(LateStreams, "holds", lambda self, tensor: tensor.is_floating_point())
    model = nn.Sequential(*classifier()[:2], Widen(), Narrow(), *classifier()[2:])
    inputs, targets = rows_of(6)
    (result,) = fleet.run(pp.build("1f1b", 2, 3), model, inputs, targets)
    assert_same(result, reference(model, inputs, targets))


def test_a_tensor_inside_an_object_is_refused_where_it_is_handed_on(fleet: Fleet) -> None:
    class Boxed(nn.Module):
        def forward(self, x: Tensor) -> Any:
            return x, [threading.Thread, type("Box", (), {"x": x})()]

    fleet.streams[0] = LateStreams()
    plan = pp.build("1f1b", 2, 1)
    link = DeviceLink(plan, 0, SharedLink(plan, 0, {1: Peer(1, socket.socketpair()[0])}), fleet.ferry(plan, 0))
    message = channels(plan)[Channel(0, 1, Kind.ACTIVATION)].sent[0]
    with pytest.raises(TypeError, match="a tensor inside an object cannot cross"):
        link.pack(message, Boxed()(torch.ones(2)))
    link.close()


def test_neither_a_row_nor_the_stream_that_computes_waits_for_a_copy(tmp_path: Path, monkeypatch: Any) -> None:
    fleet = Fleet("staged", tmp_path)
    monkeypatch.setattr(workers, "open_link", fleet.open_link)
    fleet.run(pp.build("1f1b", 2, 4), classifier(), *rows_of(8))
    for rank, streams in fleet.streams.items():
        assert streams.host_waits
        assert fleet.rows[rank] not in streams.host_waits
        assert set(streams.sides) == {"to host", "to device"}


def test_no_more_comes_ahead_of_need_than_there_is_room_for(fleet: Fleet, monkeypatch: pytest.MonkeyPatch) -> None:
    """A row that is slow does not fill its GPU with what others have sent."""
    open_now, most, lock = [0], [0], threading.Lock()
    unload, receive = DeviceLink._take, DeviceLink.receive

    def take(self: DeviceLink, coming: Any) -> Any:
        with lock:
            open_now[0] += 1
            most[0] = max(most)
            most.append(open_now[0])
        return unload(self, coming)

    def use(self: DeviceLink, message: Any) -> Any:
        threading.Event().wait(0.01)
        with lock:
            open_now[0] -= 1
        return receive(self, message)

    monkeypatch.setattr(DeviceLink, "_take", take)
    monkeypatch.setattr(DeviceLink, "receive", use)
    fleet.run(pp.build("gpipe", 2, 16), classifier(), *rows_of(16))
    assert max(most) <= 2 * (AHEAD + 1)  # of two ranks


@pytest.mark.parametrize("end", ["load", "unload"])
def test_what_goes_wrong_in_a_thread_is_told_by_the_row(fleet: Fleet, end: str) -> None:
    class Sinks:
        def __init__(self, ferry: Ferry) -> None:
            self.ferry = ferry

        def __getattr__(self, name: str) -> Any:
            return getattr(self.ferry, name)

    def sinking(*_: Any) -> Any:
        raise RuntimeError("no route")

    usual = fleet.ferry

    def ferry(plan: Schedule, rank: int) -> Any:
        made = Sinks(usual(plan, rank))
        if end == "unload" and rank == 1:
            made.unload = sinking
        if end == "load" and rank == 0:
            made.load = lambda *_: type("Load", (), {"aboard": sinking})()
        return made

    fleet.ferry = ferry  # type: ignore[method-assign]
    with pytest.raises(LinkError, match=r"could not (send to rank 1|receive from rank 0): no route"):
        _alone(fleet, end)


def _alone(fleet: Fleet, end: str) -> None:
    """One message from rank 0 to rank 1, and what the rank at fault says."""
    plan = pp.build("1f1b", 2, 1)
    one, other = socket.socketpair()
    links = [
        DeviceLink(plan, rank, SharedLink(plan, rank, {1 - rank: Peer(1 - rank, side)}), fleet.ferry(plan, rank))
        for rank, side in enumerate((one, other))
    ]
    (message, *_) = channels(plan)[in_one_order(plan)[0]].sent
    for link in links:
        link.begin()
    links[0].send(links[0].pack(message, torch.ones(2)))
    links[0].finish() if end == "load" else links[1].receive(message)


# the stand-ins see what they are for


class Hasty(Staged):
    """Does not wait."""

    def unload(self, *arguments: Any) -> Any:
        landed = super().unload(*arguments)
        tensors = landed.__closure__
        found = [cell.cell_contents for cell in tensors or () if isinstance(cell.cell_contents, list)]
        return lambda: found[0]


def test_a_ferry_that_does_not_wait_is_found_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fleet = Fleet("staged", tmp_path)
    monkeypatch.setattr(workers, "open_link", fleet.open_link)
    monkeypatch.setattr(fleet, "ferry", lambda plan, rank: Hasty(LateStreams()))
    monkeypatch.setattr("late.LATE", 0.05)
    inputs, targets = rows_of(4)

    def compared() -> None:
        (result,) = fleet.run(pp.build("gpipe", 2, 2), classifier(), inputs, targets)
        assert_same(result, reference(classifier(), inputs, targets))

    # wrong numbers, or what autograd says of memory that changed behind its back
    with pytest.raises((AssertionError, RuntimeError, LinkError)):
        compared()


def test_nccls_rules_are_kept_by_their_stand_in(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("late.HANGS", 0.2)
    channel, back = Channel(0, 1, Kind.ACTIVATION), Channel(1, 0, Kind.GRADIENT)

    def told(*work: Callable[[list[End]], None]) -> str:
        rules, streams = Rules(), LateStreams()
        ends = [End(rules, streams, each) for each in (channel, channel, back, back)]
        for each in work:
            each(ends)
        for name in ("a", "b", "c", "d"):
            with streams.aside(name):
                mark = streams.mark()
            streams.wait_on_host(mark)
        return " ".join(rules.broken)

    def on(name: str, end: int, what: str, length: int = 4) -> Callable[[list[End]], None]:
        def work(ends: list[End]) -> None:
            with ends[end].streams.aside(name):
                getattr(ends[end], what)(torch.zeros(length, dtype=torch.uint8))

        return work

    assert told(on("a", 0, "send"), on("b", 1, "receive"), on("c", 2, "send"), on("d", 3, "receive")) == ""
    assert "hangs" in told(on("a", 0, "send"))
    assert "hangs" in told(on("b", 1, "receive"))
    assert "on two streams" in told(on("a", 0, "send"), on("c", 0, "send"), *[on("b", 1, "receive")] * 2)
    assert "8 bytes meet a receive of 4" in told(on("a", 0, "send", 8), on("b", 1, "receive"))
    crossed = told(on("a", 0, "send"), on("b", 1, "receive"), on("a", 2, "send"), on("d", 3, "receive"))
    assert crossed == f"{back} shares its stream with {channel}"


def test_memory_of_another_stream_is_to_be_waited_for_and_its_use_to_be_told() -> None:
    def told(waits: bool, tells: bool) -> str:
        streams = LateStreams()
        memory, mark, host = streams.new((4,), torch.uint8), streams.mark(), streams.new_on_host((4,), torch.uint8)
        with streams.aside("a"):
            streams.wait(mark) if waits else None
            streams.copy(host, memory)
            streams.uses(memory) if tells else None
        return " ".join(streams.broken)

    assert told(True, True) == ""
    assert told(False, True) == "memory of [4] is used before it is waited for"
    assert told(True, False) == "memory of [4] is used, and its allocator is not told"
    streams = LateStreams()
    streams.copy(streams.new((4,), torch.uint8), torch.zeros(4, dtype=torch.uint8))
    assert "pinned memory" in streams.broken[0]


# cases


def test_case_R05_all_communicators_are_made_and_used_before_the_first_step(monkeypatch: pytest.MonkeyPatch) -> None:  # noqa: N802
    """By all ranks in one order, also those that are no end of a channel: a first send alone would hang."""
    plan, told = pp.build("interleaved", 4, 8, 2), dict[int, list[tuple[str, Any]]]()

    class Distributed:
        class ProcessGroupNCCL:
            class Options:
                config = type("Config", (), {})()

        def __init__(self, rank: int) -> None:
            self.log = told.setdefault(rank, [])

        def new_group(self, ends: list[int], **options: Any) -> str:
            assert options["timeout"] > timedelta(days=1)  # how long a step may stand still is the driver's to say
            assert options["device_id"] == torch.device("cpu")  # makes it at once, and not when it is first used
            assert options["pg_options"].config.max_ctas == nccl.MAX_CTAS
            assert not hasattr(options["pg_options"], "of_group")  # torch writes into them: each group has its own
            options["pg_options"].of_group = options["group_desc"]
            self.log.append(("made", options["group_desc"]))
            return str(options["group_desc"])

        def isend(self, flat: Tensor, to: int, group: str) -> Any:
            return self.work("sent", group)

        def irecv(self, flat: Tensor, source: int, group: str) -> Any:
            return self.work("received", group)

        def work(self, what: str, group: str) -> Any:
            self.log.append((what, group))
            return type("Work", (), {"wait": lambda _: self.log.append(("stream waits", group))})()

    for rank in range(4):
        monkeypatch.setattr(torch.cuda, "synchronize", lambda at, rank=rank: told[rank].append(("host waits", str(at))))
        monkeypatch.setattr(nccl, "dist", Distributed(rank))
        known: dict[Channel, Any] = {}
        mine = communicators(plan, rank, torch.device("cpu"), known)
        assert list(mine) == [channel for channel in in_one_order(plan) if rank in channel[:2]]
        before = len(told[rank])
        communicators(pp.build("gpipe", 4, 8), rank, torch.device("cpu"), known)
        assert len(told[rank]) == before  # what another plan needs is there already
    for rank, log in told.items():  # introduced before the next is made, so that no two wait for each other crosswise
        due: list[tuple[str, Any]] = []
        for channel in in_one_order(plan):
            due.append(("made", str(channel)))
            if rank in channel[:2]:
                due.append(("sent" if rank == channel.source else "received", str(channel)))
                due += [("stream waits", str(channel)), ("host waits", "cpu")]
        assert log == due


def test_a_step_over_nccl_is_over_when_all_is_sent_and_what_is_sent_lies_about_no_longer() -> None:
    rules, channel, streams, other = Rules(), Channel(0, 1, Kind.ACTIVATION), LateStreams(), LateStreams()
    ferry, taken = Nccl(streams, {channel: End(rules, streams, channel)}), End(rules, other, channel)

    def take() -> None:
        with other.aside(channel):
            taken.receive(other.new((64,), torch.uint8))

    def sent() -> weakref.ref[Tensor]:
        load = ferry.load(channel, [torch.ones(8)])
        load.depart()
        return weakref.ref(load.flat)

    first = sent()
    take()
    ferry._streams.wait_on_host(ferry._underway[0][0])
    second = sent()  # and by now it is known that the first has gone
    assert first() is None
    assert second() is not None
    over = threading.Thread(target=ferry.finish)
    over.start()
    over.join(0.05)
    assert over.is_alive()
    take()
    over.join(HANGS)
    assert not over.is_alive()
    assert second() is None


@pytest.mark.parametrize(
    ("rows", "sentence"),
    [
        (["0F0 0F1 0B0 0B1", "1F0 1B0 1B1"], "1F1"),
        (["0F0 0B0 0B1", "1F0 1B0 1F1 1B1"], "0F1"),
        (["0F0 0F1 0B0", "1F0 1B0 1F1 1B1"], "0B1"),
        (["0F0 0F1 0F1 0B0 0B1", "1F0 1B0 1F1 1B1"], "0F1"),
    ],
)
def test_case_R06_a_send_that_nobody_receives_is_refused_by_name(rows: list[str], sentence: str) -> None:  # noqa: N802
    """Gloo would finish some of these, NCCL none: what one rank sends, another one takes, no more and no less."""
    with pytest.raises(pp.ScheduleError, match=sentence):
        pp.check(pp.Schedule.from_rows(rows))


@pytest.mark.parametrize("name", list(SCHEDULES))
def test_case_R06_every_schedule_takes_what_is_sent_and_nothing_else(name: str) -> None:  # noqa: N802
    for p, m in ((2, 4), (3, 6), (4, 8)):
        if name == "dualpipe" and p % 2:
            continue
        for channel, traffic in channels(pp.build(name, p, m)).items():
            assert sorted(traffic.sent) == sorted(traffic.used), channel
            assert len(set(traffic.sent)) == len(traffic.sent)


@pytest.mark.thorough
def test_case_R07_five_hundred_microbatches_are_as_many_single_transfers(tmp_path: Path, monkeypatch: Any) -> None:  # noqa: N802
    """None of them in a group with others, which is what hangs."""
    fleet = Fleet("nccl", tmp_path)
    monkeypatch.setattr("late.LATE", 0.0)
    monkeypatch.setattr(workers, "open_link", fleet.open_link)
    inputs, targets = rows_of(512)
    plan = pp.build("gpipe", 2, 512)
    (result,) = fleet.run(plan, nn.Sequential(nn.Linear(4, 3).double(), nn.Tanh()), inputs, targets)
    assert result.messages == sum(len(wire.sizes) for wire in fleet.rules.wires.values()) == 2 * 512
