"""Virtual server: a loop that handles calls by a protocol's pure decisions.

Decisions survive a crash, because a server writes them to a journal, as a live one does: its
successor has nothing but what it reads there. Calls that were received and not handled yet are
lost, and so are answers that had not been sent; their callers send them again. A call that was
handled before is answered again with the current parameters, and not applied again.
"""

from __future__ import annotations

from collections import deque
from functools import partial
from typing import TYPE_CHECKING

from manyhands.leasing.fences import Fences
from manyhands.parameters import as_bytes
from manyhands.protocols import (
    CHANGES_PARAMETERS,
    USES_PAYLOAD,
    Add,
    Answer,
    Call,
    HeldCalls,
    ShardOperation,
    Shift,
    Step,
    carry_out,
)
from manyhands.protocols.parts.finite import FiniteCheck, about_push, own_worker
from manyhands.protocols.parts.rank_order import rank_of
from manyhands.protocols.parts.recovery.replay import is_journaled, recover
from manyhands.protocols.parts.recovery.server_journal import ServerJournal
from manyhands.virtual.journal_storage import PrivateLog
from manyhands.virtual.simulator.kernel import happens
from manyhands.virtual.worker.endpoint import HEAD
from manyhands.wire.protocol_messages import Left

if TYPE_CHECKING:
    from collections.abc import Sequence

    import torch

    from manyhands.costs import CodingSpeeds
    from manyhands.parameters import Holder
    from manyhands.protocols import Action, ServerState, StrategyProtocol, Terms
    from manyhands.protocols.compression.shard import CodedShard
    from manyhands.virtual.log import ServerLog, WorkerLog
    from manyhands.virtual.simulator.cores import Cores
    from manyhands.virtual.simulator.kernel import Kernel, VirtualEvent
    from manyhands.virtual.simulator.member import VirtualProcess
    from manyhands.virtual.simulator.network import Network
    from manyhands.virtual.worker.endpoint import Parcel


class Server:
    """A virtual server: a shard, the protocol's state, and the calls handled so far.

    Args:
        member: the server's process.
        holder: the shard and its optimizer.
        protocol: the strategy.
        terms: the facts about the job that the protocol needs.
        kernel: the clock.
        network: the network, for answers.
        cores: the cores of its host.
        service: core seconds per update, from its arrival to its answer.
        log: its trace.
    """

    def __init__(
        self,
        member: VirtualProcess,
        holder: Holder,
        protocol: StrategyProtocol,
        terms: Terms,
        kernel: Kernel,
        network: Network,
        cores: Cores,
        service: float,
        log: ServerLog,
    ) -> None:
        self.name = member.name
        self.member = member
        self.holder = holder
        self.state = protocol.begin(terms)
        self._protocol = protocol
        self._own = own_worker(terms.number, peer_servers=protocol.peer_servers)
        self._examination = FiniteCheck(holder, self._own)
        self._terms = terms
        self._is_anew = False
        self._kernel = kernel
        self._network = network
        self._cores = cores
        self._service = service
        self._log = log
        self._inbox: deque[Parcel] = deque()
        self._idle: VirtualEvent | None = None
        self._early: HeldCalls[Parcel] = HeldCalls(protocol)
        """Calls that are held until their turn."""
        self._heard: dict[str, int] = {}
        """By caller, the number of its last handled call."""
        self._fences = Fences()
        self.told = 0
        """How many losses of workers it has processed."""
        self._open: dict[tuple[str, int], Parcel] = {}
        """Calls that are not answered yet, by caller and number."""
        self._sending: torch.Tensor | None = None
        """A copy of the current parameters, for answers in flight."""
        self.coded: CodedShard | None = None
        """Decodes pushes and encodes answers, if there are codecs."""
        self.coding: CodingSpeeds | None = None
        """How fast vectors are encoded and decoded; None takes no time."""
        self._unsent: list[tuple[Parcel, Answer, torch.Tensor | None]] = []
        """Answers that are being encoded."""
        self._stored: PrivateLog | None = None
        """What outlives a crash; None if none is expected."""
        self._journal: ServerJournal | None = None
        self._continues = False
        """Whether the run is continued from a checkpoint."""

    def use_codecs(self, coded: CodedShard | None, speeds: CodingSpeeds | None) -> None:
        """Decode pushes and encode answers, at these speeds; None takes no time."""
        self.coded = coded
        self.coding = None if coded is None else speeds

    def continue_with(self, state: ServerState) -> None:
        """Continue from a checkpoint, whose shard `holder` has."""
        # Before the snapshot: a successor would otherwise begin with the initial state of the run.
        self.state, self._continues = state, True
        self._take_snapshot()

    def expect_crash(self) -> None:
        """Write a journal: this server is going to crash and to be restarted."""
        if self._stored is None:
            self._stored = PrivateLog(self.holder.shard.nbytes)
            self._journal = ServerJournal(self._stored)
            if self._continues:
                self._take_snapshot()

    @property
    def is_restored(self) -> bool:
        """Whether a successor continues from a journal."""
        return self._stored is not None

    def _take_snapshot(self) -> None:
        if self._journal is not None:
            self._journal.snapshot(self.holder, self.state, self._heard, list(self._open))

    def count_in(self, worker: WorkerLog) -> None:
        """Count bytes in a worker's trace: this server is in its process."""
        self._log.count_in(worker)

    def has_handled(self, parcel: Parcel) -> bool:
        """Whether it has handled a call already."""
        return parcel.number <= self._heard.get(parcel.sender, 0)

    def hear(self, parcel: Parcel) -> None:
        """Queue a call that has arrived."""
        # A call that was sent to the predecessor: this server has neither its state nor its number.
        if self._is_anew and parcel.life != self.member.life:
            return
        if (scope := parcel.scope) is not None:
            about = (self._log.peer(parcel.endpoint.name), parcel.phase, scope)
            self._log.traffic.received(*about, payload=parcel.size, envelope=HEAD)
        parcel.arrived = self._kernel.now
        self._inbox.append(parcel)
        if self._idle is not None:
            idle, self._idle = self._idle, None
            idle.succeed()

    async def serve(self) -> None:
        """Handle calls in order of arrival, until the run ends."""
        while True:
            while not self._inbox:
                self._idle = self._kernel.event()
                await happens(self._idle)
            # It stays in the queue while it is computed: a crash in that time loses it, and its
            # caller sends it again.
            parcel = self._inbox[0]
            if self._service and parcel.payload is not None and not self.has_handled(parcel):
                begun = await self._cores.compute(self.member, self._service)
                self._log.span("compute", begun, self.state.version)
            self._inbox.popleft()
            self._handle(parcel)
            if self.coding is not None and self.coded is not None:
                seconds = self._coding_seconds(self.coded, self.coding)
                if seconds:
                    begun = await self._cores.compute(self.member, seconds)
                    self._log.span("encode", begun, self.state.version)
                self._send_all()

    def _coding_seconds(self, coded: CodedShard, speeds: CodingSpeeds) -> float:
        """How long it takes to encode and decode what was since the last call."""
        times = {"encode": speeds.encode_seconds, "decode": speeds.decode_seconds}
        return sum(times[what](codec, nbytes) for what, codec, nbytes in coded.take_work())

    def crash(self) -> None:
        """Discard calls that were received and not handled yet."""
        lost = [*self._early.drain(), *self._inbox, *(parcel for parcel, _, _ in self._unsent)]
        # Emptied before the callers are told, who may send again at once.
        self._inbox, self._unsent = deque(), []
        self._idle = None
        for parcel in lost:
            parcel.lose()

    def recover(self, holder: Holder, coded: CodedShard | None) -> None:
        """Continue where the process was that crashed, from its journal alone.

        Workers keep their calls until they are answered.

        Args:
            holder: the shard, with its initial parameters.
            coded: its codecs.
        """
        if self._stored is None:
            raise RuntimeError(f"{self.name} has no journal")
        self.holder, self.coded = holder, coded
        self._examination = FiniteCheck(holder, self._own)
        self._journal = ServerJournal(self._stored)
        first = self._protocol.begin(self._terms)
        about = (self._journal, self._protocol, first, holder, coded, self._examination)
        found = recover(*about)
        self.state, self._heard = found.state, found.done
        # Only what the journal names: everything else that this process knew is lost with it, as it
        # is live.
        self._open = {key: self._open[key] for key in found.waiting}
        self._fences = Fences()
        # The losses themselves are sent again; without these numbers a successor that has called
        # before would be taken for lost.
        self._fences.restore(found.done)
        self.told = 0
        self._sending = None

    def begin_anew(self, holder: Holder, losses: Sequence[tuple[str, int]] = ()) -> None:
        """Reset to the initial state: nothing survived the crash.

        Args:
            holder: the shard, with its initial parameters.
            losses: workers that were lost so far, each with its first incarnation that is not over.
        """
        self.holder = holder
        self._fences = Fences()
        # Before any call is handled: one of a lost worker may still be under way to the successor.
        for worker, least in losses:
            self._fences.put(worker, least)
        self.told = len(losses)
        self._examination = FiniteCheck(holder, self._own)
        self.state = self._protocol.begin(self._terms)
        self._is_anew = True
        self._heard.clear()
        self._open.clear()
        self._inbox.clear()
        list(self._early.drain())
        self._sending = None

    def fence(self, worker: str, least: int) -> None:
        """Fence a lost worker: ignore incarnations before `least`, and inform the protocol."""
        self.told += 1
        if self._fences.put(worker, least):
            self._leave(worker)
            self._handle_held()
            self._send_all()

    def admit(self, worker: str) -> None:
        """Inform the protocol of the return of a worker."""
        self.state = self._protocol.on_return(self.state, worker)

    def _leave(self, worker: str) -> None:
        self._early.drop(worker)
        self._make_room()
        if self._journal is not None:
            self._journal.write(Call(worker, 0, Left()), memoryview(b""))
        self.holder.forget_worker(worker)
        self.state, actions = self._protocol.on_leave(self.state, worker)
        for action in actions:
            self._carry_out(action)

    def _handle(self, parcel: Parcel) -> None:
        """Handle a call, and held calls whose turn it is then."""
        self._decide(parcel)
        self._handle_held()

    def _handle_held(self) -> None:
        """Handle held calls whose turn it is now."""
        while (parcel := self._early.take(self.state)) is not None:
            self._decide(parcel)

    def _decide(self, parcel: Parcel) -> None:
        judged = self._fences.judge(parcel.sender)
        if judged == "over":
            return
        if judged == "successor":
            self._leave(parcel.sender.partition(".")[0])
        last = self._heard.get(parcel.sender, 0)
        key = (parcel.sender, parcel.number)
        room = parcel.into is not None
        call = Call(parcel.sender, parcel.number, parcel.message, room=room)
        if parcel.number <= last:
            # It waits for a round: the answer goes to the call that was sent last, whose caller is
            # alive.
            if key in self._open:
                self._open[key] = parcel
            else:
                self._make_room()
                seen = self._examination.again(call)
                again = self._protocol.on_repeat(self.state, seen)
                self._note_in_journal(call, seen, None, self.state, [again])
                carry_out(self.holder, again, None)
                self._reply(parcel, again)
        elif parcel.number > last + 1 and not parcel.follows_answered:
            # The call before it was lost, and both will be sent again.
            parcel.lose()
        elif not self._early.hold(self.state, call, parcel):
            self._make_room()
            self._heard[parcel.sender] = parcel.number
            self._open[key] = parcel
            came = parcel.payload
            if self.coded is not None:
                parcel.payload = self.coded.received(call, parcel.payload)
            seen = call
            if not parcel.given:
                seen = self._examination.examine(call, parcel.payload, self.coded)
            if seen.refused:
                self._note_refused(call, seen)
            after, actions = self._protocol.on_message(self.state, seen)
            self._note_in_journal(call, seen, came, after, actions)
            self.state = after
            for action in actions:
                self._carry_out(action)

    def _make_room(self) -> None:
        """Take a snapshot if the journal is full."""
        if self._journal is not None and self._journal.is_full(self.holder):
            self._take_snapshot()

    def _note_in_journal(
        self,
        call: Call,
        seen: Call,
        payload: torch.Tensor | None,
        after: ServerState,
        actions: Sequence[Action],
    ) -> None:
        """Write a call to the journal, if a successor has to know it."""
        coded = self.coded is not None
        if self._journal is None or not is_journaled(self.state, seen, after, actions, coded=coded):
            return
        data = memoryview(b"") if payload is None else as_bytes(payload).numpy().data
        self._journal.write(call, data)

    def _note_refused(self, call: Call, seen: Call) -> None:
        self._log.not_applied.note(rank_of(call.worker), seen.refused, *about_push(call.message))

    def _carry_out(self, action: Action) -> None:
        parcel = None
        if isinstance(action, USES_PAYLOAD) and action.call is not None:
            parcel = self._open[action.call.sender, action.call.number]
        carry_out(self.holder, action, None if parcel is None else parcel.payload)
        match action:
            case Answer(call=call):
                self._reply(self._open.pop((call.sender, call.number)), action)
            case Add() | Step() | Shift() | ShardOperation():
                if action.staleness is not None and not (action.call and action.call.refused):
                    worker = "" if action.call is None else action.call.worker
                    self._log.staleness(action.staleness, worker)
                if parcel is not None:
                    parcel.payload = None
        if isinstance(action, CHANGES_PARAMETERS):
            self._sending = None

    def _reply(self, parcel: Parcel, answer: Answer) -> None:
        if parcel.endpoint.is_dead and self.coded is None:
            return
        # Codecs make it also if it is not sent: references depend on it.
        payload = self._payload(answer)
        if parcel.endpoint.is_dead:
            return
        if self.coding is None:
            self._send(parcel, answer, payload)
        else:
            self._unsent.append((parcel, answer, payload))

    def _send_all(self) -> None:
        """Send the answers that are encoded by now."""
        unsent, self._unsent = self._unsent, []
        for parcel, answer, payload in unsent:
            if not parcel.endpoint.is_dead:
                self._send(parcel, answer, payload)

    def _send(self, parcel: Parcel, answer: Answer, payload: torch.Tensor | None) -> None:
        endpoint = parcel.endpoint
        size = 0 if payload is None else payload.nbytes
        if (scope := parcel.scope) is not None:
            about = (self._log.peer(endpoint.name), parcel.phase, scope)
            self._log.traffic.sent(*about, payload=size, envelope=HEAD)
        self._network.send(
            self.member,
            endpoint.member,
            HEAD + self._network.timed(parcel.phase, size),
            deliver=partial(
                endpoint.take, parcel, answer.message, payload, self._kernel.now - parcel.arrived
            ),
            lose=parcel.lose,
        )

    def _payload(self, answer: Answer) -> torch.Tensor | None:
        source = answer.payload(self.holder)
        if self.coded is not None:
            encoded = self.coded.answer(answer, source)
            # Nothing is encoded for the worker in the server's own process.
            if encoded is not source:
                return encoded
        if source is None:
            return None
        if source is not self.holder.bytes:
            # A copy: what is under way must not change with the source (found by seeds of coded
            # variants).
            return as_bytes(source).clone()
        # One copy for all answers with the same parameters; the next change of these leaves it to
        # those that are under way.
        if self._sending is None:
            self._sending = self.holder.bytes.clone()
        return self._sending
