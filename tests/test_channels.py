"""Which messages cross from rank to rank, in which order, and how many receives must be posted ahead."""

import random
from collections import deque
from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st
from strategies import Fact, allowed, built_plans, made, needed, plans, quick, random_orders

from ppcourse.schedules import SCHEDULES, build
from ppcourse.schedules.action import Action, Op
from ppcourse.schedules.channels import Channel, Kind, Message, channels, incoming, outgoing
from ppcourse.schedules.forward_only import forward_only
from ppcourse.schedules.schedule import Schedule

OUT_OF_ORDER = """
0F0 0F1 0B0 0B1
1F1 1B1 1F0 1B0
"""


def expected_messages(plan: Schedule) -> dict[Message, Action]:
    """Each message that must cross, and the action that uses it, from the placement alone."""
    expected = {}
    for stage, i in product(range(plan.num_stages - 1), range(plan.num_microbatches)):
        down, up = plan.rank_of(stage, i), plan.rank_of(stage + 1, i)
        if down != up:
            there = Message(Channel(down, up, Kind.ACTIVATION), stage, i)
            back = Message(Channel(up, down, Kind.GRADIENT), stage + 1, i)
            expected[there] = Action(stage + 1, Op.F, i)
            expected[back] = Action(stage, Op.B, i)
    return expected


def test_a_forward_sends_an_activation_on_and_a_backward_a_gradient_back() -> None:
    plan = build("gpipe", 3, 2)
    forward, backward = Action(1, Op.F, 0), Action(1, Op.B, 0)
    assert incoming(plan, forward) == Message(Channel(0, 1, Kind.ACTIVATION), stage=0, microbatch=0)
    assert outgoing(plan, forward) == Message(Channel(1, 2, Kind.ACTIVATION), stage=1, microbatch=0)
    assert incoming(plan, backward) == Message(Channel(2, 1, Kind.GRADIENT), stage=2, microbatch=0)
    assert outgoing(plan, backward) == Message(Channel(1, 0, Kind.GRADIENT), stage=1, microbatch=0)


def test_the_ends_of_the_model_send_nothing_beyond_it() -> None:
    plan = build("gpipe", 3, 2)
    assert incoming(plan, Action(0, Op.F, 0)) is None
    assert outgoing(plan, Action(2, Op.F, 0)) is None
    assert incoming(plan, Action(2, Op.B, 0)) is None
    assert outgoing(plan, Action(0, Op.B, 0)) is None


def test_of_a_split_backward_i_sends_the_gradient_and_w_sends_nothing() -> None:
    plan = Schedule.from_text("0F0 0I0 0W0\n1F0 1I0 1W0")
    assert outgoing(plan, Action(1, Op.I, 0)) == Message(Channel(1, 0, Kind.GRADIENT), 1, 0)
    assert outgoing(plan, Action(1, Op.W, 0)) is None
    assert incoming(plan, Action(0, Op.W, 0)) is None


def test_nothing_crosses_inside_a_rank() -> None:
    bent = Schedule.from_text("0F0 3F0 3B0 0B0\n1F0 2F0 2B0 1B0")
    assert outgoing(bent, Action(1, Op.F, 0)) is None
    assert incoming(bent, Action(2, Op.F, 0)) is None
    assert set(channels(bent)) == {Channel(a, 1 - a, kind) for a in (0, 1) for kind in Kind}


@quick
@given(plans)
def test_every_message_is_sent_once_and_used_once_by_the_right_action(plan: Schedule) -> None:
    senders: dict[Message, Action] = {}
    users: dict[Message, Action] = {}
    for rank, row in enumerate(plan.rows):
        for action in row:
            if (message := outgoing(plan, action)) is not None:
                assert message.channel.source == rank
                assert message not in senders
                senders[message] = action
            if (message := incoming(plan, action)) is not None:
                assert message.channel.destination == rank
                assert message not in users
                users[message] = action
    expected = expected_messages(plan)
    assert set(senders) == set(users) == set(expected)
    for message, action in senders.items():
        assert (action.stage, action.microbatch) == (message.stage, message.microbatch)
        assert (action.op == "F") == (message.channel.kind is Kind.ACTIVATION)
        assert users[message]._replace(op=Op.F if users[message].op == "F" else Op.B) == expected[message]


@quick
@given(plans)
def test_a_channel_lists_its_messages_in_the_order_of_the_rows(plan: Schedule) -> None:
    for channel, traffic in channels(plan).items():
        sent = [outgoing(plan, action) for action in plan.rows[channel.source]]
        used = [incoming(plan, action) for action in plan.rows[channel.destination]]
        assert list(traffic.sent) == [message for message in sent if message and message.channel == channel]
        assert list(traffic.used) == [message for message in used if message and message.channel == channel]


@pytest.mark.parametrize("name", SCHEDULES)
@pytest.mark.parametrize(("p", "m"), [(2, 3), (4, 8)])
def test_no_message_is_left_out(name: str, p: int, m: int) -> None:
    """Of none of the two directions of DualPipe either, whose stages live on two ranks."""
    plan = build(name, *allowed(name, p, m))
    sent = [message for traffic in channels(plan).values() for message in traffic.sent]
    assert sorted(sent) == sorted(expected_messages(plan))


def test_forwards_alone_send_no_gradients() -> None:
    used = channels(forward_only(build("1f1b", 3, 2)))
    assert set(used) == {Channel(0, 1, Kind.ACTIVATION), Channel(1, 2, Kind.ACTIVATION)}


@quick
@given(built_plans())
def test_natural_orders_need_one_receive_posted_ahead(plan: Schedule) -> None:
    assert {traffic.window for traffic in channels(plan).values()} <= {1}


def test_messages_used_out_of_order_need_more() -> None:
    assert {traffic.window for traffic in channels(Schedule.from_text(OUT_OF_ORDER)).values()} == {2}


@pytest.mark.parametrize("m", [1, 2, 5])
def test_a_rank_that_wants_the_last_message_first_needs_them_all(m: int) -> None:
    forwards = [f"0F{i}" for i in range(m)]
    wanted = [f"1F{i}" for i in reversed(range(m))]
    plan = Schedule.from_rows([forwards, wanted])
    assert [traffic.window for traffic in channels(plan).values()] == [m]


# Is the window the right one? Ranks and wires, each moving when it can, from the rows alone.


class Wire:
    """A channel as NCCL has it: messages move in the order they are sent, each into a posted receive."""

    def __init__(self, window: int) -> None:
        self.sent: deque[Fact] = deque()
        self.posted = window
        self.arrived: set[Fact] = set()

    def move(self) -> bool:
        if not self.sent or not self.posted:
            return False
        self.arrived.add(self.sent.popleft())
        self.posted -= 1
        return True


class Rank:
    """Runs its row; takes what it needs from other ranks off the wires, and posts one receive for each."""

    def __init__(self, rank: int, plan: Schedule, wires: dict[Channel, Wire]) -> None:
        self.rank, self.plan, self.wires = rank, plan, wires
        self.row = deque(plan.rows[rank])
        self.known: set[Fact] = set()

    def wire(self, letter: str, stage: int, i: int) -> Wire | None:
        """What the result of a stage travels on, if it leaves its rank."""
        to = stage + {"F": 1, "I": -1, "W": self.plan.num_stages}[letter]
        if not 0 <= to < self.plan.num_stages:
            return None
        source, destination = self.plan.rank_of(stage, i), self.plan.rank_of(to, i)
        kind = Kind.ACTIVATION if letter == "F" else Kind.GRADIENT
        return None if source == destination else self.wires[Channel(source, destination, kind)]

    def move(self) -> bool:
        if not self.row:
            return False
        missing = needed(self.row[0], self.plan.num_stages) - self.known
        wires = [self.wire(*fact) for fact in missing]
        if any(wire is None or fact not in wire.arrived for wire, fact in zip(wires, missing, strict=True)):
            return False
        for wire in wires:
            wire.posted += 1
        for fact in made(self.row.popleft()):
            self.known.add(fact)
            if (wire := self.wire(*fact)) is not None:
                wire.sent.append(fact)
        return True


def finishes(plan: Schedule, windows: dict[Channel, int], rng: random.Random) -> bool:
    wires = {channel: Wire(window) for channel, window in windows.items()}
    movers = [*wires.values(), *(Rank(rank, plan, wires) for rank in range(plan.num_ranks))]
    moved = True
    while moved:
        rng.shuffle(movers)
        moved = sum(mover.move() for mover in movers) > 0
    return not any(mover.row for mover in movers if isinstance(mover, Rank))


@quick
@given(st.one_of(random_orders(), built_plans()), st.integers(0, 2**32))
def test_with_its_windows_a_plan_never_hangs_and_with_one_less_it_always_does(plan: Schedule, seed: int) -> None:
    rng = random.Random(seed)
    windows = {channel: traffic.window for channel, traffic in channels(plan).items()}
    assert finishes(plan, windows, rng)
    for channel, window in windows.items():
        assert not finishes(plan, {**windows, channel: window - 1}, rng)


def test_random_orders_do_reorder_messages() -> None:
    """The test above would be empty if every window were 1."""
    seen: set[int] = set()

    @quick
    @given(random_orders())
    def collect(plan: Schedule) -> None:
        seen.update(traffic.window for traffic in channels(plan).values())

    collect()
    assert max(seen) >= 3
