"""Messages through memory that two ranks map: whole, in order, never waited for by the sender, and given back."""

import os
import resource
import select
import socket
import subprocess
import sys
import textwrap
import threading
import time
import weakref
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from toys import by_value, classifier, no_rank_starts, rows_of, soon

import ppcourse as pp
from ppcourse.runtime.errors import LinkError
from ppcourse.runtime.links import carriers, crates
from ppcourse.runtime.links.carriers import carrier
from ppcourse.runtime.links.going import Afloat
from ppcourse.runtime.links.meeting import listen, meet
from ppcourse.runtime.links.shared import INLINE, Peer, SharedLink
from ppcourse.runtime.values import wire
from ppcourse.schedules.channels import Channel, Kind, Message, incoming

by_value(__name__)
pytestmark = pytest.mark.skipif(bool(carriers.missing()), reason=carriers.missing())


class Pair:
    """Both ranks of a plan for two, in this process."""

    def __init__(self, plan: pp.Schedule, other: pp.Schedule | None = None, latency: float = 0.0) -> None:
        self.plan = plan
        self.sockets = socket.socketpair()
        self.sender = SharedLink(plan, 0, {1: Peer(1, self.sockets[0])})
        self.receiver = SharedLink(other or plan, 1, {0: Peer(0, self.sockets[1])}, latency)
        self.sender.begin()
        self.receiver.begin()

    def message(self, microbatch: int) -> Message:
        found = incoming(self.plan, pp.Action.parse(f"1F{microbatch}"))
        assert found
        return found

    def send(self, microbatch: int, value: Any) -> None:
        self.sender.send(self.sender.pack(self.message(microbatch), value))

    def receive(self, microbatch: int) -> Any:
        return self.receiver.receive(self.message(microbatch)).value

    def taken(self) -> tuple[int, int]:
        """The most bytes that messages took so far: put aside by the receiver, and on their way from the sender."""
        return self.receiver.buffers[0], self.sender.buffers[1]

    def crates(self) -> list[crates.Crate]:
        return self.sender._crates[1]._crates

    def close(self) -> None:
        self.sender.close()
        self.receiver.close()
        for end in self.sockets:
            end.close()


@pytest.fixture
def pair() -> Iterator[Pair]:
    made = Pair(pp.build("gpipe", 2, 4))
    yield made
    made.close()


def of_bytes(count: int, value: int = 1) -> Tensor:
    return torch.full((count,), value, dtype=torch.uint8)


LARGE = 4 * INLINE
SIZES = [0, 1, 1000, INLINE - 1000, INLINE, INLINE + 1, 10**6]


@pytest.mark.parametrize("size", SIZES)
def test_what_is_received_was_sent_and_is_the_receivers_own(pair: Pair, size: int) -> None:
    sent = torch.arange(size, dtype=torch.float32), [torch.ones(3, dtype=torch.bfloat16, requires_grad=True), "word"]
    pair.send(0, sent)
    sent[0].zero_()  # the sender may go on
    got, [short, word] = pair.receive(0)
    assert torch.equal(got, torch.arange(size, dtype=torch.float32))
    assert (short.tolist(), short.dtype, short.requires_grad, word) == ([1, 1, 1], torch.bfloat16, True, "word")
    for tensor in (got, short.detach()):
        assert tensor.data_ptr() % 64 == 0
        tensor.add_(1)
    assert sent[1][0].tolist() == [1, 1, 1]
    assert (len(pair.crates()) == 1) == (4 * size > INLINE - 1000)


def test_a_crate_carries_one_message_at_a_time(pair: Pair) -> None:
    pair.send(0, of_bytes(LARGE, 1))
    first = pair.receive(0)
    view = first[5:7]
    del first
    pair.send(1, of_bytes(LARGE, 2))  # the first message is still looked at
    assert pair.receive(1).unique().tolist() == [2]
    assert view.tolist() == [1, 1]
    assert len(pair.crates()) == 2
    del view
    pair.send(2, of_bytes(LARGE, 3))
    pair.send(3, of_bytes(LARGE, 4))
    assert [pair.receive(i).unique().tolist() for i in (2, 3)] == [[3], [4]]
    assert len(pair.crates()) == 2


def test_a_fork_of_a_rank_gives_nothing_back(pair: Pair) -> None:
    pair.send(0, of_bytes(LARGE))
    got = pair.receive(0)
    if (child := os.fork()) == 0:
        del got
        os._exit(0)
    os.waitpid(child, 0)
    [crate] = pair.crates()
    assert not crate.empty
    del got
    assert crate.empty


def test_what_finds_no_crate_goes_through_the_socket(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(crates, "MOST", 3)
    pair = Pair(pp.build("gpipe", 2, 8))
    for i in range(8):
        pair.send(i, of_bytes(20 * LARGE, i))
    assert [pair.receive(i).unique().tolist() for i in range(8)] == [[i] for i in range(8)]
    assert len(pair.crates()) == 3
    pair.close()


def test_messages_may_grow_when_there_are_no_more_crates(monkeypatch: pytest.MonkeyPatch, pair: Pair) -> None:
    monkeypatch.setattr(crates, "MOST", 1)
    sizes = [LARGE, 10 * LARGE, 2 * LARGE, 50 * LARGE]
    for i, size in enumerate(sizes):
        pair.send(i, of_bytes(size, i))
        assert not pair.crates()[0].empty  # it was the crate that carried it
        assert torch.equal(pair.receive(i), of_bytes(size, i))
    assert pair.crates()[0].size >= sizes[-1]


def test_where_no_memory_can_be_made_everything_goes_through_the_socket(
    monkeypatch: pytest.MonkeyPatch, pair: Pair
) -> None:
    def refuses(name: str) -> int:
        raise OSError(24, "Too many open files")

    monkeypatch.setattr(os, "memfd_create", refuses)
    pair.send(0, of_bytes(100 * LARGE, 7))
    assert pair.receive(0).unique().tolist() == [7]
    assert pair.crates() == []


def test_a_receiver_without_file_descriptors_says_so(pair: Pair) -> None:
    pair.send(0, of_bytes(LARGE))
    usual = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (3, usual[1]))
    try:
        with pytest.raises(LinkError, match="could not receive from rank 0: this process has no file descriptor left"):
            pair.receive(0)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, usual)


@pytest.mark.thorough
@pytest.mark.parametrize(("count", "size"), [(512, 8), (512, 20_000), (crates.MOST + 16, LARGE)])
def test_sends_never_wait(count: int, size: int) -> None:
    """All messages are on their way before anybody looks: more than a socket holds, and more than there are crates."""
    pair = Pair(pp.build("gpipe", 2, count))
    for i in range(count):
        pair.send(i, of_bytes(size, i % 256))
    assert pair.sender.sent_messages == count
    assert pair.sender.sent_bytes > count * size
    for i in range(count):
        assert pair.receive(i).unique().tolist() == [i % 256]
    pair.sender.finish()
    pair.close()


def test_no_message_overtakes_one_that_waits_for_room(monkeypatch: pytest.MonkeyPatch, pair: Pair) -> None:
    go_on = threading.Event()

    class Stands:
        def register(self, *of: object) -> None: ...

        def poll(self) -> None:
            go_on.wait()

    monkeypatch.setattr(select, "poll", Stands)
    pair.sender._crates[1] = NoCrates()
    pair.send(0, of_bytes(10**6, 1))
    got: list[Tensor] = []
    reader = threading.Thread(target=lambda: got.extend(pair.receive(i) for i in (0, 1)))
    reader.start()
    assert soon(lambda: bool(select.select([], [pair.sockets[0]], [], 0)[1]))  # there is room again
    pair.send(1, of_bytes(1, 2))
    go_on.set()
    reader.join(10)
    assert [(len(tensor), tensor.unique().tolist()) for tensor in got] == [(10**6, [1]), (1, [2])]


def test_finish_waits_until_everything_is_sent(pair: Pair) -> None:
    done = threading.Event()
    pair.sender._crates.clear()
    pair.sender._crates[1] = NoCrates()
    pair.send(0, of_bytes(10**7))
    thread = threading.Thread(target=lambda: (pair.sender.finish(), done.set()))
    thread.start()
    assert not done.wait(0.2)
    pair.receive(0)
    assert done.wait(5)
    thread.join()


class NoCrates(crates.Crates):
    def take(self, length: int) -> None:
        return None


def test_messages_may_be_used_in_any_order() -> None:
    rows = ["0F0 0F1 0F2 0B2 0B1 0B0", "1F2 1F0 1F1 1B2 1B1 1B0"]
    pair = Pair(pp.Schedule.from_rows(rows))
    for i in range(3):
        pair.send(i, of_bytes(LARGE, i))
    assert [pair.receive(i)[0].item() for i in (2, 0, 1)] == [2, 0, 1]
    pair.close()


def test_what_is_on_its_way_and_what_is_put_aside_is_counted(pair: Pair) -> None:
    message = wire.pack(of_bytes(LARGE)).numel()
    for i in (0, 1):
        pair.send(i, of_bytes(LARGE))
    assert pair.taken() == (0, 2 * message)
    held = [pair.receive(1)]  # 0 lies before it
    assert pair.taken() == (message, 2 * message)
    pair.send(2, of_bytes(LARGE))  # both have arrived, so that it is alone
    held += [pair.receive(0), pair.receive(2)]
    assert pair.taken() == (message, 2 * message)
    pair.sender.begin()
    pair.receiver.begin()
    assert pair.taken() == (0, 0)


def test_what_the_socket_has_is_no_longer_on_its_way(pair: Pair) -> None:
    message = wire.pack(of_bytes(100)).numel()
    for i in range(4):
        pair.send(i, of_bytes(100))
    assert pair.taken() == (0, message)  # one after the other
    assert len(pair.receive(3)) == 100
    assert pair.taken() == (3 * message, message)


def test_what_the_socket_has_no_room_for_is_on_its_way() -> None:
    pair = Pair(pp.build("gpipe", 2, 200))
    for i in range(200):
        pair.send(i, of_bytes(INLINE - 1000))
    most = pair.taken()[1]
    assert most > 100 * (INLINE - 1000)
    for i in range(200):
        pair.receive(i)
    pair.sender.finish()
    pair.sender.begin()
    assert pair.taken()[1] == 0
    pair.close()


@dataclass
class Five:
    """Five bytes on their way."""

    size: int = 5
    under_way: bool = True


def test_each_channel_is_counted_at_its_most() -> None:
    """Whether or not that is at the same time, as buffers of their own would be."""
    afloat, (there, back) = Afloat(), [Channel(0, 1, kind) for kind in Kind]
    first = Five()
    afloat.add(there, first)
    first.under_way = False
    afloat.look()
    afloat.add(back, Five())
    assert afloat.most == 10
    afloat.add(back, Five())
    assert afloat.most == 15
    afloat.reset()
    assert afloat.most == 10


def test_a_crate_that_is_filled_again_does_not_bring_its_last_message_back(pair: Pair) -> None:
    """Both directions of a rank's messages share its crates."""
    for i in range(4):
        pair.send(i, of_bytes(LARGE))
        pair.receive(i)
    assert len(pair.crates()) == 1
    assert pair.taken() == (0, wire.pack(of_bytes(LARGE)).numel())


def test_a_message_that_is_not_the_one_expected_is_named() -> None:
    other = pp.Schedule.from_rows(["0F1 0F0 0B1 0B0", "1F1 1F0 1B1 1B0"])
    pair = Pair(pp.build("gpipe", 2, 2), other)
    pair.send(0, of_bytes(1))
    sentence = "could not receive from rank 0: expected the activation of stage 0, microbatch 1, but the activation of"
    with pytest.raises(LinkError, match=sentence + " stage 0, microbatch 0 came"):
        pair.receive(1)
    pair.close()


def test_a_kind_that_nobody_expects_is_named(pair: Pair) -> None:
    message = pair.message(0)
    parcel = pair.sender.pack(message, of_bytes(1))
    parcel.buffer[16] = 1  # a gradient, by its head
    pair.sender.send(parcel)
    with pytest.raises(LinkError, match="but the gradient of stage 0, microbatch 0 came: messages are out of order"):
        pair.receive(0)


def test_a_rank_that_is_gone_wakes_who_waits_for_it(pair: Pair) -> None:
    threading.Timer(0.2, pair.sockets[0].shutdown, [socket.SHUT_RDWR]).start()
    with pytest.raises(LinkError, match="could not receive from rank 0: its process is gone"):
        pair.receive(0)


@pytest.mark.parametrize("size", [8, 10**7])
def test_sending_to_a_rank_that_is_gone_is_an_error_now_or_at_the_end(pair: Pair, size: int) -> None:
    pair.sender._crates[1] = NoCrates()
    if size > 8:  # it goes while a long message is on its way
        threading.Timer(0.2, pair.sockets[1].close).start()
    else:
        pair.sockets[1].close()

    def send_it() -> None:
        pair.send(0, of_bytes(size))
        pair.sender.finish()

    with pytest.raises(LinkError, match="could not send to rank 1: "):
        send_it()


def test_a_message_arrives_when_it_is_sent_however_late_it_is_looked_at(pair: Pair) -> None:
    before = time.perf_counter()
    pair.send(0, of_bytes(1))
    pair.send(1, of_bytes(LARGE))
    after = time.perf_counter()
    time.sleep(0.05)
    for i in (0, 1):
        assert before <= pair.receiver.receive(pair.message(i)).at <= after


def test_a_hop_lasts_its_latency_longer() -> None:
    pair = Pair(pp.build("gpipe", 2, 1), latency=3.0)
    before = time.perf_counter()
    pair.send(0, of_bytes(1))
    assert before + 3 <= pair.receiver.receive(pair.message(0)).at <= time.perf_counter() + 3
    pair.close()


def test_what_finds_no_room_arrives_when_there_is_room(pair: Pair) -> None:
    pair.sender._crates[1] = NoCrates()
    pair.send(0, of_bytes(10**7))
    pair.send(1, of_bytes(1))
    time.sleep(0.1)
    looked = time.perf_counter()
    for i in (0, 1):
        assert pair.receiver.receive(pair.message(i)).at >= looked


@pytest.mark.parametrize("backlog", [False, True])
def test_a_message_is_let_go_once_it_is_sent(pair: Pair, backlog: bool) -> None:
    pair.sender._crates[1] = NoCrates()
    parcel = pair.sender.pack(pair.message(0), of_bytes(10**6 if backlog else 100))
    alive = weakref.ref(parcel.buffer.untyped_storage())
    pair.sender.send(parcel)
    del parcel
    assert (alive() is not None) == backlog
    pair.receive(0)
    assert soon(lambda: alive() is None)


def test_nothing_stays_open_when_jobs_are_over() -> None:
    peers = [Peer(1 - rank, end) for rank, end in enumerate(socket.socketpair())]
    plan = pp.build("gpipe", 2, 8)
    before = psutil.Process().num_fds()
    for _ in range(3):
        links = [SharedLink(plan, rank, {1 - rank: peers[rank]}) for rank in range(2)]
        for link in links:
            link.begin()
        messages = [incoming(plan, pp.Action.parse(f"1F{i}")) for i in range(8)]
        for message in messages:
            links[0].send(links[0].pack(message, of_bytes(LARGE)))
        got = [links[1].receive(message).value for message in messages]
        for link in links:
            link.close()
        assert [tensor[0].item() for tensor in got] == [1] * 8  # what a learner keeps stays
        del got, links, link
    assert psutil.Process().num_fds() == before


# meeting


@pytest.mark.parametrize("length", [0, 150])
def test_ranks_meet_in_a_folder_whatever_the_length_of_its_name(tmp_path: Path, length: int) -> None:
    folder = tmp_path / ("x" * length)
    folder.mkdir(exist_ok=True)
    here = Path.cwd()
    doors = [listen(rank, 3, folder) for rank in range(3)]
    met = {rank: meet(rank, 3, folder, doors[rank]) for rank in (2, 1, 0)}  # to knock waits for nobody
    assert Path.cwd() == here
    for one in range(3):
        assert sorted(met[one]) == [other for other in range(3) if other != one]
        for other, end in met[one].items():
            end.sendall(bytes([one]))
            assert met[other][one].recv(1) == bytes([one])
    for ends in met.values():
        for end in ends.values():
            end.close()


# which link, and why


def test_auto_is_shared_where_it_can_be_and_else_gloo_with_the_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    assert carrier("auto", 2) == carrier("shared", 2) == "shared: the ranks are processes of one host"
    assert carrier("gloo", 2) == "gloo: it was asked for"
    assert carrier("auto", 1).startswith("none")
    monkeypatch.setattr(carriers, "missing", lambda: "this system has none")
    assert carrier("auto", 2) == "gloo: this system has none"
    with pytest.raises(ValueError, match="link is 'shared', but this system has none; say 'gloo', or leave it out"):
        carrier("shared", 2)


@pytest.mark.parametrize("lacks", ["memfd_create", "permission"])
def test_what_a_system_lacks_is_found_out(monkeypatch: pytest.MonkeyPatch, lacks: str) -> None:
    def refuses(name: str) -> int:
        raise PermissionError(1, "Operation not permitted")

    carriers.missing.cache_clear()
    if lacks == "permission":
        monkeypatch.setattr(os, "memfd_create", refuses)
    else:
        monkeypatch.delattr(os, "memfd_create")
    try:
        assert carriers.missing().startswith("this system ")
        assert carrier("auto", 2).startswith("gloo: this system ")
    finally:
        carriers.missing.cache_clear()


def test_a_link_that_cannot_be_had_starts_no_rank(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(carriers, "missing", lambda: "this system has none")
    with no_rank_starts(monkeypatch), pytest.raises(ValueError, match="but this system has none; say 'gloo'"):
        pp.run("gpipe", classifier(), *rows_of(4), p=2, m=2, loss_fn=F.cross_entropy, link="shared")


# on ranks


class Wide(nn.Module):
    """Hands on a number of rows, each repeated so often that the message has `size` bytes."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.size = size

    def forward(self, x: Tensor) -> Tensor:
        return x.expand(self.size // (x.numel() * x.element_size()), *x.shape)


class Narrow(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x.mean(0)


@pytest.mark.thorough
def test_a_message_of_a_hundred_megabytes_crosses_and_its_gradient_comes_back() -> None:
    size = 100 * 2**20
    model = [nn.Linear(4, 4).double(), Wide(size), Narrow(), nn.Linear(4, 3).double()]
    inputs, targets = rows_of(4)
    result = pp.run("1f1b", model, inputs, targets, p=2, m=2, loss_fn=F.cross_entropy, partition=(2, 2))
    assert result.link.startswith("shared")
    assert result.message_bytes > 4 * size
    expected = pp.reference_step(model, inputs, targets, loss_fn=F.cross_entropy)
    assert result.loss == pytest.approx(expected.loss)
    torch.testing.assert_close(result.grads["0.weight"], expected.grads["0.weight"])


@pytest.mark.thorough
def test_messages_may_grow_and_shrink_from_step_to_step() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 64), nn.Tanh(), nn.Linear(64, 3)).double()
    inputs, targets = rows_of(4 * 200)
    lengths = (1, 50, 3, 200, 100, 7)  # 2 KB to 400 KB a message
    batches = [(inputs[: 4 * n], targets[: 4 * n]) for n in lengths]
    results = [
        pp.train("gpipe", model, batches, steps=6, loss_fn=F.cross_entropy, optimizer=torch.optim.SGD, p=p, m=4)
        for p in (1, 3)
    ]
    assert results[1].link.startswith("shared")
    assert results[1].losses == pytest.approx(results[0].losses, rel=1e-12)


@pytest.mark.slow
def test_eight_ranks_exchange_512_microbatches() -> None:
    model = nn.Sequential(*(nn.Linear(4, 4).double() for _ in range(8)))
    inputs, targets = rows_of(512)
    for name in ("gpipe", "1f1b"):
        result = pp.run(name, model, inputs, targets, p=8, m=512, loss_fn=F.cross_entropy)
        expected = pp.reference_step(model, inputs, targets, loss_fn=F.cross_entropy)
        assert result.loss == pytest.approx(expected.loss)
        assert result.messages == 2 * 7 * 512


SMALL_SHM = """
    import errno, torch, ppcourse as pp
    from torch import nn
    try:
        open("/dev/shm/more", "wb").write(bytes(8192))
        raise SystemExit("/dev/shm has room")
    except OSError as error:
        assert error.errno == errno.ENOSPC
    model = nn.Sequential(nn.Linear(8, 100_000), nn.Linear(100_000, 3))
    x, y = torch.randn(16, 8), torch.randint(3, (16,))
    result = pp.run("gpipe", model, x, y, loss_fn=nn.functional.cross_entropy, p=2, m=4)
    assert result.link.startswith("shared"), result.link
    assert result.message_bytes > 10_000_000
    print("done")
"""


@pytest.mark.thorough
def test_case_R85_a_full_dev_shm_does_not_matter(tmp_path: Path) -> None:  # noqa: N802
    """As in a container: the script runs where /dev/shm is one page, and full."""
    script = tmp_path / "script.py"
    script.write_text(textwrap.dedent(SMALL_SHM))
    shm = "mount -t tmpfs -o size=4k none /dev/shm && head -c 4096 /dev/zero > /dev/shm/full"
    own = ["unshare", "--mount", *([] if os.getuid() == 0 else ["--map-root-user"]), "sh", "-c"]
    if subprocess.run([*own, shm], capture_output=True, check=False).returncode:
        pytest.skip("this system lets nobody mount a /dev/shm of its own")
    command = [*own, f'{shm} && exec "$0" "$1"', sys.executable, str(script)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=100, check=False)
    assert (done.stdout.splitlines()[-1:], done.returncode) == (["done"], 0), done.stderr
