"""Messages between hosts: how long they take, and which are lost.

Every host has one port. Its outgoing and its incoming bandwidth, each that of the host's fastest
link, are shared by all transfers of the host: first come, first served, one whole message at a
time. (Real flows share a port at once; together they take as long, and the last of them ends at
the same time.) A message is cut through, not stored and forwarded: it occupies the sender's port
from its first byte to its last and the receiver's port likewise, a latency later, so on idle
ports it takes latency + size / bandwidth. What lies between the ports holds whatever a busy
receiver cannot take yet. Within one host there is no port and no latency: a message is copied.

A message is lost if its receiver dies before it is complete, if its sender dies before the last
byte has left, or if the two are cut off from each other at any moment in between.
"""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from manyhands.cluster import Cluster, Link
    from manyhands.virtual.kernel import Kernel
    from manyhands.virtual.member import Member


@dataclass(eq=False, slots=True)
class Transfer:
    """One message on its way."""

    sender: Member
    receiver: Member
    nbytes: int
    link: Link | None
    deliver: Callable[[], object]
    lose: Callable[[], object]
    lives: tuple[int, int] = (0, 0)
    """The sender's and the receiver's, when the first byte left."""
    began: float = math.inf
    left: float = math.inf
    """When the last byte leaves."""


class Port:
    """One direction of a host's traffic.

    Args:
        kernel: the clock.
        bandwidth: bytes per second.
        admit: whether a transfer still makes sense when its turn comes.
        begin: called with a transfer whose turn has come and the seconds it occupies the port.
    """

    def __init__(
        self,
        kernel: Kernel,
        bandwidth: float,
        admit: Callable[[Transfer], bool],
        begin: Callable[[Transfer, float], None],
    ) -> None:
        self._kernel = kernel
        self._bandwidth = bandwidth
        self._admit = admit
        self._begin = begin
        self._queue: deque[Transfer] = deque()
        self._busy = False

    def join(self, transfer: Transfer) -> None:
        """Queue up."""
        self._queue.append(transfer)
        if not self._busy:
            self._turn()

    def _turn(self) -> None:
        self._busy = False
        while self._queue:
            transfer = self._queue.popleft()
            if self._admit(transfer):
                self._busy = True
                seconds = transfer.nbytes / self._bandwidth
                self._begin(transfer, seconds)
                self._kernel.after(seconds, self._turn)
                return

    def purge(self, member: Member) -> None:
        """Lose what waits to leave, or to be taken in by, a member that died."""
        waiting, self._queue = self._queue, deque()
        for transfer in waiting:
            if member in (transfer.sender, transfer.receiver):
                transfer.lose()
            else:
                self._queue.append(transfer)


class Network:
    """The way from any member to any other.

    Args:
        kernel: the clock.
        cluster: hosts and links.
        copy_rate: bytes per second within one host.
    """

    def __init__(self, kernel: Kernel, cluster: Cluster, copy_rate: float) -> None:
        self._kernel = kernel
        self._cluster = cluster
        self._copy_rate = copy_rate
        self._links: dict[tuple[str, str], Link | None] = {}
        self._out: dict[str, Port] = {}
        self._in: dict[str, Port] = {}
        self._cuts: dict[frozenset[str], list[tuple[float, float]]] = {}

    def cut(self, one: str, other: str, start: float, stop: float) -> None:
        """Let nothing through between two members from `start` to `stop`."""
        self._cuts.setdefault(frozenset((one, other)), []).append((start, stop))

    def reaches(self, one: Member, other: Member) -> bool:
        """Whether a message could be sent now."""
        return other.alive and not self._is_cut(one, other, self._kernel.now)

    def send(
        self,
        sender: Member,
        receiver: Member,
        nbytes: int,
        deliver: Callable[[], object],
        lose: Callable[[], object],
    ) -> None:
        """Send so many bytes; then either `deliver` or `lose` is called, once."""
        link = self._link(sender.host, receiver.host)
        transfer = Transfer(sender, receiver, nbytes, link, deliver, lose)
        if not self.reaches(sender, receiver):
            lose()
        elif link is None:
            seconds = nbytes / self._copy_rate
            self._leave(transfer, seconds)
            self._kernel.after(seconds, partial(self._arrive, transfer))
        else:
            self._port(self._out, sender.host).join(transfer)

    def drop(self, member: Member) -> None:
        """A member died: what it had not sent, and what it had not taken in, is lost."""
        for ports in (self._out, self._in):
            if member.host in ports:
                ports[member.host].purge(member)

    def _link(self, one: str, other: str) -> Link | None:
        found = self._links.get((one, other))
        if found is None and one != other:
            found = self._cluster.between(one, other)
            if found is None:
                raise ValueError(f"the cluster has no link between {one} and {other}; give it one")
            self._links[one, other] = found
        return found

    def _port(self, ports: dict[str, Port], host: str) -> Port:
        port = ports.get(host)
        if port is None:
            links = [link for one, other, link in self._cluster.links if host in (one, other)]
            links += [self._cluster.link] if self._cluster.link else []
            fastest = max(link.bandwidth for link in links)
            begin = self._leave_port if ports is self._out else self._take_in
            port = ports[host] = Port(self._kernel, fastest, self._admit, begin)
        return port

    def _admit(self, transfer: Transfer) -> bool:
        if transfer.began < math.inf:
            sound = self._is_sound(transfer)
        else:
            sound = self.reaches(transfer.sender, transfer.receiver)
        if not sound:
            transfer.lose()
        return sound

    def _leave(self, transfer: Transfer, seconds: float) -> None:
        transfer.began = self._kernel.now
        transfer.left = transfer.began + seconds
        transfer.lives = (transfer.sender.life, transfer.receiver.life)

    def _leave_port(self, transfer: Transfer, seconds: float) -> None:
        """The first byte leaves: the receiver's port sees it a latency later."""
        link = transfer.link
        if link is None:
            raise AssertionError("a message within one host uses no port")
        self._leave(transfer, max(seconds, transfer.nbytes / link.bandwidth))
        join = partial(self._port(self._in, transfer.receiver.host).join, transfer)
        if link.latency:
            self._kernel.after(link.latency, join)
        else:
            join()

    def _take_in(self, transfer: Transfer, seconds: float) -> None:
        """The receiver's port takes it in, though no faster than it comes."""
        now = self._kernel.now
        latency = transfer.link.latency if transfer.link else 0.0
        arrives = max(now + seconds, transfer.left + latency)
        self._kernel.after(arrives - now, partial(self._arrive, transfer))

    def _arrive(self, transfer: Transfer) -> None:
        if self._is_sound(transfer):
            transfer.deliver()
        else:
            transfer.lose()

    def _is_sound(self, transfer: Transfer) -> bool:
        sender, receiver = transfer.sender, transfer.receiver
        sending, receiving = transfer.lives
        return (
            receiver.is_in(receiving)
            and sender.died(sending) >= transfer.left
            and not self._is_cut(sender, receiver, transfer.began)
        )

    def _is_cut(self, one: Member, other: Member, since: float) -> bool:
        """Whether the two are, or since then were, cut off from each other."""
        if not self._cuts:
            return False
        cuts = self._cuts.get(frozenset((one.name, other.name)), ())
        return any(start <= self._kernel.now and since < stop for start, stop in cuts)
