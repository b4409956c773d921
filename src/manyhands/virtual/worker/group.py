"""Collectives of virtual workers: the messages of an algorithm, over the simulated network.

A collective goes on while its worker computes, as c10d's do. A worker takes part in one at a time,
in the order in which it began them. A message is sent when its receiver has reached the round in
which it waits for it, as Gloo and MPI send large messages. Its sender hears of that one latency
later, so that a message between hosts costs two latencies if both enter the round at the same time.
The notice itself takes no bandwidth, and is never lost. Messages have no envelope, and adding
vectors takes no time. A message that is lost because its link is cut is sent again, as TCP does.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, cast

from manyhands.virtual.simulator.kernel import happens
from manyhands.virtual.worker.endpoint import PROBE
from manyhands.virtual.worker.sizes import Size

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import torch

    from manyhands.collectives import ExchangeRound, ExchangeTable, PartMessage
    from manyhands.endpoint import Begun, Said
    from manyhands.trace import Kind, Scope
    from manyhands.virtual.log import WorkerLog
    from manyhands.virtual.simulator.kernel import Kernel, VirtualEvent
    from manyhands.virtual.simulator.network import Network
    from manyhands.virtual.worker.endpoint import VirtualEndpoint


@dataclass(eq=False, slots=True)
class Operation:
    """One worker's part in a collective."""

    key: tuple[int, int]
    """Numbers of the set of workers that take part, and of the collective among theirs."""
    among: tuple[int, ...]
    """The workers that take part."""
    exchange: ExchangeTable
    size: int
    width: int
    """Bytes of an element, within which a vector is not divided."""
    values: torch.Tensor | None
    rounds: Iterator[tuple[ExchangeRound, ...]]
    """Those that are begun together, in order."""
    done: VirtualEvent
    has_ended: bool = False
    current: tuple[ExchangeRound, ...] = ()
    unsent: dict[int, PartMessage] = field(default_factory=dict)
    """By receiver, the messages of the current rounds that have not been sent."""
    not_arrived: int = 0
    """Number of the messages of the current rounds that have not arrived yet."""

    def bounds(self, message: PartMessage) -> tuple[int, int]:
        """The begin and the end of a message's parts, in elements."""
        return self.exchange.bounds(self.size // self.width, message)

    def part(self, message: PartMessage) -> tuple[int, torch.Tensor | None]:
        """The bytes of a message and, if there are numbers, its values: a view."""
        begin, end = self.bounds(message)
        values = None if self.values is None else self.values[begin:end]
        return (end - begin) * self.width, values


@dataclass(eq=False)
class VirtualGroup:
    """The workers of a run that take part in collectives."""

    kernel: Kernel
    network: Network
    hosts: Sequence[str]
    """The host of each worker."""
    notifies: bool = True
    """Whether a sender hears of its receiver one latency later; otherwise it knows at once, as in
    textbooks' formulas."""
    members: dict[int, GroupEndpoint] = field(default_factory=dict)
    _sets: dict[tuple[int, ...], int] = field(default_factory=dict)

    def number(self, among: tuple[int, ...]) -> int:
        """The number of a set of workers."""
        return self._sets.setdefault(among, len(self._sets))

    def join(self, endpoint: VirtualEndpoint, rank: int, log: WorkerLog) -> GroupEndpoint:
        """The endpoint of a worker, by which it takes part."""
        self.members[rank] = member = GroupEndpoint(endpoint, rank, self, log)
        return member


class GroupEndpoint:
    """The endpoint of a virtual worker with collectives.

    Args:
        endpoint: its endpoint for other messages.
        rank: its rank.
        group: the workers.
        log: its trace.
    """

    def __init__(
        self, endpoint: VirtualEndpoint, rank: int, group: VirtualGroup, log: WorkerLog
    ) -> None:
        self.name = endpoint.name
        self.rng = endpoint.rng
        self.rank = rank
        self.hosts = group.hosts
        self._endpoint = endpoint
        self._member = endpoint.member
        self._group = group
        self._kernel = group.kernel
        self._log = log
        self._begun: dict[int, int] = {}
        """By set of workers that take part, the number of collectives that were begun."""
        self._queue: deque[Operation] = deque()
        self._arrived: dict[object, deque[torch.Tensor | None]] = {}
        """By collective and sender, or by sender and tag, what has arrived and was not used yet."""
        self._awaited: set[object] = set()
        """By collective and receiver, the messages of this worker that others wait for."""
        self._listener: tuple[object, VirtualEvent] | None = None

    def clock(self) -> float:
        """Virtual seconds."""
        return self._kernel.now

    def reaches(self, name: str) -> bool:
        """Whether a member is alive, as far as is known."""
        return self._endpoint.reaches(name)

    def post(
        self,
        to: str,
        message: Said,
        payload: torch.Tensor | None = None,
        into: torch.Tensor | None = None,
    ) -> None:
        """Send a message to a server."""
        self._endpoint.post(to, message, payload, into)

    async def receive(self, sender: str, timeout: float | None = None) -> Said:
        """Wait for the answer of a server."""
        return await self._endpoint.receive(sender, timeout)

    def begin(
        self,
        exchange: ExchangeTable,
        size: int,
        values: torch.Tensor | None = None,
        ranks: Sequence[int] | None = None,
        width: int = 1,
    ) -> Begun:
        """Begin a collective; it follows those that this worker has begun before."""
        if isinstance(cast("object", values), Size):
            values = None
        among = tuple(range(exchange.workers)) if ranks is None else tuple(ranks)
        set_of = self._group.number(among)
        number = self._begun[set_of] = self._begun.get(set_of, 0) + 1
        rounds = exchange.together(among.index(self.rank))
        key, done = (set_of, number), self._kernel.event()
        operation = Operation(key, among, exchange, size, width, values, rounds, done)
        self._queue.append(operation)
        self._advance()
        return operation

    async def end(self, *begun: Begun) -> None:
        """Wait until these collectives have ended."""
        since = self._kernel.now
        for one in begun:
            operation = cast("Operation", one)
            if not operation.has_ended:
                await happens(operation.done)
        self._log.span("exchange", since)

    def give(self, to: int, size: int, tag: object) -> None:
        """Send a worker a message of so many bytes, without waiting."""
        self._transmit(to, (self.rank, tag), size, None)

    async def take(self, sender: int, tag: object, kind: Kind = "wait") -> None:
        """Wait for a worker's message of that tag."""
        key, since = (sender, tag), self._kernel.now
        if not self._arrived.get(key):
            event = self._kernel.event()
            self._listener = (key, event)
            await happens(event)
        self._use(key)
        self._log.span(kind, since)

    def _advance(self) -> None:
        """Go on with the first collective, as far as messages have arrived."""
        if not self._member.alive:
            return
        if (pause := self._member.resumes - self._kernel.now) > 0:
            self._kernel.after(pause, self._advance)
            return
        while self._queue:
            operation = self._queue[0]
            if not operation.current:
                operation.current = next(operation.rounds, ())
                if not operation.current:
                    self._queue.popleft()
                    operation.has_ended = True
                    operation.done.succeed()
                    continue
                self._enter(operation)
            if not self._complete(operation):
                return
            operation.current = ()

    def _enter(self, operation: Operation) -> None:
        """Begin rounds: tell the senders of what is awaited, and send the own messages."""
        group, among, key = self._group, operation.among, operation.key
        for one in operation.current:
            if one.receives is not None:
                sender = group.members[among[one.receives.peer]]
                away = group.network.latency(self._member, sender._member)
                if away and group.notifies:
                    group.kernel.after(away, partial(sender.await_message, (key, self.rank)))
                else:
                    sender.await_message((key, self.rank))
        for one in operation.current:
            if one.sends is not None:
                operation.not_arrived += 1
                operation.unsent[among[one.sends.peer]] = one.sends
        for one in operation.current:
            if one.sends is not None:
                to = among[one.sends.peer]
                if (key, to) in self._awaited:
                    self._awaited.remove((key, to))
                    self._send(operation, to)

    def await_message(self, key: tuple[tuple[int, int], int]) -> None:
        """Another worker waits for a message of a collective: send it, if its round has begun."""
        operation = self._queue[0] if self._queue else None
        if operation is not None and operation.key == key[0] and key[1] in operation.unsent:
            self._send(operation, key[1])
        else:
            self._awaited.add(key)

    def _send(self, operation: Operation, to: int) -> None:
        nbytes, values = operation.part(operation.unsent.pop(to))
        content = None if values is None else values.clone()
        self._transmit(to, (operation.key, self.rank), nbytes, content, operation)

    def _complete(self, operation: Operation) -> bool:
        """Whether the current rounds are done; takes the messages that they wait for."""
        if operation.not_arrived:
            # What was sent is a copy, but a round ends as a whole.
            return False
        key, among = operation.key, operation.among
        awaited = [one.receives for one in operation.current if one.receives is not None]
        for message in awaited:
            if (key, among[message.peer]) not in self._arrived:
                return False
        for message in awaited:
            received = self._use((key, among[message.peer]))
            if received is not None and operation.values is not None:
                own = operation.values[slice(*operation.bounds(message))]
                if message.adds:
                    own.add_(received)
                else:
                    own.copy_(received)
        return True

    def _use(self, key: object) -> torch.Tensor | None:
        waiting = self._arrived[key]
        content = waiting.popleft()
        if not waiting:
            del self._arrived[key]
        return content

    def _transmit(
        self,
        to: int,
        key: object,
        nbytes: int,
        content: torch.Tensor | None,
        operation: Operation | None = None,
    ) -> None:
        """Send bytes to a worker, again and again while its link is cut."""
        if not self._member.alive:
            return
        peer = self._group.members[to]
        scope, phase = self._scope(peer), self._endpoint.phase
        self._log.traffic.sent(peer.name, phase, scope, payload=nbytes)

        def deliver() -> None:
            peer.hear(self, key, nbytes, content)
            if operation is not None:
                operation.not_arrived -= 1
                self._advance()

        def lose() -> None:
            again = partial(self._transmit, to, key, nbytes, content, operation)
            self._kernel.after(PROBE, again)

        self._group.network.send(self._member, peer._member, nbytes, deliver, lose)

    def _scope(self, peer: GroupEndpoint) -> Scope:
        return "within" if self._member.host == peer._member.host else "between"

    def hear(
        self, sender: GroupEndpoint, key: object, nbytes: int, content: torch.Tensor | None
    ) -> None:
        """Take a message that has arrived."""
        phase = sender._endpoint.phase
        self._log.traffic.received(sender.name, phase, self._scope(sender), payload=nbytes)
        self._arrived.setdefault(key, deque()).append(content)
        if self._listener is not None and self._listener[0] == key:
            listener, self._listener = self._listener[1], None
            listener.succeed()
        self._advance()
