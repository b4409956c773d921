"""A virtual worker's endpoint: calls to servers over the simulated network.

Calls to one server are sent in order, each when the one before it has been delivered. If a call or
its answer is lost, the call is sent again after `PROBE` seconds, like in the live messenger; while
the server cannot be reached, that costs nothing and is repeated. The server recognises calls by
their numbers, so a call that was handled is only answered again, and only its header is resent.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, NoReturn, Protocol

from manyhands.endpoint import MembershipChanged
from manyhands.parameters import as_bytes
from manyhands.virtual.simulator.kernel import VirtualEvent, happens
from manyhands.virtual.simulator.member import Crashed

if TYPE_CHECKING:
    import random
    from collections.abc import Callable, Mapping

    import torch

    from manyhands.endpoint import Said
    from manyhands.trace import Phase, Scope
    from manyhands.virtual.log import WorkerLog
    from manyhands.virtual.simulator.kernel import Kernel
    from manyhands.virtual.simulator.member import VirtualProcess
    from manyhands.virtual.simulator.network import Network

PROBE = 1.0
"""Seconds after which a lost call is sent again, as in the live messenger."""
HEAD = 100
"""Bytes of a message without its payload: the typical size of a live envelope."""


GIVEN = "is_given_away"
"""An attribute of tensors; see `give`."""


def give(update: torch.Tensor) -> None:
    """Mark an update that is finite, and that nothing uses after it is posted: it is not copied."""
    setattr(update, GIVEN, True)


class Callee(Protocol):
    """The part of a server that a caller needs."""

    name: str
    member: VirtualProcess

    def has_handled(self, parcel: Parcel) -> bool:
        """Whether it has handled a call already."""

    def hear(self, parcel: Parcel) -> None:
        """Queue a call that has arrived."""


@dataclass(eq=False, slots=True)
class Parcel:
    """A call, from `post` to its answer."""

    endpoint: VirtualEndpoint
    server: Callee
    number: int
    message: Said
    payload: torch.Tensor | None
    into: torch.Tensor | None
    life: int
    """Incarnation of the server when it was posted."""
    sender: str
    """The name of the caller."""
    phase: Phase
    """The phase in which it was posted, to which its traffic is counted."""
    scope: Scope | None
    """How its traffic is counted; None for a server in the caller's own process."""
    arrived: float = 0.0
    """When the server received it."""
    due: float = 0.0
    """When it is encoded, and can be sent."""
    given: bool = False
    """Whether the payload is finite, and was given away by its worker."""

    @property
    def size(self) -> int:
        """Bytes of payload to send: none if the server has handled the call already."""
        if self.payload is None or self.server.has_handled(self):
            return 0
        return self.payload.nbytes

    @property
    def follows_answered(self) -> bool:
        """Whether its caller has the answers to all calls before it."""
        return self.endpoint.is_first_unanswered(self)

    def lose(self) -> None:
        """Handle the loss of the call or of its answer."""
        self.endpoint.resend(self)


@dataclass(eq=False, slots=True)
class _Connection:
    """State of the calls from a worker to one server."""

    number: int = 0
    """Number of the last call."""
    calls: deque[Parcel] = field(default_factory=deque)
    """Unanswered calls, in order."""
    unsent: deque[Parcel] = field(default_factory=deque)
    """Calls to be sent; the first may be in flight."""
    sending: bool = False
    broken: bool = False
    """Whether a call was lost and will be sent again."""
    answers: deque[Said] = field(default_factory=deque)
    held: float = 0.0
    """Seconds that the server took for the last answered call."""
    gone: bool = False
    """Whether the server is lost."""
    vain: int = 0
    """Number of calls to a lost server whose `receive` has not raised yet."""
    listener: VirtualEvent | None = None
    scope: Scope | None = None
    """How the traffic is counted; None for a server in the caller's own process."""


def caller(name: str, life: int) -> str:
    """The name by which servers know one incarnation of a worker.

    >>> caller("worker-3", 1), caller("worker-3", 2)
    ('worker-3', 'worker-3.2')
    """
    return name if life == 1 else f"{name}.{life}"


class VirtualEndpoint:
    """The endpoint of one incarnation of a virtual worker.

    Args:
        member: the worker's process.
        servers: the servers, by name.
        kernel: the clock.
        network: the network.
        rng: the worker's random generator.
        log: its trace.
        own: name of the server in the worker's own process, if any; its traffic is not counted.
    """

    def __init__(
        self,
        member: VirtualProcess,
        servers: Mapping[str, Callee],
        kernel: Kernel,
        network: Network,
        rng: random.Random,
        log: WorkerLog,
        own: str = "",
    ) -> None:
        self.name = member.name
        self.own = own
        self.on_loss: Callable[[str], None] = lambda _: None
        """Called with the name of a server that is lost."""
        self.adopt: Callable[[str, torch.Tensor], object] | None = None
        """Takes the parameters that a server sent, without a copy; None to copy them."""
        self.busy_until = 0.0
        """When everything posted so far is encoded, if that takes time."""
        self.phase: Phase = "start"
        self.caller = caller(member.name, member.life)
        """The name for servers: every incarnation is a separate caller with its own numbers."""
        self.rng = rng
        self.member = member
        self._life = member.life
        self._servers = servers
        self._lines: dict[str, _Connection] = {}
        """By server, created at the first call: a worker calls few of ten thousand peers."""
        self._kernel = kernel
        self._network = network
        self._log = log

    @property
    def is_dead(self) -> bool:
        """Whether this incarnation has ended: its actions have no effect any more."""
        return not self.member.alive or self.member.life != self._life

    def enter(self, phase: Phase) -> None:
        """Count traffic to another phase from now on."""
        self.phase = phase

    def clock(self) -> float:
        """Virtual seconds."""
        return self._kernel.now

    def post(
        self,
        to: str,
        message: Said,
        payload: torch.Tensor | None = None,
        into: torch.Tensor | None = None,
    ) -> None:
        """Send a copy of the payload, without waiting."""
        if self.is_dead:
            return
        line, server = self._connection(to), self._servers[to]
        if line.gone:
            line.vain += 1
            return
        line.number += 1
        given = payload is not None and getattr(payload, GIVEN, False)
        parcel = Parcel(
            self,
            server,
            line.number,
            message,
            payload if given or payload is None else as_bytes(payload).clone(),
            None if into is None else as_bytes(into),
            server.member.life,
            self.caller,
            self.phase,
            line.scope,
        )
        parcel.due, parcel.given = self.busy_until, given
        line.calls.append(parcel)
        line.unsent.append(parcel)
        self._send(line)

    def _connection(self, name: str) -> _Connection:
        line = self._lines.get(name)
        if line is None:
            line = self._lines[name] = self._new_connection(name)
        return line

    def _new_connection(self, name: str, *, gone: bool = False, vain: int = 0) -> _Connection:
        scope: Scope | None = None
        if name != self.own:
            same = self.member.host == self._servers[name].member.host
            scope = "within" if same else "between"
        return _Connection(gone=gone, vain=vain, scope=scope)

    def reaches(self, name: str) -> bool:
        """Whether a member is alive, as far as is known."""
        return name not in self._lines or not self._lines[name].gone

    def lose(self, name: str) -> None:
        """Handle the loss of a server: pending receives raise MembershipChanged."""
        line = self._connection(name)
        self.on_loss(name)
        vain = line.vain + len(line.calls) + len(line.answers)
        self._lines[name] = self._new_connection(name, gone=True, vain=vain)
        if line.listener is not None:
            line.listener.succeed()

    def reconnect(self, name: str) -> None:
        """Use the successor of a lost server, which has no state of earlier calls."""
        self._lines[name] = self._new_connection(name, vain=self._connection(name).vain)

    async def receive(self, sender: str, timeout: float | None = None) -> Said:
        """Wait for an answer."""
        if self.is_dead:
            raise Crashed(f"{self.name} is dead and cannot receive")
        line = self._connection(sender)
        if line.gone or line.vain:
            self._give_up(sender)
        if not line.answers:
            if not line.calls:
                raise RuntimeError(f"no call to {sender} is pending: post before you receive")
            await self._answer(line, sender, timeout)
        return line.answers.popleft()

    async def _answer(self, line: _Connection, sender: str, timeout: float | None) -> None:
        kernel = self._kernel
        begun, line.listener = kernel.now, VirtualEvent(kernel)
        if timeout is None:
            await happens(line.listener)
        else:
            await happens(kernel.first_of(line.listener, kernel.timeout(timeout)))
        # Time at the server is waiting; the rest is communication.
        waited = min(line.held, kernel.now - begun)
        self._log.time("wait", begun, waited)
        self._log.time("receive", begun + waited, kernel.now - begun - waited)
        if self._lines[sender] is not line:
            self._give_up(sender)
        if not line.answers:
            line.listener = None
            raise TimeoutError(f"{sender} did not answer within {timeout} s")

    def _give_up(self, sender: str) -> NoReturn:
        """Raise MembershipChanged: the called server is lost, even if it has a successor."""
        line = self._lines[sender]
        line.vain = max(0, line.vain - 1)
        raise MembershipChanged(f"{sender} was lost")

    def _send(self, line: _Connection) -> None:
        if line.sending or line.broken or not line.unsent:
            return
        parcel = line.unsent[0]
        if parcel.due > self._kernel.now:
            self._kernel.after(parcel.due - self._kernel.now, partial(self._send_later, line))
            return
        line.sending, size = True, parcel.size
        if (scope := parcel.scope) is not None:
            about = (parcel.server.name, parcel.phase, scope)
            self._log.traffic.sent(*about, payload=size, envelope=HEAD)
        self._network.send(
            self.member,
            parcel.server.member,
            HEAD + self._network.timed(parcel.phase, size),
            deliver=partial(self._delivered, line, parcel),
            lose=partial(self._undelivered, line, parcel),
        )

    def _send_later(self, line: _Connection) -> None:
        if not self.is_dead:
            self._send(line)

    def _delivered(self, line: _Connection, parcel: Parcel) -> None:
        line.sending = False
        line.unsent.popleft()
        parcel.server.hear(parcel)
        self._send(line)

    def _undelivered(self, line: _Connection, parcel: Parcel) -> None:
        line.sending = False
        if parcel in line.calls:
            self.resend(parcel)
        else:
            line.unsent.popleft()
            self._send(line)

    def is_first_unanswered(self, parcel: Parcel) -> bool:
        """Whether a call is the first one to its server without an answer."""
        calls = self._lines[parcel.server.name].calls
        return bool(calls) and calls[0] is parcel

    def resend(self, parcel: Parcel) -> None:
        """After a loss, send all unanswered calls again, in order, after `PROBE` seconds."""
        line = self._lines[parcel.server.name]
        if self.is_dead or line.broken or parcel not in line.calls:
            return
        line.broken = True
        self._kernel.after(PROBE, partial(self._probe, line, parcel.server))

    def _probe(self, line: _Connection, server: Callee) -> None:
        if self.is_dead:
            return
        if line.sending or not self._network.reaches(self.member, server.member):
            self._kernel.after(PROBE, partial(self._probe, line, server))
            return
        line.broken = False
        line.unsent = deque(line.calls)
        self._send(line)

    def take(
        self, parcel: Parcel, message: Said, payload: torch.Tensor | None, held: float
    ) -> None:
        """Take an answer that has arrived; a second one to the same call is ignored."""
        line = self._lines[parcel.server.name]
        if self.is_dead or parcel not in line.calls:
            return
        if (scope := parcel.scope) is not None:
            about = (parcel.server.name, parcel.phase, scope)
            size = 0 if payload is None else payload.nbytes
            self._log.traffic.received(*about, payload=size, envelope=HEAD)
        line.calls.remove(parcel)
        if parcel in line.unsent and not (line.sending and line.unsent[0] is parcel):
            line.unsent.remove(parcel)
        if payload is not None:
            if self.adopt is None or parcel.into is None:
                _fill(parcel, payload)
            else:
                self.adopt(parcel.server.name, payload)
        line.answers.append(message)
        line.held = held
        if line.listener is not None:
            listener, line.listener = line.listener, None
            listener.succeed()


def _fill(parcel: Parcel, payload: torch.Tensor) -> None:
    """Copy an answer's payload to the start of the buffer of its call; it must fit, as live."""
    room = 0 if parcel.into is None else parcel.into.nbytes
    if parcel.into is None or payload.nbytes > room:
        raise ValueError(
            f"{parcel.message} of {parcel.sender}: expected at most {room} bytes from "
            f"{parcel.server.name}, got {payload.nbytes}"
        )
    parcel.into[: payload.nbytes].copy_(payload)
