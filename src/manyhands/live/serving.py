"""A shard on a real server: one any-source loop around a protocol's pure decisions."""

from __future__ import annotations

import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from manyhands.endpoint import Parameters
from manyhands.live.journal import Journal
from manyhands.live.script import load
from manyhands.live.worker import eager_limit, override
from manyhands.parameters import Holder
from manyhands.protocols import Action, Answer, Call, Step, StrategyProtocol, Terms
from manyhands.strategies import strategy
from manyhands.transport.responder import Incoming, Responder

if TYPE_CHECKING:
    from manyhands.live.assignment import Assignment
    from manyhands.live.progress import Progress
    from manyhands.live.pulse import LinkPulse
    from manyhands.trace import Recorder

SLOTS = 2
"""Large updates that may be under way to a server: one is received while another is answered.
Its memory is its parameters, the optimizer's state, and so many updates."""


class Serving:
    """A shard, the decisions about it, and the journal of both."""

    def __init__(
        self, assignment: Assignment, number: int, recorder: Recorder, progress: Progress
    ) -> None:
        job, _ = load(assignment.origin)
        job = override(job, assignment.overrides)
        protocol = strategy(assignment.strategy)
        if not isinstance(protocol, StrategyProtocol):
            raise TypeError(f"{protocol} has no servers")
        self._protocol = protocol
        self._recorder = recorder
        self._progress = progress
        self._state = protocol.begin(Terms(job.global_batch, assignment.workers))
        self._holder = Holder(job, number, protocol.servers)
        size = self._holder.shard.nbytes
        self._journal = Journal(Path(assignment.folder), f"server-{number}", size)
        self._open: dict[tuple[str, int], Incoming] = {}
        done = self._recover()
        self._responder = Responder(
            assignment.servers[number],
            life=time.time_ns(),
            slots=SLOTS,
            size=size,
            eager=eager_limit(assignment.workers),
        )
        self._responder.restore(done)

    def until_dismissed(self, pulse: LinkPulse) -> None:
        """Hear whoever calls until the run is over."""
        self._progress.phase = "serve"
        while not pulse.dismissed:
            incoming = self._responder.receive(0.05)
            if incoming is not None:
                self._hear(incoming)
            for name in pulse.take_fenced():
                self._fence(name)
        self._responder.close()
        self._journal.close()
        self._journal.remove()

    def _hear(self, incoming: Incoming) -> None:
        """Decide about a call, write down what changes the state, and do it."""
        if incoming.repeated:
            self._answer(incoming, Parameters(self._state.version))
            return
        call = Call(incoming.sender, incoming.number, incoming.message)
        self._open[call.sender, call.number] = incoming
        after, actions = self._protocol.on_message(self._state, call)
        update = None
        if incoming.payload is not None:
            update = torch.frombuffer(incoming.payload, dtype=torch.uint8)
            if after != self._state:
                self._write_down(call, incoming.payload)
        self._state = after
        for action in actions:
            self._carry_out(action, update)
        self._progress.step = self._state.version

    def _write_down(self, call: Call, payload: memoryview) -> None:
        if self._journal.is_full():
            done = dict(self._responder.peers())
            self._journal.snapshot(self._holder, self._state.version, done)
        self._journal.append(call, payload)

    def _carry_out(self, action: Action, update: torch.Tensor | None) -> None:
        match action:
            case Step(weight=weight, staleness=staleness, blend=blend):
                if update is None or len(update) != self._holder.shard.nbytes:
                    raise ValueError(f"an update of {action.call.sender} has not the shard's size")
                begun = time.monotonic()
                self._holder.step(update, weight, blend)
                seconds = time.monotonic() - begun
                self._recorder.span("compute", begun, seconds, self._state.version)
                self._recorder.staleness(staleness)
            case Answer(call=call, message=message):
                self._answer(self._open.pop((call.sender, call.number)), message)

    def _answer(self, incoming: Incoming, message: Parameters) -> None:
        self._journal.settle()
        self._responder.reply(incoming, message, self._holder.bytes.numpy().data)

    def _recover(self) -> dict[str, int]:
        """Continue for a predecessor: its snapshot, and the calls it heard since."""
        version, done = self._journal.recover(self._holder)
        self._state = replace(self._state, version=version)
        again = 0
        for heard in self._journal.heard():
            self._state, actions = self._protocol.on_message(self._state, heard.call)
            for action in actions:
                if isinstance(action, Step):
                    self._holder.step(heard.payload, action.weight, action.blend)
            done[heard.call.sender] = heard.call.number
            again += 1
        if version or again:
            detail = {"version": str(self._state.version), "heard again": str(again)}
            self._recorder.event("recovered", detail)
        return done

    def _fence(self, name: str) -> None:
        for sender, _ in list(self._responder.peers()):
            if sender.partition(".")[0] == name:
                self._responder.fence(sender, sys.maxsize)
