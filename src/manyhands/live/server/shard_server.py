"""A shard on a real server: one any-source loop around a protocol's pure decisions."""

from __future__ import annotations

import contextlib
import dataclasses
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

import torch

from manyhands.endpoint import Left
from manyhands.leasing.fences import Fences
from manyhands.live.assignment import eager_limit
from manyhands.live.member.shared_parameters import SharedParameters
from manyhands.live.processes.incarnation import incarnation
from manyhands.live.server.journal import Journal, NoJournal
from manyhands.live.server.journal_storage import IN_MEMORY, FileLog, MemoryLog
from manyhands.parameters import Holder
from manyhands.protocols import (
    Action,
    Add,
    Answer,
    Call,
    HeldCalls,
    ServerState,
    Shift,
    Step,
    Terms,
    carry_out,
)
from manyhands.sampling.permutation import member_seed
from manyhands.script.loading import load
from manyhands.script.origin import override
from manyhands.strategies import protocol_of, strategy
from manyhands.transport.responder import Incoming, Responder

if TYPE_CHECKING:
    import socket

    from manyhands.job import Job
    from manyhands.live.assignment import Assignment
    from manyhands.live.member.progress import Progress
    from manyhands.trace import Recorder
    from manyhands.wire.leasing import Fence
    from manyhands.wire.protocol_messages import Said

SLOTS = 2
"""Large updates that may be under way to a server: one is received while another is answered.
Its memory is its parameters, the optimizer's state, and so many updates."""


class Notices(Protocol):
    """Where a server hears what is none of its callers' business."""

    dismissed: bool
    """Whether the run is over."""

    def take_fenced(self) -> list[Fence]:
        """Workers that are gone since the last call."""


class ShardServer:
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
        protocol = protocol_of(strategy(assignment.strategy))
        if protocol is None:
            raise TypeError(f"{assignment.strategy} has no servers")
        self._protocol = protocol
        needs = protocol.needs(assignment.workers)
        self._recorder = recorder
        self._progress = progress
        if needs.peer_servers:
            seed = member_seed(job.seed, number) if needs.ensemble else job.seed
            self._holder = Holder(dataclasses.replace(job, seed=seed), 0, 1)
        else:
            clip = job.clip if needs.clips == "servers" else None
            self._holder = Holder(job, number % needs.shards, needs.shards, clip=clip)
        terms = Terms(job.batch_sizes, assignment.workers, self._holder.rate, number)
        self._state = protocol.begin(terms)
        size = self._holder.shard.nbytes
        self._common: torch.Tensor | None = None
        """Where the workers read, if they share memory with this server."""
        if needs.shared_memory:
            self._common = SharedParameters(assignment, size, self._fill).parameters
        # What lives in a worker dies with it: there is no successor to read a journal.
        self._journal = (
            NoJournal(size)
            if needs.peer_servers
            else self._open_journal(assignment, job, number, size)
        )
        self._open: dict[tuple[str, int], Incoming | None] = {}
        """Calls that are still to be answered; None until one of a predecessor's comes again."""
        self._early: HeldCalls[Incoming] = HeldCalls(protocol)
        """Calls that are held back until it is their turn."""
        self._fences = Fences()
        done = self._recover()
        self._fences.restore(done)
        self._responder = Responder(
            assignment.servers[number],
            incarnation=incarnation(),
            slots=SLOTS,
            size=size,
            eager=eager_limit(assignment.workers),
            key=assignment.job_key(),
            outside=outside,
            supply=self._journal.supply,
        )
        self._responder.restore(done)

    def _open_journal(self, assignment: Assignment, job: Job, number: int, size: int) -> Journal:
        """The journal that the job's durability asks for."""
        if job.durability == "none":
            return NoJournal(size)
        durable = job.durability == "power"
        if number < len(assignment.journals) and not durable:
            shards = len(assignment.servers)
            if shards * size <= IN_MEMORY:
                held = assignment.journals[number]
                with contextlib.suppress(OSError):
                    return Journal(MemoryLog(assignment.agent, held, size, shards, SLOTS))
        folder = Path(assignment.folder)
        log = FileLog(folder, f"server-{number}", size, durable=durable, say=self._say)
        return Journal(log, durable=durable)

    def _say(self, words: str) -> None:
        print(words, file=sys.stderr, flush=True)
        self._recorder.event("journal", {"words": words})

    def until_dismissed(self, notices: Notices) -> None:
        """Hear whoever calls until the run is over."""
        self._progress.phase = "serve"
        while not notices.dismissed:
            incoming = self._next(0.05)
            if incoming is not None:
                self._hear(self._gather(incoming))
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

    def _gather(self, first: Incoming) -> list[Incoming]:
        """The call, and those that have arrived too if they can be written down together."""
        arrived = [first]
        while len(arrived) < self._journal.batch:
            more = self._next(0)
            if more is None:
                break
            arrived.append(more)
        # A later one may have brought the news that an earlier one's sender is gone.
        return [incoming for incoming in arrived if not self._fences.is_over(incoming.sender)]

    def _hear(self, arrived: list[Incoming]) -> None:
        """Decide about calls, write down what changes the state, and do it."""
        begun = time.monotonic()
        self._make_room()
        state, decided = self._state, list[tuple[Incoming, ServerState, list[Action]]]()
        for incoming in arrived:
            key = (incoming.sender, incoming.number)
            room = incoming.room > 0
            call = Call(incoming.sender, incoming.number, incoming.message, room=room)
            if incoming.repeated and key in self._open:
                # It was heard, perhaps by our predecessor, and its answer is still to come.
                self._open[key] = incoming
                continue
            self._open[key] = incoming
            after, actions = self._react(state, call, repeated=incoming.repeated)
            if after is not state or _touches(actions):
                self._write_down(call, incoming)
            state = after
            decided.append((incoming, after, actions))
        for incoming, after, actions in decided:
            brought = incoming.payload is not None
            self._decide(after, actions, incoming.payload)
            if (incoming.sender, incoming.number) in self._open and incoming.payload is not None:
                # What came was made use of; its place is needed before the answer can be given.
                self._journal.settle()
                self._responder.release(incoming)
            if brought:
                # From its arrival to its answer, as a virtual server's `service`.
                seconds = time.monotonic() - begun
                self._recorder.span("compute", begun, seconds, self._state.version)

    def _react(
        self, state: ServerState, call: Call, *, repeated: bool
    ) -> tuple[ServerState, list[Action]]:
        """What the protocol decides about a call, now or when a journal is read."""
        if isinstance(call.message, Left):
            return self._protocol.on_leave(state, call.worker)
        if repeated:
            return state, [self._protocol.on_repeat(state, call)]
        return self._protocol.on_message(state, call)

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

    def _make_room(self) -> None:
        """Take a snapshot if no more calls can be written down."""
        if self._journal.is_full(self._holder):
            waiting = list(self._open)
            done = dict(self._responder.peers()) | dict(waiting)
            self._journal.snapshot(self._holder, self._state, done, waiting)

    def _write_down(self, call: Call, incoming: Incoming | None = None) -> None:
        payload = incoming.payload if incoming is not None else None
        if self._journal.append(call, payload or memoryview(b"")) and incoming is not None:
            self._responder.surrender(incoming)

    def _answer(self, incoming: Incoming, answer: Answer) -> None:
        self._journal.settle()
        payload = self._payload(incoming, answer)

        def renew() -> tuple[Said, memoryview | None]:
            if answer.remember or answer.recall:
                return answer.message, payload
            # As if the answer had been lost on its way: what is there now, and its version.
            self._journal.settle()
            room = incoming.room > 0
            call = Call(incoming.sender, incoming.number, incoming.message, room=room)
            again = self._protocol.on_repeat(self._state, call)
            return again.message, self._payload(incoming, again)

        self._responder.reply(incoming, answer.message, payload, renew)

    def _payload(self, incoming: Incoming, answer: Answer) -> memoryview | None:
        """The bytes that an answer brings."""
        if not answer.parameters:
            return None
        payload: memoryview = self._source(incoming.sender, answer).numpy().data
        if len(payload) != incoming.room:
            raise ValueError(
                f"{incoming.message} of {incoming.sender} has room for {incoming.room} bytes, "
                f"and is answered with {len(payload)}"
            )
        return payload

    def _source(self, sender: str, answer: Answer) -> torch.Tensor:
        """Where they lie; what is kept for the sender does not change while it is sent."""
        if answer.gathered:
            return self._holder.gathered()
        kept = answer.remember or answer.recall
        return self._holder.recall(sender) if kept else self._holder.bytes

    def _recover(self) -> dict[str, int]:
        """Continue for a predecessor: its snapshot, and the calls it heard since."""
        self._state, done, waiting = self._journal.recover(self._holder, self._state)
        for sender, number in waiting:
            self._open[sender, number] = None
        again, version = 0, self._state.version
        for heard in self._journal.heard():
            call = heard.call
            repeated = call.number <= done.get(call.sender, 0)
            after, actions = self._react(self._state, call, repeated=repeated)
            if isinstance(call.message, Left):
                self._holder.forget_worker(call.worker)
            elif not repeated:
                self._open[call.sender, call.number] = None
                done[call.sender] = call.number
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
        for key in self._open:
            if self._fences.is_over(key[0]):
                # It is not answered, and the memory that it shares need not stay mapped for it.
                self._open[key] = None
        self._make_room()
        call = Call(name, 0, Left())
        after, actions = self._react(self._state, call, repeated=False)
        self._write_down(call)
        self._holder.forget_worker(name)
        self._decide(after, actions)
        self._journal.settle()


def _touches(actions: list[Action]) -> bool:
    """Whether actions change the shard, or what is kept for its callers."""
    return any(not isinstance(action, Answer) or action.remember for action in actions)
