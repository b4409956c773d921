"""Responder: the answering side of remote calls, for any number of callers in bounded memory.

A large payload is received into one of a few *slots*; a caller sends it only after a slot was
granted, so memory does not grow with the number of callers. A call is returned by `receive` once it
is complete, and exactly once for every number, however often it was sent. The answer is its
acknowledgement, and is sent after the call was executed. It reuses the call's slot, whose payload
is no longer needed then.

An answer that has to wait for a slot is created again when there is one: the parameters may have
changed meanwhile, and the message must match the payload.

While there are slots for all callers that send large payloads, an answer reserves one for the same
caller's next payload and announces it, which saves a round trip: the caller may compute while the
payload is sent. A reserved slot is reclaimed when another caller waits for one.

A caller on the same host may keep payloads in shared memory. Then nothing is received, and the
answer is written to the caller's buffer; but only the first answer: a repeated one is sent from a
slot, because the caller may already use the first.
"""

from __future__ import annotations

import contextlib
import time
from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING

import zmq

from manyhands.trace.traffic import PHASES, TrafficCount
from manyhands.transport.listeners import Listeners, is_readable
from manyhands.transport.shared.memory import Foreign
from manyhands.transport.slots import Slots
from manyhands.transport.socket_options import AND_MORE, AT_ONCE, configure_responder
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
    open_call,
    seal,
)
from manyhands.wire.message import WireError

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable, Iterator

    from manyhands.trace.traffic import Phase, Scope
    from manyhands.transport.security import JobKey
    from manyhands.transport.slots import Slot
    from manyhands.wire.protocol_messages import Said

    Renew = Callable[[], tuple[Said, memoryview | None]]
    _Count = Callable[..., None]


@dataclass(eq=False)
class Incoming:
    """A call, from its offer to its answer."""

    sender: str
    number: int
    attempt: int
    message: Said
    size: int
    repeated: bool = False
    """Whether it was executed before, and only its answer is requested again."""
    payload: memoryview | None = None
    received: int = 0
    slot: Slot | None = None
    into: memoryview | None = None
    """The buffer for the answer, in memory that is shared with the caller."""
    arrived: float = 0.0
    """When it was complete."""
    handed: bool = False
    """Whether `receive` has returned it."""
    room: int = 0
    """Size of the caller's buffer for the payload of the answer, in bytes."""

    @property
    def held(self) -> float:
        """Seconds since it was complete."""
        return time.monotonic() - self.arrived


@dataclass(eq=False)
class _Peer:
    """The state of one caller."""

    done: int = 0
    """The number of its last executed call."""
    answered: tuple[int, int] | None = None
    """The number and attempt of the last call that was answered."""
    current: Incoming | None = None
    epoch: int = 0
    """Calls from an earlier epoch are refused."""
    memory: Foreign | None = None
    """The memory that it shares."""
    phase: Phase = "start"
    """The phase of its last call, to which its traffic is counted."""


class Responder:
    """Receives calls and answers them; belongs to one thread.

    Args:
        address: address at which to listen.
        incarnation: a number that differs between a process and its successor.
        slots: number of large payloads that may be in flight.
        size: bytes of the largest payload.
        eager: payloads up to this number of bytes need no slot.
        key: key required of every peer on TCP.
        outside: a listening socket for other hosts.
        supply: returns the memory of a slot, `size` bytes; by default private memory.
        own: the caller in this process, without its incarnation, whose traffic is not counted.
    """

    def __init__(
        self,
        address: str,
        *,
        incarnation: int,
        slots: int,
        size: int,
        eager: int,
        key: JobKey | None = None,
        outside: socket.socket | None = None,
        supply: Callable[[], memoryview] | None = None,
        own: str = "",
    ) -> None:
        self._own = own
        self.traffic = TrafficCount()
        self._slots = Slots(slots, supply or (lambda: memoryview(bytearray(size))))
        self._listeners = Listeners(address, outside, key, configure_responder)
        self.address = self._listeners.address
        self._listener = self._listeners.for_peer("")
        """The listener of the message that is being read."""
        self._incarnation = incarnation
        self._size = size
        self._eager = eager
        self._peers: dict[str, _Peer] = {}
        self._pushing: set[str] = set()
        """Callers that have sent large payloads and are not fenced."""
        self._queue: deque[Incoming] = deque()
        self._unanswered: deque[tuple[Incoming, Renew]] = deque()
        self._replies = 0
        self.refused = 0
        """Number of invalid frames."""
        self.least = 0
        """Calls from before this epoch are ignored: they are meant for a predecessor."""

    def restore(self, done: dict[str, int]) -> None:
        """Continue for a predecessor that had executed each caller's calls up to a number."""
        for sender, number in done.items():
            self._peers.setdefault(sender, _Peer()).done = number

    def fence(self, sender: str, epoch: int) -> None:
        """Refuse a caller's calls from before an epoch, and drop its current call.

        The memory that it shares is unmapped as soon as no returned call uses it.
        """
        peer = self._peers.setdefault(sender, _Peer())
        peer.epoch = epoch
        peer.memory = None
        self._pushing.discard(sender)
        self._slots.cancel(sender)
        self._unanswered = deque(one for one in self._unanswered if one[0].sender != sender)
        if peer.current is not None:
            self._drop(peer.current)
            peer.current = None

    def receive(self, timeout: float) -> Incoming | None:
        """The next complete call; None if there is none within `timeout` seconds."""
        self._settle()
        if self._slots.is_sending and (self._queue or self._unanswered):
            # A slot becomes free without a message: check again soon.
            timeout = min(timeout, 0.001)
        for listener in self._listeners.ready(timeout):
            self._listener = listener
            if (call := self._read()) is not None:
                self._listeners.used(listener)
                return call
        return None

    def _read(self) -> Incoming | None:
        """Read messages of the current listener, up to the first complete call."""
        # A bound, so that callers of one listener who send without a pause do not keep this server
        # from the other listener, from fences and from its dismissal.
        for _ in range(64):
            if not is_readable(self._listener):
                return None
            call = self._take(self._listener.recv(AT_ONCE))
            self._discard()
            if call is not None:
                call.arrived, call.handed = time.monotonic(), True
                return call
        return None

    def _take(self, identity: bytes) -> Incoming | None:
        """Read one message of a peer; return the call that it completes, if any."""
        try:
            # A ROUTER puts the name before at least one further frame.
            frame = self._listener.recv(AT_ONCE)
            envelope = open_call(frame)
            sender = identity.decode("ascii")
        except (WireError, UnicodeDecodeError):
            self.refused += 1
            return None
        # Before it is processed: a refusal or a status must go out on the socket on which the
        # caller is.
        self._listeners.remember(sender, self._listener)
        peer = self._peers.setdefault(sender, _Peer())
        if isinstance(envelope, Offer):
            peer.phase = PHASES[envelope.phase]
        self._count(self.traffic.received, sender, envelope=len(frame))
        if isinstance(envelope, Offer):
            return self._accept(sender, envelope) if envelope.epoch >= self.least else None
        return self._fill(sender, envelope)

    def _count(self, count: _Count, sender: str, *, payload: int = 0, envelope: int = 0) -> None:
        name = sender.partition(".")[0]
        if name != self._own:
            phase, scope = self._peers[sender].phase, self._scope_of(sender)
            count(name, phase, scope, payload=payload, envelope=envelope)

    def _scope_of(self, sender: str) -> Scope:
        listener = self._listeners.for_peer(sender)
        return "within" if self._listeners.is_private(listener) else "between"

    def _discard(self) -> None:
        """Discard the remaining frames of a message."""
        while self._listener.getsockopt(zmq.RCVMORE):
            self._listener.recv_into(bytearray())

    def _accept(self, sender: str, offer: Offer) -> Incoming | None:
        peer = self._peers.setdefault(sender, _Peer())
        if offer.epoch < peer.epoch:
            self._send(sender, Refusal(offer.number, f"epoch {offer.epoch} is over"))
            return None
        if not 0 <= offer.size <= self._size:
            reason = f"expected at most {self._size} bytes, got {offer.size}"
            self._send(sender, Refusal(offer.number, reason))
            return None
        call = Incoming(sender, offer.number, offer.attempt, offer.message, offer.size)
        call.room = offer.room
        if offer.number <= peer.done:
            return self._accept_repeated(peer, call)
        current = peer.current
        if current is not None:
            again = current.number == offer.number
            if again and (current.handed or current.attempt == offer.attempt):
                # It was returned and has no answer yet: another attempt is the same call.
                current.attempt, received = offer.attempt, current.received
                about = (offer.number, offer.attempt, received, self._incarnation)
                self._send(sender, CallStatus(*about, granted=current.slot is not None))
                return None
            # The caller sends its payload again from the start: parts of two attempts must not be
            # put together, and the slot is free for the new one.
            self._drop(current)
        peer.current = call
        try:
            return self._share(peer, call, offer) or self._place(call)
        except WireError as error:
            self.refused += 1
            peer.current = None
            self._send(sender, Refusal(offer.number, str(error)))
            return None

    def _accept_repeated(self, peer: _Peer, call: Incoming) -> Incoming | None:
        """Return an executed call again only if its answer was lost."""
        if call.number < peer.done:
            return None
        if (call.number, call.attempt) == peer.answered:
            # On a slow link the answer takes long; a second one would take as long again.
            about = (call.number, call.attempt, call.size, self._incarnation)
            self._send(call.sender, CallStatus(*about, answered=True))
            return None
        call.repeated = True
        return call

    def _share(self, peer: _Peer, call: Incoming, offer: Offer) -> Incoming | None:
        """Map the memory that the caller shares; return the call if its payload is there."""
        if offer.into is not None:
            # Only here: a call that was executed before is never given the buffer, because its
            # caller may use the first answer by now (`docs/decisions/0016-exchange-in-memory.md`).
            call.into = self._view(peer, offer.into)
        if offer.source is None:
            return None
        size = offer.source.size
        if size != offer.size:
            raise WireError(f"expected {offer.size} bytes in shared memory, got {size}")
        call.payload, call.received = self._view(peer, offer.source), offer.size
        self._count(self.traffic.received, call.sender, payload=offer.size)
        return call

    def _view(self, peer: _Peer, place: SharedBytes) -> memoryview:
        if not self._listeners.is_private(self._listener):
            raise WireError("shared memory requires a caller on the same host")
        if peer.memory is None or peer.memory.owner != (place.pid, place.descriptor):
            peer.memory = Foreign(place.pid, place.descriptor)
        return peer.memory.view(place)

    def _place(self, call: Incoming) -> Incoming | None:
        """Receive a payload that came with the offer, or find a slot for a later one."""
        if call.size == 0:
            return call
        if call.size <= self._eager and self._listener.getsockopt(zmq.RCVMORE):
            payload = memoryview(bytearray(call.size))
            if self._listener.recv_into(payload) == call.size:
                call.payload, call.received = payload, call.size
                self._count(self.traffic.received, call.sender, payload=call.size)
                return call
            self.refused += 1
            self._peers[call.sender].current = None
            return None
        self._pushing.add(call.sender)
        # The caller has received the whole answer from its slot, or it would not call.
        call.slot = self._slots.take_reserved(call.sender)
        if call.slot is None:
            self._queue.append(call)
            self._settle()
        return None

    def _fill(self, sender: str, chunk: Chunk) -> Incoming | None:
        """Receive a part of a payload into its slot."""
        call = self._peers.setdefault(sender, _Peer()).current
        if (
            # Parts of an attempt that was given up are still on their way, and must not be written
            # into the slot of the next one.
            call is None
            or call.slot is None
            or (call.number, call.attempt) != (chunk.number, chunk.attempt)
            or chunk.offset != call.received
            or not self._listener.getsockopt(zmq.RCVMORE)
        ):
            self.refused += 1
            return None
        room = call.slot.bytes[chunk.offset : call.size]
        count = self._listener.recv_into(room) if len(room) else CHUNK + 1
        if count > len(room):
            self.refused += 1
            return None
        call.received += count
        self._count(self.traffic.received, sender, payload=count)
        if call.received < call.size:
            return None
        call.payload = call.slot.bytes[: call.size]
        return call

    def reply(
        self,
        call: Incoming,
        message: Said,
        payload: memoryview | None = None,
        renew: Renew | None = None,
    ) -> None:
        """Answer a call that was executed: from now on its number is done.

        Args:
            call: the call.
            message: the answer.
            payload: the payload of the answer.
            renew: returns the current ones, if the payload may change before it has a slot.
        """
        peer = self._peers[call.sender]
        # Calls are answered in another order than they came; an older one must not make a later one
        # count as not executed.
        peer.done = max(peer.done, call.number)
        peer.answered = (call.number, call.attempt)
        if peer.current is call:
            peer.current = None
        if payload is not None and call.into is not None and len(call.into) >= len(payload):
            self._release(call)
            size = len(payload)
            call.into[:size] = payload
            self._count(self.traffic.sent, call.sender, payload=size)
            self._replies += 1
            about = (call.number, self._replies, size, message)
            self._send(call.sender, Reply(*about, placed=True, held=call.held))
        elif payload is None or len(payload) <= self._eager:
            self._reply_at_once(call, message, payload)
        elif call.slot is None and not self._slots.has_free():
            self._unanswered.append((call, renew or (lambda: (message, payload))))
        else:
            self._reply_from_slot(call, message, payload)

    def _reply_at_once(self, call: Incoming, message: Said, payload: memoryview | None) -> None:
        credit = (
            call.sender in self._pushing
            and call.size > self._eager
            and self._can_reserve()
            and (call.slot is not None or self._slots.has_free())
        )
        if credit:
            self._slots.reserve(call.sender, call.slot or self._slots.take())
            call.slot = None
        self._release(call)
        self._replies += 1
        about = (call.number, self._replies, len(payload or b""), message, credit)
        self._send_frames(call.sender, seal(Reply(*about, held=call.held)), payload)

    def _reply_from_slot(self, call: Incoming, message: Said, payload: memoryview) -> None:
        """Send a copy of the payload, which may change while slow callers still receive."""
        slot = call.slot or self._slots.take()
        # The slot is the answer's now: giving back the call's payload must not free it while it is
        # sent.
        call.slot, call.payload = None, None
        size = len(payload)
        slot.bytes[:size] = payload
        self._replies += 1
        credit = self._can_reserve()
        about = (call.number, self._replies, size, message, credit)
        self._send(call.sender, Reply(*about, held=call.held))
        name = call.sender.encode("ascii")
        listener = self._listeners.for_peer(call.sender)
        for offset in range(0, size, CHUNK):
            part = slot.bytes[offset : min(offset + CHUNK, size)]
            head = seal(ReplyChunk(self._replies, offset))
            listener.send(name, AND_MORE)
            listener.send(head, AND_MORE)
            self._count(self.traffic.sent, call.sender, payload=len(part), envelope=len(head))
            # Parts are sent in order: when the last one is sent, all are.
            last = offset + CHUNK >= size
            tracker = listener.send(part, AT_ONCE, copy=False, track=last)
            if tracker is not None and last:
                slot.trackers.append(tracker)
        if credit:
            self._slots.reserve(call.sender, slot)
        else:
            self._slots.free_when_sent(slot)

    def release(self, call: Incoming) -> None:
        """Free the payload of a call that is not answered yet."""
        self._release(call)
        self._settle()

    def surrender(self, call: Incoming) -> None:
        """Return the memory of a call's slot to its supplier; the payload stays valid."""
        if call.slot is not None:
            call.slot = None
            # Counted as not allocated: the payload stays where the journal keeps it, and the next
            # slot gets other memory.
            self._slots.surrender()

    def _settle(self) -> None:
        """Assign free slots: first to waiting answers, then to waiting offers, in order."""
        self._slots.settle()
        while self._unanswered and self._slots.has_free():
            call, renew = self._unanswered.popleft()
            message, payload = renew()
            if payload is None:
                self._reply_at_once(call, message, payload)
            else:
                self._reply_from_slot(call, message, payload)
        self._slots.reclaim(len(self._queue) + len(self._unanswered))
        while self._queue and self._slots.has_free():
            call = self._queue.popleft()
            # While it waited, its caller was fenced or has begun another attempt: the slot would
            # stay unused.
            if self._peers[call.sender].current is not call:
                continue
            call.slot = self._slots.take()
            self._send(call.sender, Grant(call.number, call.attempt))

    def _can_reserve(self) -> bool:
        """Whether there is a slot for every caller that sends large payloads."""
        return len(self._pushing) <= self._slots.number and not self._queue

    def _drop(self, call: Incoming) -> None:
        with contextlib.suppress(ValueError):
            self._queue.remove(call)
        self._release(call)

    def _release(self, call: Incoming) -> None:
        if call.slot is not None:
            self._slots.free(call.slot)
        call.slot, call.payload = None, None

    def _send(self, sender: str, envelope: Grant | CallStatus | Reply | Refusal) -> None:
        self._send_frames(sender, seal(envelope))

    def _send_frames(self, sender: str, head: bytes, payload: memoryview | None = None) -> None:
        # A ROUTER drops messages to a peer that has disconnected.
        listener = self._listeners.for_peer(sender)
        listener.send(sender.encode("ascii"), AND_MORE)
        listener.send(head, AT_ONCE if payload is None else AND_MORE)
        if payload is not None:
            listener.send(payload, AT_ONCE)
        self._count(self.traffic.sent, sender, payload=len(payload or b""), envelope=len(head))

    def peers(self) -> Iterator[tuple[str, int]]:
        """Each caller and the number of its last executed call."""
        return ((name, peer.done) for name, peer in self._peers.items())

    def close(self) -> None:
        """Close, without waiting for peers that no longer read."""
        self._listeners.close(500)
