"""Shard server: holds a shard of the parameters and executes the decisions of a protocol."""

from __future__ import annotations

import contextlib
import dataclasses
import sys
import time
from collections import deque
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
from manyhands.live.server.stored_shard import StoredShard
from manyhands.parameters import Holder, as_bytes
from manyhands.protocols import (
    USES_PAYLOAD,
    Action,
    Answer,
    Call,
    HeldCalls,
    ServerState,
    ShardOperation,
    Step,
    Terms,
    carry_out,
)
from manyhands.protocols.compression.shard import CodedShard
from manyhands.protocols.parts.finite import FiniteCheck, about_push, own_worker
from manyhands.protocols.parts.rank_order import rank_of
from manyhands.protocols.parts.recovery.replay import (
    answer_source,
    is_journaled,
    react,
    recover,
)
from manyhands.sampling.permutation import member_seed
from manyhands.script.loading import load
from manyhands.script.origin import override
from manyhands.strategies import protocol_of, strategy
from manyhands.trace import NotApplied
from manyhands.transport.responder import Incoming, Responder
from manyhands.wire.leasing import Fence
from manyhands.wire.protocol_messages import StoreShard

if TYPE_CHECKING:
    import socket

    from manyhands.job import Job
    from manyhands.live.assignment import Assignment
    from manyhands.live.member.progress import Progress
    from manyhands.trace import Recorder
    from manyhands.wire.leasing import Rejoined
    from manyhands.wire.protocol_messages import Said

SLOTS = 2
"""Large updates that a server receives at a time: one is received while another is answered. Its
memory is that of its parameters, the optimizer's state, and this number of updates."""


_Decided = tuple[Incoming, torch.Tensor | None, ServerState, list[Action]]
"""A call, its payload, the state after it and what is to be done."""


class Notices(Protocol):
    """Notices of the coordinator to a server."""

    dismissed: bool
    """Whether the run is over."""

    def take_fenced(self) -> list[Fence | Rejoined]:
        """Workers that were lost since the last call; peers that have returned."""


class ShardServer:
    """A shard, the state of its protocol, and the journal of both."""

    def __init__(
        self,
        assignment: Assignment,
        number: int,
        recorder: Recorder,
        progress: Progress,
        job: Job | None = None,
        outside: socket.socket | None = None,
        *,
        least: int = 0,
    ) -> None:
        if job is None:
            job = override(load(assignment.origin)[0], assignment.overrides)
        protocol = protocol_of(strategy(assignment.strategy))
        if protocol is None:
            raise TypeError(f"{assignment.strategy} has no servers")
        self._protocol = protocol
        needs = protocol.needs(assignment.workers)
        self._recorder = recorder
        recorder.follows_staleness = "staleness" in job.measures
        self._progress = progress
        if needs.peer_servers:
            seed = member_seed(job.seed, number) if needs.ensemble else job.seed
            self._holder = Holder(dataclasses.replace(job, seed=seed), 0, 1)
        else:
            clip = job.clip if needs.clips == "servers" else None
            self._holder = Holder(job, number % needs.shards, needs.shards, clip=clip)
        objectives = len(job.one_by_one)
        about = (job.batch_sizes, assignment.workers, self._holder.rate, number, objectives)
        terms = Terms(*about)
        self._state = protocol.begin(terms)
        self._coded = CodedShard.of(protocol, number, assignment.workers, self._holder, job.seed)
        own = own_worker(number, peer_servers=needs.peer_servers)
        self._examination = FiniteCheck(self._holder, own)
        self._not_applied = NotApplied(recorder)
        size = self._holder.shard.nbytes
        room = 0 if self._coded is None else self._coded.room
        self._limit = max(size, protocol.payload_limit(size), room)
        """Bytes of the largest payload, of a call or of an answer."""
        self._shared: torch.Tensor | None = None
        """The parameters in shared memory, if workers read them there."""
        if needs.shared_memory:
            self._shared = SharedParameters(assignment, size, self._fill).parameters
        # A peer server ends with its worker: a successor gets the replica of another worker.
        self._journal = (
            NoJournal(self._limit)
            if needs.peer_servers
            else self._open_journal(assignment, job, number, self._limit)
        )
        self._open: dict[tuple[str, int], Incoming | None] = {}
        """Calls without an answer; None for a predecessor's call until it is sent again."""
        self._early: HeldCalls[Incoming] = HeldCalls(protocol)
        """Calls that are held back until the protocol admits them."""
        self._fences = Fences()
        self._stored = StoredShard(assignment, number, job, self._holder)
        self._state = self._stored.resume(self._state)
        # Before there is a responder: its slots come from the journal, which knows only now in
        # which ones calls are kept, and no call may be decided on in the initial state.
        done = self._recover()
        self._fences.restore(done)
        self._responder = Responder(
            assignment.servers[number],
            incarnation=incarnation(),
            slots=SLOTS,
            size=self._limit,
            eager=eager_limit(assignment.workers),
            key=assignment.job_key(),
            outside=outside,
            supply=self._journal.supply,
            own=own,
        )
        # Callers repeat what was not answered: without these numbers such a call would be applied
        # twice.
        self._responder.restore(done)
        self._responder.least = least
        self._recorded = time.monotonic()
        """When bytes were last added to the trace."""

    def _open_journal(self, assignment: Assignment, job: Job, number: int, size: int) -> Journal:
        """Open the journal that the job's durability requires."""
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
        """Serve calls until the run is over."""
        self._progress.phase = "serve"
        while not notices.dismissed:
            incoming = self._next(0.05)
            if incoming is not None:
                self._progress.phase = "apply"
                self._handle(self._gather(incoming))
                self._progress.phase = "serve"
            for notice in notices.take_fenced():
                self._note(notice)
            self._record_traffic()
        self._responder.traffic.hand_to(self._recorder)
        self._not_applied.settle()
        self._responder.close()
        # A checkpoint that is still being written would end with this process.
        self._stored.close()
        self._journal.close()
        # Only after the dismissal: until then a successor may need it.
        self._journal.remove()

    def _record_traffic(self) -> None:
        """Add bytes to the trace about once a second: a server may be killed."""
        if time.monotonic() - self._recorded >= 1.0:
            self._recorded = time.monotonic()
            self._responder.traffic.hand_to(self._recorder)

    def _next(self, timeout: float) -> Incoming | None:
        """The next call that the protocol admits.

        The payload of a call that is held back is still with its sender, or is small; a call whose
        payload is in a slot is handled at once, because the slot is needed.
        """
        # Calls that were held back come first: the last decision may have admitted one, and no
        # message need follow that would wake this server for it.
        held = self._early.take(self._state)
        if held is not None:
            return held
        incoming = self._responder.receive(timeout)
        if incoming is None or not self._admits(incoming):
            return None
        # A repeated call is in the state already: held back, it would be counted among those that
        # are still to come.
        if incoming.repeated or incoming.slot is not None:
            return incoming
        call = Call(incoming.sender, incoming.number, incoming.message)
        return None if self._early.hold(self._state, call, incoming) else incoming

    def _gather(self, first: Incoming) -> list[Incoming]:
        """The call, and further calls that have arrived and can share its journal entry."""
        arrived = [first]
        while len(arrived) < self._journal.batch:
            more = self._next(0)
            if more is None:
                break
            arrived.append(more)
        # A later call may show that the sender of an earlier one is lost.
        return [incoming for incoming in arrived if not self._fences.is_over(incoming.sender)]

    def _handle(self, arrived: list[Incoming]) -> None:
        """Decide about calls, journal those that change the state, and execute them."""
        begun = time.monotonic()
        # Before the first call is decided: in the loop below the journal is ahead of the state, and
        # a snapshot would lack calls whose entries it frees.
        self._make_room()
        state, decided = self._state, deque[_Decided]()
        for incoming in arrived:
            key = (incoming.sender, incoming.number)
            room = incoming.room > 0
            call = Call(incoming.sender, incoming.number, incoming.message, room=room)
            if incoming.repeated and key in self._open:
                # It was handled, perhaps by a predecessor, and its answer is pending.
                self._open[key] = incoming
                continue
            self._open[key] = incoming
            # If it is repeated the shard is stored already, and its parameters may have changed
            # since the cut.
            if isinstance(call.message, StoreShard) and not incoming.repeated:
                self._progress.phase = "store"
                self._stored.store(call.message, self._state)
                self._progress.phase = "apply"
            # Decoded before it is examined and written, in the order of a replay: references of
            # codecs depend on every payload before.
            update = self._received(call, incoming.payload)
            seen = self._examine(call, update, repeated=incoming.repeated)
            after, actions = react(self._protocol, state, seen, repeated=incoming.repeated)
            if is_journaled(state, seen, after, actions, coded=self._coded is not None):
                # Before the actions are carried out: no worker may see parameters that a successor
                # would not have.
                self._journal_call(call, incoming)
            state = after
            decided.append((incoming, update, after, actions))
        while decided:
            incoming, update, after, actions = decided.popleft()
            # Before `_decide`: an answer gives the payload back.
            brought = incoming.payload is not None
            self._decide(after, actions, update)
            update = None  # it is a view of the payload, whose memory is given back
            if (incoming.sender, incoming.number) in self._open and incoming.payload is not None:
                # The payload has been used; its slot is needed before the call can be answered.
                # The thread of the journal may still copy the payload, and the next call would be
                # received over it.
                self._journal.settle()
                self._responder.release(incoming)
            if brought:
                # From its arrival to its answer, as a virtual server's `service`.
                seconds = time.monotonic() - begun
                self._recorder.span("compute", begun, seconds, self._state.version)

    def _received(self, call: Call, payload: memoryview | None) -> torch.Tensor | None:
        """The payload of a call, decoded."""
        update = torch.frombuffer(payload, dtype=torch.uint8) if payload else None
        if self._coded is not None:
            begun = time.monotonic()
            update = self._coded.received(call, update)
            self._note_coding(begun, worked=update is not None)
        return update

    def _examine(self, call: Call, update: torch.Tensor | None, *, repeated: bool) -> Call:
        """The call as the protocol is to see it; a payload that is not finite is refused."""
        if repeated:
            return self._examination.again(call)
        seen = self._examination.examine(call, update, self._coded)
        if seen.refused:
            about = about_push(call.message)
            self._not_applied.note(rank_of(call.worker), seen.refused, *about)
        return seen

    def _decide(
        self, after: ServerState, actions: list[Action], update: torch.Tensor | None = None
    ) -> None:
        """Execute the actions and enter the state that follows."""
        self._state = after
        for action in actions:
            carry_out(self._holder, action, update)
            if isinstance(action, Step | ShardOperation):
                # Before the answer: workers read the shared parameters as soon as they have it.
                self._publish()
            if isinstance(action, Answer):
                key = (action.call.sender, action.call.number)
                incoming = self._open.pop(key)
                # Also for a call that waits for its repetition: a successor makes it when it
                # replays this decision.
                frame = self._frame(action)
                if incoming is not None:
                    self._answer(incoming, action, frame)
            elif isinstance(action, USES_PAYLOAD) and action.staleness is not None:
                if action.call is not None and action.call.refused:
                    continue
                sender = "" if action.call is None else action.call.worker
                self._recorder.staleness(action.staleness, sender)
        self._progress.step = self._state.version

    def _fill(self, shared: torch.Tensor) -> None:
        shared.copy_(self._holder.bytes)

    def _publish(self) -> None:
        """Copy the parameters to shared memory; all workers wait meanwhile, so none reads them.

        The shard itself stays in private memory: a successor that replays its journal passes
        through older states, which workers must not read.
        """
        if self._shared is not None:
            self._shared.copy_(self._holder.bytes)

    def _make_room(self) -> None:
        """Take a snapshot if the journal is full."""
        if self._journal.is_full(self._holder):
            waiting = list(self._open)
            done = dict(self._responder.peers()) | dict(waiting)
            self._journal.snapshot(self._holder, self._state, done, waiting)

    def _journal_call(self, call: Call, incoming: Incoming | None = None) -> None:
        payload = incoming.payload if incoming is not None else None
        if self._journal.append(call, payload or memoryview(b"")) and incoming is not None:
            self._responder.surrender(incoming)

    def _frame(self, answer: Answer) -> torch.Tensor | None:
        """The payload of an answer under codecs; None if there are none.

        It is made once, also if the answer is not sent: references depend on it.
        """
        if self._coded is None:
            return None
        begun, source = time.monotonic(), answer_source(answer, self._holder)
        frame = self._coded.answer(answer, source)
        self._note_coding(begun, worked=source is not None)
        return frame

    def _note_coding(self, begun: float, *, worked: bool) -> None:
        """Record the time of decoding a push or encoding an answer; it is part of `compute`."""
        if worked:
            seconds = time.monotonic() - begun
            self._recorder.span("encode", begun, seconds, self._state.version)

    def _answer(
        self, incoming: Incoming, answer: Answer, frame: torch.Tensor | None = None
    ) -> None:
        # An answer acknowledges the update: it must not be lost with this server after that.
        self._journal.settle()
        payload = self._payload(incoming, answer, frame)

        # Nothing is encoded for the worker in the server's own process.
        own = frame if frame is self._holder.bytes else None

        def renew() -> tuple[Said, memoryview | None]:
            if answer.remember or answer.recall or (self._coded is not None and own is None):
                return answer.message, payload
            # As if the answer had been lost: the current parameters and their version.
            # The parameters may have later updates by now, and a worker must not read what is not
            # in the journal.
            self._journal.settle()
            room = incoming.room > 0
            call = Call(incoming.sender, incoming.number, incoming.message, room=room)
            again = self._protocol.on_repeat(self._state, self._examination.again(call))
            return again.message, self._payload(incoming, again, own)

        self._responder.reply(incoming, answer.message, payload, renew)

    def _payload(
        self, incoming: Incoming, answer: Answer, frame: torch.Tensor | None = None
    ) -> memoryview | None:
        """The bytes of an answer: its frame under codecs, or its tensor."""
        source = answer_source(answer, self._holder) if self._coded is None else frame
        if source is None:
            return None
        payload: memoryview = as_bytes(source).numpy().data
        fits = len(payload) <= min(incoming.room, self._limit)
        exact = type(answer) is Answer and self._coded is None
        # The caller would drop the payload and wait for ever: an error in a protocol has to be seen
        # here (`docs/decisions/0043-fences.md`).
        if not fits or (exact and len(payload) != incoming.room):
            raise ValueError(
                f"{incoming.message} of {incoming.sender} has room for {incoming.room} bytes, "
                f"but the answer has {len(payload)}"
            )
        return payload

    def _recover(self) -> dict[str, int]:
        """Continue where a predecessor was; by caller, the number of its last call."""
        found = recover(
            self._journal,
            self._protocol,
            self._state,
            self._holder,
            self._coded,
            self._examination,
        )
        begun = self._state.version
        self._state = found.state
        self._open = dict.fromkeys(found.waiting)
        if found.replayed or found.state.version > begun:
            self._publish()
            detail = {"version": str(self._state.version), "heard again": str(found.replayed)}
            self._recorder.event("recovered", detail)
        return found.done

    def _admits(self, incoming: Incoming) -> bool:
        """Whether a call is to be executed: the incarnation of its sender is not over."""
        judged = self._fences.judge(incoming.sender)
        if judged == "over":
            self._responder.fence(incoming.sender, sys.maxsize)
        elif judged == "successor":
            self._leave(incoming.sender.partition(".")[0])
        return judged != "over"

    def _note(self, notice: Fence | Rejoined) -> None:
        """Note the loss of a worker, or the return of a peer."""
        if isinstance(notice, Fence):
            self._fence(notice.name, notice.least)
        else:
            self._fences.put(notice.name, notice.life)
            self._state = self._protocol.on_return(self._state, notice.name)

    def _fence(self, name: str, least: int) -> None:
        """Refuse incarnations of a lost worker before `least`, and notify the protocol.

        The coordinator repeats fences that it sent to a predecessor of this server.
        """
        if self._fences.put(name, least):
            self._leave(name)

    def _leave(self, name: str) -> None:
        """Refuse calls of a worker's former incarnations, and notify the protocol of its loss."""
        # A call of the lost worker that is held back would be admitted after the protocol has
        # forgotten it.
        self._early.drop(name)
        for sender, _ in list(self._responder.peers()):
            # By incarnation: the successor may have called already, and is not refused.
            if sender.partition(".")[0] == name and self._fences.is_over(sender):
                self._responder.fence(sender, sys.maxsize)
        for key in self._open:
            if self._fences.is_over(key[0]):
                # It will not be answered, so its shared memory need not stay mapped.
                self._open[key] = None
        # The loss takes an entry of the journal, as a call does: replayed in its place, the
        # decisions after it come out as they did.
        self._make_room()
        call = Call(name, 0, Left())
        after, actions = react(self._protocol, self._state, call, repeated=False)
        self._journal_call(call)
        self._holder.forget_worker(name)
        self._decide(after, actions)
        self._journal.settle()
