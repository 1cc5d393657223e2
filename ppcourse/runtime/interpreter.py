"""Runs any schedule: for action in row, HANDLERS[action.op](action)."""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any

import torch

from ppcourse.analysis.timeline import Span
from ppcourse.runtime.clock import Clock
from ppcourse.runtime.links.ends import Arrival
from ppcourse.runtime.links.lanes import Lanes
from ppcourse.runtime.links.link import Link, Parcel
from ppcourse.runtime.meter import Between, Meter
from ppcourse.runtime.processes.board import Board, State
from ppcourse.runtime.stages.batch import whole_of
from ppcourse.runtime.stages.cutting import cuttable
from ppcourse.runtime.stages.stage import End, Stage
from ppcourse.runtime.values.handed_on import as_inputs, check_crosses
from ppcourse.runtime.values.together import bundled, unbundled
from ppcourse.schedules.action import Action, Op
from ppcourse.schedules.channels import Kind, consumer, incoming, outgoing
from ppcourse.schedules.schedule import Schedule

HERE = 0.0  # when something arrived that never travelled


@dataclass
class Step:
    """What one rank has to tell of one step."""

    outputs: dict[int, Any] = field(default_factory=dict)
    spans: list[Span] = field(default_factory=list)
    peak_held: int = 0


class Interpreter:
    """The row of one rank, run on its stages.

    now        the action under way, for whoever has to report a failure
    keep_sent  keep what is sent until its backward, which needs only what its graph has saved
    lanes      the streams of a GPU that stages work on
    named      makes the context in which an action is seen by its name, when somebody looks
    finished   grows as the row gets on; on a GPU it counts each action twice, when it is told and when it is done
    """

    def __init__(
        self,
        plan: Schedule,
        rank: int,
        stages: dict[int, Stage],
        link: Link,
        clock: Clock,
        board: Board,
        meter: Meter,
    ) -> None:
        self.plan, self.rank, self.row = plan, rank, plan.rows[rank]
        self.stages, self.link, self.clock, self.board, self.meter = stages, link, clock, board, meter
        self.handlers: dict[Op, Callable[[Action, Any], Any]] = {
            Op.F: self.forward,
            Op.B: self.backward,
            Op.I: self.input_grad,
            Op.W: self.weight_grad,
        }
        self.split = {(stage, microbatch) for stage, op, microbatch in self.row if op == Op.I}
        self.comes = {action: incoming(plan, action) for action in self.row}  # each message is known before the step
        self.goes = {action: outgoing(plan, action) for action in self.row}
        self.pairs = plan.pairs[rank]
        self.now: Action | None = None
        self.keep_sent = False
        self.sent: dict[tuple[int, int], Any] = {}
        self.finished = 0
        self.lanes = Lanes()
        self.named: Callable[[str], AbstractContextManager[Any]] = nullcontext
        self.marks: list[tuple[int, tuple[Action, ...], Any, Any]] = []
        self.handed_over: dict[tuple[Kind, int, int], Any] = {}

    def run(self, inputs: dict[int, Any], ends: dict[int, End]) -> Step:
        """One step. `inputs` and `ends`: what each microbatch begins and ends with, on the ranks that need it."""
        self.inputs, self.ends, self.step = inputs, ends, Step()
        whole = whole_of([*inputs.values(), *(end.target for end in ends.values())])
        for stage in self.stages.values():
            stage.whole = whole
        self.clock.begin()
        position = 0
        with cuttable() if self.split else nullcontext():
            while position < len(self.row):
                together = self.row[position : position + 1 + (position in self.pairs)]
                self._run_together(position, together)
                position += len(together)
        self._settle()
        self.now = None
        self._note(State.IDLE, len(self.row))
        return self.step

    def _run_together(self, position: int, together: tuple[Action, ...]) -> None:
        """One action, or an overlapped pair: it starts when both its actions may, and both end together."""
        given: list[Arrival] = []
        for self.now in together:
            self._note(State.WAITING, position + len(given))
            self.meter.turn_to((self.now.stage, self.now.microbatch))
            given.append(self._given(self.now))
        start = self.clock.start(max(arrival.at for arrival in given))
        self.lanes.fork()
        parcels = []
        for place, self.now in enumerate(together, position):
            self._note(State.RUNNING, place)
            self.meter.turn_to((self.now.stage, self.now.microbatch))
            with self.lanes.of(self.now.stage, given[0].value):
                self._used(self.now, given[0].value)
                with self.meter, self.named(str(self.now)):
                    result = self.handlers[self.now.op](self.now, given.pop(0).value)
                self.clock.worked()
                parcels.append(self._pack(self.now, result))
            if self.keep_sent:
                self._keep(self.now, result)
            del result
            if given and self.meter.measures:  # between two that are joined memory is held as between any others
                self.meter.boundary(self._between())
            self.step.peak_held = max(self.step.peak_held, sum(s.held for s in self.stages.values()))
        self.lanes.join()
        end = self.clock.end(*together)
        self._send(parcels)
        if self.meter.measures:
            self.meter.boundary(self._between())
        self.marks.append((position, together, start, end))
        self.finished += len(together)

    def _settle(self) -> None:
        """Spans from marks. Where the host has run ahead, it waits here for the GPU, action by action."""
        for position, together, start, end in self.marks:
            if self.clock.runs_ahead:
                self.now = together[0]  # a failure that the GPU tells late belongs about here
                self._note(State.RUNNING, position)
                self.finished += len(together)
            first, last = self.clock.seconds(start), self.clock.seconds(end)
            self.step.spans += [Span(self.rank, action, first, last) for action in together]
        self.marks = []

    def _send(self, parcels: list[Parcel | None]) -> None:
        while parcels:  # emptied, so that what is sent is let go
            if parcel := parcels.pop(0):
                self.link.send(parcel)

    def forward(self, action: Action, given: Any) -> Any:
        i = action.microbatch
        split = (action.stage, i) in self.split
        output = self.stages[action.stage].forward(i, given, self.ends.get(i), split)
        if action.stage + 1 == self.plan.num_stages and not torch.is_grad_enabled():
            self.step.outputs[i] = self.stages[action.stage].let_go(output)
        return output

    def backward(self, action: Action, given: Any) -> Any:
        return self.stages[action.stage].backward(action.microbatch, given)

    def input_grad(self, action: Action, given: Any) -> Any:
        return self.stages[action.stage].input_grad(action.microbatch, given)

    def weight_grad(self, action: Action, given: Any) -> None:
        self.stages[action.stage].weight_grad(action.microbatch)

    def _given(self, action: Action) -> Arrival:
        """What the action starts from: the batch, a message, or what a stage on this rank handed over."""
        if action.op == Op.W:
            return Arrival(None, HERE)  # its stage has kept what it needs
        forward = action.op == Op.F
        if forward and action.stage == 0:
            return Arrival(self.inputs[action.microbatch], HERE)
        if message := self.comes[action]:
            value, at = self.link.receive(message)
            return Arrival(unbundled(value), at)
        if not forward and action.stage + 1 == self.plan.num_stages:
            return Arrival(None, HERE)
        return Arrival(self.handed_over[_place(action)], HERE)

    def _used(self, action: Action, given: Any) -> None:
        """From now on what was given is the action's, and counts for it as long as somebody needs it."""
        if action.op != Op.W:
            self.handed_over.pop(_place(action), None)
        self.meter.watch(given)  # it may outlive the stage that made it

    def _pack(self, action: Action, result: Any) -> Parcel | None:
        """What is to be sent to another rank; what this rank needs itself is put aside."""
        if message := self.goes[action]:
            return self.link.pack(message, bundled(result) if action.op == Op.F else result)
        if user := consumer(self.plan, action):
            if action.op == Op.F:
                check_crosses(result)
                result = as_inputs(self.stages[action.stage].let_go(result))
            self.handed_over[_place(user)] = result
        return None

    def _keep(self, action: Action, result: Any) -> None:
        place = action.stage, action.microbatch
        if action.op != Op.F:
            self.sent.pop(place, None)
        elif self.goes[action]:
            self.sent[place] = result

    def _between(self) -> Between:
        stashed = {(number, i) for number, stage in self.stages.items() for i in stage.stash}
        owed = {(number, i) for number, stage in self.stages.items() for i in stage.owed}
        sent = list(self.sent.values()) if self.keep_sent else None
        return Between(stashed, owed, sent, list(self.handed_over.values()))

    def _note(self, state: State, position: int) -> None:
        self.board.write(self.rank, state, position, self.finished)


def _place(action: Action) -> tuple[Kind, int, int]:
    """Of what an F, a B or an I starts from."""
    return Kind.ACTIVATION if action.op == Op.F else Kind.GRADIENT, action.stage, action.microbatch
