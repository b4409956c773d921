"""Caller: the calling side of remote calls with payloads.

Posting a call never blocks: ZeroMQ's own thread sends it, large payloads without a copy; payloads
in memory that is shared with the responder are not sent at all. While an answer is awaited, a call
without news is probed with a few bytes; if the responder was restarted, or made no progress, the
payload is sent again as another attempt. Calls are numbered, so that each is executed once.
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import zmq

from manyhands.trace.traffic import PHASES, TrafficCount
from manyhands.transport.listeners import is_readable
from manyhands.transport.security import JobKey, allow_ipv6, connect_securely, needs_key
from manyhands.transport.socket_options import AND_MORE, AT_ONCE, configure_caller
from manyhands.wire.envelope import (
    CHUNK,
    CallStatus,
    Chunk,
    Grant,
    Offer,
    Refusal,
    Reply,
    ReplyChunk,
    SharedBytes,
    open_answer,
    seal,
)
from manyhands.wire.message import WireError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from manyhands.trace.traffic import Phase, Scope
    from manyhands.transport.shared.memory import Segment
    from manyhands.wire.protocol_messages import Said

PROBE = 1.0
"""Seconds without news after which a call is probed. The interval doubles each time, as long as
nothing is wrong: a server with very many callers is slow, and slower if all of them probe every
second."""
_DOUBLINGS = 3
_PATIENCE = 3
"""Probes without progress after which a payload is sent again."""
ON_ITS_WAY = 10.0
"""Seconds in which a part of a sent answer must arrive; then the answer is requested again, and the
interval doubles."""


class CallRefused(ConnectionError):  # noqa: N818 - it names what happened
    """The responder refuses a call."""


@dataclass(eq=False)
class _Outgoing:
    """A call without an answer."""

    number: int
    message: Said
    payload: memoryview | None
    into: memoryview | None
    attempt: int = 0
    updated: float = 0.0
    """When the last message about it arrived."""
    asked: int = 0
    """Number of consecutive probes."""
    granted: bool = False
    incarnation: int | None = None
    progress: int = -1
    stalled: int = 0
    answered: float | None = None
    """When the answer was announced, or when its last part arrived."""
    patience: float = ON_ITS_WAY
    reply: Reply | None = None
    received: int = 0
    source: SharedBytes | None = None
    """The place of the payload in shared memory; then it is not sent."""


@dataclass(eq=False)
class _Peer:
    socket: zmq.Socket[bytes]
    segment: Segment | None
    """The memory that is shared with it."""
    scope: Scope | None
    """How its traffic is counted; None for a server in this process, which is not counted."""
    number: int = 0
    credit: bool = False
    """Whether a slot is reserved for the next large payload."""
    calls: dict[int, _Outgoing] = field(default_factory=dict)
    answers: list[tuple[Said, float]] = field(default_factory=list)
    """Answers, each with the seconds that the responder had the call."""
    refusals: list[str] = field(default_factory=list)


class Caller:
    """Calls responders by name; belongs to one thread.

    Args:
        name: the name of this process, to which answers are sent.
        addresses: addresses of the responders, by name.
        eager: payloads up to this number of bytes are sent with the offer; the same number as that
            of the responders.
        clock: a source of seconds.
        key: the job's key; required for every address except ipc.
        segment: memory that responders on the same host can map.
        context: context shared with other sockets of this process; a new one by default.
        own: name of the responder in this process, if any; its traffic is not counted.

    The first call to a peer connects to it: with peer servers, each worker calls a few of many.
    """

    def __init__(
        self,
        name: str,
        addresses: Mapping[str, str],
        *,
        eager: int,
        clock: Callable[[], float],
        key: JobKey | None = None,
        segment: Segment | None = None,
        context: zmq.Context[zmq.Socket[bytes]] | None = None,
        own: str = "",
    ) -> None:
        for peer, address in addresses.items():
            if needs_key(address) and key is None:
                raise ValueError(f"calling {peer} at {address} requires the job's key")
        self._name = name
        self._addresses = dict(addresses)
        self._key = key
        self._segment = segment
        self._own = own
        self._shares = context is not None
        self._context = context or _room_for(len(addresses))
        self._eager = eager
        self._clock = clock
        self._peers: dict[str, _Peer] = {}
        """Peers that were called so far."""
        self._numbers: dict[str, int] = {}
        """By peer that was lost, the number of the last call to it."""
        self._by_socket: dict[zmq.Socket[bytes], str] = {}
        self._poller = zmq.Poller()
        self._ungranted: set[str] = set()
        """Peers with a payload that waits for a grant."""
        self._probed = clock()
        """When calls were last checked for probes."""
        self.epoch = 0
        """The membership epoch of the calls."""
        self.traffic = TrafficCount()
        self.phase: Phase = "start"
        """The phase to which traffic is counted; the worker's loop sets it."""
        self.repeats = 0
        """Payloads that were sent again."""
        self.held = 0.0
        """Seconds that the responder had the call of the last answer."""

    def _peer(self, name: str) -> _Peer:
        """A peer; connects to it if this is the first call."""
        return self._peers.get(name) or self._connect(name)

    def _connect(self, name: str) -> _Peer:
        address = self._addresses[name]
        socket = self._context.socket(zmq.DEALER)
        if needs_key(address) and self._key is not None:
            connect_securely(socket, self._key)
        socket.setsockopt(zmq.IDENTITY, self._name.encode("ascii"))
        configure_caller(socket, to_other_host=needs_key(address))
        allow_ipv6(socket, address)
        socket.connect(address)
        self._poller.register(socket, zmq.POLLIN)
        self._by_socket[socket] = name
        outside = needs_key(address)
        scope: Scope | None = "between" if outside else "within"
        if name == self._own:
            scope = None
        segment = None if outside else self._segment
        peer = _Peer(socket, segment, scope, self._numbers.get(name, 0))
        self._peers[name] = peer
        return peer

    def _count_sent(self, name: str, peer: _Peer, *, payload: int = 0, envelope: int = 0) -> None:
        if peer.scope is not None:
            self.traffic.sent(name, self.phase, peer.scope, payload=payload, envelope=envelope)

    def _count_received(
        self, name: str, peer: _Peer, *, payload: int = 0, envelope: int = 0
    ) -> None:
        if peer.scope is not None:
            self.traffic.received(name, self.phase, peer.scope, payload=payload, envelope=envelope)

    def post(
        self,
        to: str,
        message: Said,
        payload: memoryview | None = None,
        into: memoryview | None = None,
    ) -> None:
        """Send a call; its payload must not change until the answer is received."""
        peer = self._peer(to)
        peer.number += 1
        call = _Outgoing(peer.number, message, payload, into, updated=self._clock())
        if peer.segment is not None:
            call.source = peer.segment.place(payload)
            self._count_sent(to, peer, payload=call.source.size if call.source else 0)
        peer.calls[call.number] = call
        self._offer(to, peer, call)
        if self._needs_grant(call):
            if peer.credit:
                peer.credit = False
                self._deliver(to, peer, call.number, call.attempt)
            else:
                self._ungranted.add(to)
        if self._ungranted:
            self._deliver_granted()

    def receive(self, sender: str, timeout: float | None = None) -> Said:
        """The next answer of a peer; its payload is in the buffer given with the call.

        Raises:
            TimeoutError: there was no answer in time.
            CallRefused: the peer refuses the call.
        """
        peer = self._peer(sender)
        deadline = None if timeout is None else self._clock() + timeout
        while not peer.answers:
            if peer.refusals:
                raise CallRefused(f"{sender} refused a call: {peer.refusals.pop(0)}")
            now = self._clock()
            if deadline is not None and now >= deadline:
                raise TimeoutError(f"{sender} did not answer within {timeout} s")
            if not peer.calls:
                raise RuntimeError(f"no call to {sender} is pending, so no answer will arrive")
            wait = PROBE if deadline is None else min(PROBE, deadline - now)
            self._sweep(max(1, int(1000 * wait)))
            self._probe()
        answer, self.held = peer.answers.pop(0)
        return answer

    def give_up(self, sender: str) -> None:
        """Drop all calls to a peer that is lost."""
        peer = self._peers.get(sender)
        if peer is None:
            return
        peer.calls.clear()
        # Also answers that have arrived: they would be taken for those of the successor.
        peer.answers.clear()
        peer.refusals.clear()

    def reconnect(self, name: str, address: str = "") -> None:
        """Call the successor of a peer that was lost, at another address if one is given.

        Calls are numbered on. What was sent to its predecessor and not delivered is dropped.
        """
        peer = self._peers.pop(name, None)
        if peer is not None:
            # Numbers go on: a reply to the predecessor's calls must never fit a call to the
            # successor.
            self._numbers[name] = peer.number
            self._poller.unregister(peer.socket)
            del self._by_socket[peer.socket]
            peer.socket.close(linger=0)
        self._ungranted.discard(name)
        self._addresses[name] = address or self._addresses[name]

    def _deliver_granted(self) -> None:
        """Send payloads whose slot was granted meanwhile.

        No answer is read here: answers are written to buffers only while the caller waits for
        them, and a call has none before its payload was sent.
        """
        for name in sorted(self._ungranted):
            peer = self._peers[name]
            calls = peer.calls.values()
            if len(calls) == 1:
                while is_readable(peer.socket) and any(self._needs_grant(call) for call in calls):
                    self._take(name, peer)
            if not any(self._needs_grant(call) for call in calls):
                self._ungranted.discard(name)

    def _needs_grant(self, call: _Outgoing) -> bool:
        if call.payload is None or call.source is not None or call.granted:
            return False
        return len(call.payload) > self._eager

    def _offer(self, to: str, peer: _Peer, call: _Outgoing, *, probes: bool = False) -> None:
        """Send the offer of a call; a probe has no payload, for which a lost grant is repeated."""
        size = len(call.payload) if call.payload is not None else 0
        into = peer.segment.place(call.into) if peer.segment is not None else None
        about = (call.number, call.attempt, self.epoch, size, call.message)
        room = len(call.into) if call.into is not None else 0
        offer = seal(Offer(*about, call.source, into, room, PHASES.index(self.phase)))
        # Without a connection nothing is sent, and the call is probed later.
        with contextlib.suppress(zmq.Again):
            small = call.source is None and size <= self._eager and not probes
            if call.payload is not None and small:
                peer.socket.send(offer, AND_MORE)
                peer.socket.send(call.payload, AT_ONCE)
                self._count_sent(to, peer, payload=size, envelope=len(offer))
            else:
                peer.socket.send(offer, AT_ONCE)
                self._count_sent(to, peer, envelope=len(offer))

    def _sweep(self, timeout: int) -> None:
        """Process all messages, waiting for the first at most `timeout` milliseconds."""
        for socket, _ in self._poller.poll(timeout):
            name = self._by_socket[socket]
            peer = self._peers[name]
            self._take(name, peer)
            while is_readable(socket):
                self._take(name, peer)

    def _take(self, name: str, peer: _Peer) -> None:
        frame = peer.socket.recv()
        self._count_received(name, peer, envelope=len(frame))
        try:
            envelope = open_answer(frame)
        except WireError:
            envelope = None
        match envelope:
            case Grant(number=number, attempt=attempt):
                self._deliver(name, peer, number, attempt)
            case CallStatus():
                self._judge(name, peer, envelope)
            case Reply():
                self._open_reply(name, peer, envelope)
            case ReplyChunk():
                self._fill(name, peer, envelope)
            case Refusal(number=number, words=words):
                if peer.calls.pop(number, None) is not None:
                    peer.refusals.append(words)
        while peer.socket.getsockopt(zmq.RCVMORE):
            peer.socket.recv_into(bytearray())

    def _deliver(self, name: str, peer: _Peer, number: int, attempt: int) -> None:
        """Send the payload of a call whose slot was granted."""
        call = peer.calls.get(number)
        # A grant for an attempt that was given up: the responder has another one by now.
        if call is None or call.payload is None or call.source or call.attempt != attempt:
            return
        if call.granted:
            # A responder grants once: this one was restarted, and has none of the payload.
            self._renew(name, peer, call)
            return
        call.granted, call.updated = True, self._clock()
        self.repeats += attempt > 0
        with contextlib.suppress(zmq.Again):
            for offset in range(0, len(call.payload), CHUNK):
                part = call.payload[offset : offset + CHUNK]
                head = seal(Chunk(number, attempt, offset))
                peer.socket.send(head, AND_MORE)
                peer.socket.send(part, AT_ONCE, copy=False)
                self._count_sent(name, peer, payload=len(part), envelope=len(head))

    def _open_reply(self, name: str, peer: _Peer, reply: Reply) -> None:
        call = peer.calls.get(reply.number)
        if call is None:
            return
        room = len(call.into) if call.into is not None else 0
        # Dropping the payload would leave the worker waiting for ever: the protocol that made the
        # call must see that it has no room.
        if reply.size > room:
            del peer.calls[call.number]
            peer.refusals.append(f"its answer has {reply.size} bytes, the buffer has {room}")
            return
        call.updated = call.answered = self._clock()
        # A second answer may begin while the first is under way: its parts have the other number,
        # and count from 0.
        call.reply, call.received = reply, 0
        if reply.placed:
            call.received = reply.size
            self._count_received(name, peer, payload=reply.size)
        elif reply.size and peer.socket.getsockopt(zmq.RCVMORE):
            self._receive_into(name, peer, call, 0)
        self._complete(name, peer, call)

    def _fill(self, name: str, peer: _Peer, chunk: ReplyChunk) -> None:
        for call in peer.calls.values():
            if call.reply is not None and call.reply.reply == chunk.reply:
                # A gap means that a connection broke within the answer; the rest is of no use, and
                # the call is asked about again.
                if chunk.offset == call.received and peer.socket.getsockopt(zmq.RCVMORE):
                    call.updated = call.answered = self._clock()
                    self._receive_into(name, peer, call, chunk.offset)
                    self._complete(name, peer, call)
                return

    def _receive_into(self, name: str, peer: _Peer, call: _Outgoing, offset: int) -> None:
        room = call.into[offset : call.reply.size] if call.into and call.reply else memoryview(b"")
        count = peer.socket.recv_into(room if len(room) else bytearray())
        if count <= len(room):
            call.received += count
            self._count_received(name, peer, payload=count)

    def _complete(self, name: str, peer: _Peer, call: _Outgoing) -> None:
        if call.reply is None or call.received != call.reply.size:
            return
        del peer.calls[call.number]
        # An answer that reserves none does not release a slot that an earlier one reserved.
        peer.credit = peer.credit or call.reply.credit
        peer.answers.append((call.reply.message, call.reply.held))
        waiting = (one for one in peer.calls.values() if self._needs_grant(one))
        if peer.credit and (later := next(waiting, None)) is not None:
            # It was posted before the slot was reserved: the responder has given it this one.
            peer.credit = False
            self._deliver(name, peer, later.number, later.attempt)

    def _judge(self, name: str, peer: _Peer, progress: CallStatus) -> None:
        """Decide whether a slow call is in progress or lost."""
        call = peer.calls.get(progress.number)
        # The status of an attempt that was given up says nothing about the present one.
        if call is None or call.attempt != progress.attempt:
            return
        call.updated = now = self._clock()
        if progress.answered:
            # On a slow link parts of an answer take longer than a probe. Asked for again at once,
            # it would be sent twice, and take twice as long.
            call.answered = now if call.answered is None else call.answered
            if now - call.answered >= call.patience:
                call.answered, call.patience = None, 2 * call.patience
                self._renew(name, peer, call)
            return
        # The grant was lost with a connection; without this the caller would wait for it for ever.
        if progress.granted and not call.granted:
            self._deliver(name, peer, call.number, call.attempt)
        waiting = not call.granted or progress.received == len(call.payload or b"")
        if not waiting:
            call.asked = 0
        # A restarted responder has none of the payload, although the call counts as granted here.
        restarted = call.incarnation is not None and call.incarnation != progress.incarnation
        call.stalled = 0 if waiting or progress.received > call.progress else call.stalled + 1
        call.progress, call.incarnation = progress.received, progress.incarnation
        if restarted or call.stalled >= _PATIENCE:
            self._renew(name, peer, call)

    def _renew(self, name: str, peer: _Peer, call: _Outgoing) -> None:
        call.attempt += 1
        call.granted, call.progress, call.stalled = False, -1, 0
        self._offer(name, peer, call)

    def _probe(self) -> None:
        """Probe calls without recent news."""
        now = self._clock()
        # Not after every message: a look at every open call costs the more the more peers there
        # are.
        if now - self._probed < PROBE / 4:
            return
        self._probed = now
        for name, peer in self._peers.items():
            for call in list(peer.calls.values()):
                if now - call.updated >= PROBE * 2 ** min(call.asked, _DOUBLINGS):
                    call.updated = now
                    call.asked += 1
                    self._offer(name, peer, call, probes=True)

    def close(self) -> None:
        """Close; calls without an answer are dropped."""
        for peer in self._peers.values():
            peer.socket.close(linger=0)
        if not self._shares:
            self._context.term()


def _room_for(peers: int) -> zmq.Context[zmq.Socket[bytes]]:
    """A context with enough sockets for all peers; ZeroMQ's default limit is 1,023."""
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    context.set(zmq.MAX_SOCKETS, max(context.get(zmq.MAX_SOCKETS), peers + 16))
    return context
