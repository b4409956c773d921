"""A shard on a real server: one any-source loop around a protocol's pure decisions."""

from __future__ import annotations

import dataclasses
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

import torch

from manyhands.endpoint import Left
from manyhands.fences import Fences
from manyhands.live.assignment import eager_limit, override
from manyhands.live.common import Common
from manyhands.live.journal import Journal, NoJournal
from manyhands.live.life import life
from manyhands.live.script import load
from manyhands.parameters import Holder
from manyhands.protocols import (
    Action,
    Add,
    Answer,
    Call,
    Holding,
    ServerState,
    Shift,
    Step,
    StrategyProtocol,
    Terms,
    carry_out,
)
from manyhands.sampling import member_seed
from manyhands.strategies import strategy
from manyhands.transport.responder import Incoming, Responder

if TYPE_CHECKING:
    import socket

    from manyhands.job import Job
    from manyhands.live.assignment import Assignment
    from manyhands.live.progress import Progress
    from manyhands.trace import Recorder
    from manyhands.wire.leasing import Fence

SLOTS = 2
"""Large updates that may be under way to a server: one is received while another is answered.
Its memory is its parameters, the optimizer's state, and so many updates."""


class Notices(Protocol):
    """Where a server hears what is none of its callers' business."""

    dismissed: bool
    """Whether the run is over."""

    def take_fenced(self) -> list[Fence]:
        """Workers that are gone since the last call."""


class Serving:
    """A shard, the decisions about it, and the journal of both."""

    def __init__(
        self,
        assignment: Assignment,
        number: int,
        recorder: Recorder,
        progress: Progress,
        job: Job | None = None,
        outside: socket.socket | None = None,
    ) -> None:
        if job is None:
            job = override(load(assignment.origin)[0], assignment.overrides)
        protocol = strategy(assignment.strategy)
        if not isinstance(protocol, StrategyProtocol):
            raise TypeError(f"{protocol} has no servers")
        self._protocol = protocol
        self._recorder = recorder
        self._progress = progress
        if protocol.peers:
            seed = member_seed(job.seed, number) if protocol.committee else job.seed
            self._holder = Holder(dataclasses.replace(job, seed=seed), 0, 1)
        else:
            clip = job.clip if protocol.clips == "servers" else None
            shards = protocol.shards
            self._holder = Holder(job, number % shards, shards, clip=clip)
        terms = Terms(job.batch_sizes, assignment.workers, self._holder.rate, number)
        self._state = protocol.begin(terms)
        size = self._holder.shard.nbytes
        self._common: torch.Tensor | None = None
        """Where the workers read, if they share memory with this server."""
        if protocol.shares:
            self._common = Common(assignment, size, self._fill).parameters
        # What lives in a worker dies with it: there is no successor to read a journal.
        kind = NoJournal if protocol.peers else Journal
        self._journal = kind(Path(assignment.folder), f"server-{number}", size)
        self._open: dict[tuple[str, int], Incoming | None] = {}
        """Calls that are still to be answered; None until one of a predecessor's comes again."""
        self._early: Holding[Incoming] = Holding(protocol)
        """Calls that are held back until it is their turn."""
        self._fences = Fences()
        done = self._recover()
        self._fences.restore(done)
        self._responder = Responder(
            assignment.servers[number],
            life=life(),
            slots=SLOTS,
            size=size,
            eager=eager_limit(assignment.workers),
            key=assignment.job_key(),
            outside=outside,
        )
        self._responder.restore(done)

    def until_dismissed(self, notices: Notices) -> None:
        """Hear whoever calls until the run is over."""
        self._progress.phase = "serve"
        while not notices.dismissed:
            incoming = self._next(0.05)
            if incoming is not None:
                self._hear(incoming)
            for fence in notices.take_fenced():
                self._fence(fence.name, fence.least)
        self._responder.close()
        self._journal.close()
        self._journal.remove()

    def _next(self, timeout: float) -> Incoming | None:
        """The next call whose turn it is.

        What is held back lies with its sender, or is small; what was received into a slot is heard
        at once, because the slot is needed.
        """
        held = self._early.take(self._state)
        if held is not None:
            return held
        incoming = self._responder.receive(timeout)
        if incoming is None or not self._admits(incoming):
            return None
        if incoming.repeated or incoming.slot is not None:
            return incoming
        call = Call(incoming.sender, incoming.number, incoming.message)
        return None if self._early.hold(self._state, call, incoming) else incoming

    def _hear(self, incoming: Incoming) -> None:
        """Decide about a call, write down what changes the state, and do it."""
        key = (incoming.sender, incoming.number)
        room = incoming.room > 0
        call = Call(incoming.sender, incoming.number, incoming.message, room=room)
        if incoming.repeated:
            if key in self._open:
                # It was heard, perhaps by our predecessor, and its answer is still to come.
                self._open[key] = incoming
            else:
                again = self._protocol.on_repeat(self._state, call)
                carry_out(self._holder, again, None)
                self._answer(incoming, again)
            return
        begun = time.monotonic()
        self._open[key] = incoming
        after, actions = self._protocol.on_message(self._state, call)
        if after is not self._state:
            self._write_down(call, incoming.payload)
        brought = incoming.payload is not None
        self._decide(after, actions, incoming.payload)
        if key in self._open and incoming.payload is not None:
            # What came was made use of; its place is needed before the answer can be given.
            self._journal.settle()
            self._responder.release(incoming)
        if brought:
            # From its arrival to its answer, as a virtual server's `service`.
            seconds = time.monotonic() - begun
            self._recorder.span("compute", begun, seconds, self._state.version)

    def _decide(
        self, after: ServerState, actions: list[Action], payload: memoryview | None = None
    ) -> None:
        """Do what was decided, and be in the state that follows."""
        update = None if payload is None else torch.frombuffer(payload, dtype=torch.uint8)
        if update is not None and len(update) != self._holder.shard.nbytes:
            raise ValueError(f"an update of {len(update)} bytes has not the shard's size")
        self._state = after
        for action in actions:
            carry_out(self._holder, action, update)
            if isinstance(action, Step):
                self._publish()
            if isinstance(action, Answer):
                key = (action.call.sender, action.call.number)
                incoming = self._open.pop(key)
                if incoming is not None:
                    self._answer(incoming, action)
            elif isinstance(action, Add | Step | Shift) and action.staleness is not None:
                sender = "" if action.call is None else action.call.worker
                self._recorder.staleness(action.staleness, sender)
        self._progress.step = self._state.version

    def _fill(self, common: torch.Tensor) -> None:
        common.copy_(self._holder.bytes)

    def _publish(self) -> None:
        """Have the workers see the parameters as they are now: all of them wait, and none reads.

        The shard itself stays in this process's own memory: a successor that reads its journal
        goes through older states, which nobody may see.
        """
        if self._common is not None:
            self._common.copy_(self._holder.bytes)

    def _write_down(self, call: Call, payload: memoryview | None) -> None:
        if self._journal.is_full():
            waiting = [key for key in self._open if key != (call.sender, call.number)]
            done = dict(self._responder.peers()) | dict(waiting)
            self._journal.snapshot(self._holder, self._state, done, waiting)
        self._journal.append(call, payload or memoryview(b""))

    def _answer(self, incoming: Incoming, answer: Answer) -> None:
        self._journal.settle()
        payload = None
        if answer.parameters:
            kept = self._holder.recall(incoming.sender) if answer.recall else self._holder.bytes
            payload = kept.numpy().data
            if len(payload) != incoming.room:
                raise ValueError(
                    f"{incoming.message} of {incoming.sender} has room for {incoming.room} bytes, "
                    f"and is answered with {len(payload)}"
                )
        self._responder.reply(incoming, answer.message, payload)

    def _recover(self) -> dict[str, int]:
        """Continue for a predecessor: its snapshot, and the calls it heard since."""
        self._state, done, waiting = self._journal.recover(self._holder, self._state)
        for sender, number in waiting:
            self._open[sender, number] = None
        again, version = 0, self._state.version
        for heard in self._journal.heard():
            call = heard.call
            if isinstance(call.message, Left):
                after, actions = self._protocol.on_leave(self._state, call.worker)
            else:
                self._open[call.sender, call.number] = None
                done[call.sender] = call.number
                after, actions = self._protocol.on_message(self._state, call)
            self._state = after
            for action in actions:
                carry_out(self._holder, action, heard.payload if len(heard.payload) else None)
                if isinstance(action, Answer):
                    self._open.pop((action.call.sender, action.call.number), None)
            again += 1
        if version or again:
            self._publish()
            detail = {"version": str(self._state.version), "heard again": str(again)}
            self._recorder.event("recovered", detail)
        return done

    def _admits(self, incoming: Incoming) -> bool:
        """Whether a call is to be carried out: its sender's life is not over."""
        judged = self._fences.judge(incoming.sender)
        if judged == "over":
            self._responder.fence(incoming.sender, sys.maxsize)
        elif judged == "successor":
            self._leave(incoming.sender.partition(".")[0])
        return judged != "over"

    def _fence(self, name: str, least: int) -> None:
        """A worker is lost: hear nothing of its lives before `least`, and let the protocol know.

        The coordinator repeats what it said to a predecessor of this server.
        """
        if self._fences.put(name, least):
            self._leave(name)

    def _leave(self, name: str) -> None:
        """Refuse what a worker's former lives send, and let the protocol know that it is gone."""
        self._early.drop(name)
        for sender, _ in list(self._responder.peers()):
            if sender.partition(".")[0] == name and self._fences.is_over(sender):
                self._responder.fence(sender, sys.maxsize)
                self._holder.forget(sender)
        after, actions = self._protocol.on_leave(self._state, name)
        if after is not self._state:
            self._write_down(Call(name, 0, Left()), None)
        self._decide(after, actions)
        self._journal.settle()
