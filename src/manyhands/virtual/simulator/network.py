"""Messages between hosts: how long they take, and which are lost.

Every host has one port. Its outgoing and its incoming bandwidth, each that of the host's fastest
link, are shared equally by all transfers of the host that are under way, as real flows share them.
(That they end together in the end, as if they had queued, is not enough: updates that arrive
together are answered together, and meanwhile nothing comes in.) A message is cut through, not
stored and forwarded: the receiver's port sees its first byte a latency after it left, so on idle
ports it takes latency + size / bandwidth. Each port shares by itself: what a transfer cannot use at
one port, because it is held up at the other, is not given to others. Within one host there is no
port and no link: a message is copied, and handed over to a process that has to wake up for it.

A message is lost if its receiver dies before it is complete, if its sender dies before the last
byte has left, or if the two are cut off from each other at any moment in between.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from functools import partial
from heapq import heappop, heappush
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from manyhands.cluster import Cluster, Link
    from manyhands.virtual.simulator.kernel import Kernel
    from manyhands.virtual.simulator.member import VirtualProcess


@dataclass(eq=False, slots=True)
class Transfer:
    """One message on its way."""

    sender: VirtualProcess
    receiver: VirtualProcess
    nbytes: int
    link: Link | None
    deliver: Callable[[], object]
    lose: Callable[[], object]
    began: float
    lives: tuple[int, int]
    """The sender's and the receiver's, when the first byte left."""
    left: float = math.inf
    """When the last byte left."""
    taken: bool = False
    """Whether the receiver's port is through with it."""
    ports: list[Port] = field(default_factory=list)
    """Those that it is at."""
    is_lost: bool = False


class Port:
    """One direction of a host's traffic.

    How many bytes each transfer has got since the port was last idle, in `_given`, is the same for
    all that have been there all the time; one that joins is done when that has grown by its size.

    Args:
        kernel: the clock.
        bandwidth: bytes per second.
        done: called with a transfer that is through.
    """

    def __init__(
        self, kernel: Kernel, bandwidth: float, done: Callable[[Transfer], object]
    ) -> None:
        self._kernel = kernel
        self._bandwidth = bandwidth
        self._done = done
        self._here: dict[Transfer, float] = {}
        """Until what is given to each, by transfer."""
        self._next: list[tuple[float, int, Transfer]] = []
        self._joined = 0
        self._given = 0.0
        self._since = 0.0
        self._changes = 0
        self._due = math.inf
        """When the port looks again whether a transfer is through."""
        self._looks = 0
        """How often it was to look; only the last of these counts."""

    def join(self, transfer: Transfer) -> None:
        """Share the port."""
        self._give()
        self._joined += 1
        until = self._given + transfer.nbytes
        self._here[transfer] = until
        transfer.ports.append(self)
        heappush(self._next, (until, self._joined, transfer))
        self._changed()

    def leave(self, transfer: Transfer) -> None:
        """Give up a share."""
        self._give()
        del self._here[transfer]
        self._changed()

    def of(self, member: VirtualProcess) -> list[Transfer]:
        """The transfers from or to a member."""
        return [one for one in self._here if member in (one.sender, one.receiver)]

    def _give(self) -> None:
        now = self._kernel.now
        if self._here:
            self._given += (now - self._since) * self._bandwidth / len(self._here)
        self._since = now

    def _changed(self) -> None:
        """Look when the next transfer is through; one that is looked for earlier does no harm."""
        self._changes += 1
        while self._next and self._next[0][2] not in self._here:
            heappop(self._next)
        if not self._next:
            self._given, self._due = 0.0, math.inf
            self._looks += 1
            return
        seconds = max(0.0, self._next[0][0] - self._given) * len(self._here) / self._bandwidth
        due = self._kernel.now + seconds
        if due < self._due:
            self._due = due
            self._looks += 1
            self._kernel.after(seconds, partial(self._look, self._looks, self._changes))

    def _look(self, number: int, changes: int) -> None:
        if number != self._looks:
            return
        self._due = math.inf
        self._give()
        if changes == self._changes:
            # Exactly when it was foreseen, whatever the sums of shares were rounded to.
            self._given = max(self._given, self._next[0][0])
        through = []
        while self._next and self._next[0][0] <= self._given:
            transfer = heappop(self._next)[2]
            if self._here.pop(transfer, None) is not None:
                transfer.ports.remove(self)
                through.append(transfer)
        self._changed()
        for transfer in through:
            self._done(transfer)


class Network:
    """The way from any member to any other.

    Args:
        kernel: the clock.
        cluster: hosts and links.
        copy_rate: bytes per second within one host.
        handover: seconds that a message within one host takes beside its copying.
    """

    def __init__(
        self, kernel: Kernel, cluster: Cluster, copy_rate: float, handover: float = 0.0
    ) -> None:
        self._kernel = kernel
        self._cluster = cluster
        self._copy_rate = copy_rate
        self._handover = handover
        self._links: dict[tuple[str, str], Link | None] = {}
        self._out: dict[str, Port] = {}
        self._in: dict[str, Port] = {}
        self._cuts: dict[tuple[str, str], list[tuple[float, float]]] = {}
        """When two members, in either order, are cut off from each other."""
        self._losing: dict[tuple[str, str], int] = {}
        """By sender and receiver, how many of the next messages are lost."""

    def cut(self, one: str, other: str, start: float, stop: float) -> None:
        """Let nothing through between two members from `start` to `stop`."""
        for pair in ((one, other), (other, one)):
            self._cuts.setdefault(pair, []).append((start, stop))

    def lose_next(self, sender: str, receiver: str) -> None:
        """Lose the next message from one member to another."""
        self._losing[sender, receiver] = self._losing.get((sender, receiver), 0) + 1

    def reaches(self, one: VirtualProcess, other: VirtualProcess) -> bool:
        """Whether a message could be sent now."""
        return other.alive and not self._is_cut(one, other, self._kernel.now)

    def send(
        self,
        sender: VirtualProcess,
        receiver: VirtualProcess,
        nbytes: int,
        deliver: Callable[[], object],
        lose: Callable[[], object],
    ) -> None:
        """Send so many bytes; then either `deliver` or `lose` is called, once."""
        if not self.reaches(sender, receiver):
            lose()
            return
        if self._losing.get((sender.name, receiver.name)):
            self._losing[sender.name, receiver.name] -= 1
            self._kernel.after(0.0, lose)
            return
        link, now = self._link(sender.host, receiver.host), self._kernel.now
        lives = (sender.life, receiver.life)
        transfer = Transfer(sender, receiver, nbytes, link, deliver, lose, now, lives)
        if link is None:
            seconds = nbytes / self._copy_rate
            transfer.left = now + seconds
            self._kernel.after(seconds + self._handover, partial(self._arrive, transfer))
            return
        self._port(self._out, sender.host).join(transfer)
        if link.latency:
            self._kernel.after(link.latency, partial(self._reach, transfer))
        else:
            self._reach(transfer)

    def drop(self, member: VirtualProcess) -> None:
        """A member died: what it had not sent, and what it had not taken in, is lost."""
        for ports in (self._out, self._in):
            port = ports.get(member.host)
            for transfer in port.of(member) if port else ():
                # What has left a sender that dies afterwards is on its way all the same.
                if transfer.receiver is member or transfer.left == math.inf:
                    self._lose(transfer)

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
            done = self._leave if ports is self._out else self._take_in
            port = ports[host] = Port(self._kernel, fastest, done)
        return port

    def _reach(self, transfer: Transfer) -> None:
        """The first byte is at the receiver's port."""
        if transfer.is_lost:
            return
        if self._is_sound(transfer):
            self._port(self._in, transfer.receiver.host).join(transfer)
        else:
            self._lose(transfer)

    def _leave(self, transfer: Transfer) -> None:
        """The last byte leaves, though no faster than the link takes it."""
        slowest = transfer.link.bandwidth if transfer.link else math.inf
        transfer.left = max(self._kernel.now, transfer.began + transfer.nbytes / slowest)
        self._expect(transfer)

    def _take_in(self, transfer: Transfer) -> None:
        """The receiver's port is through with it, though no earlier than it comes."""
        transfer.taken = True
        self._expect(transfer)

    def _expect(self, transfer: Transfer) -> None:
        """Have it arrive when both ports are through with it."""
        if not transfer.taken or transfer.left == math.inf:
            return
        wait = transfer.left + (transfer.link.latency if transfer.link else 0.0) - self._kernel.now
        if wait > 0:
            self._kernel.after(wait, partial(self._arrive, transfer))
        else:
            self._arrive(transfer)

    def _arrive(self, transfer: Transfer) -> None:
        if transfer.is_lost:
            return
        if self._is_sound(transfer):
            transfer.deliver()
        else:
            self._lose(transfer)

    def _lose(self, transfer: Transfer) -> None:
        transfer.is_lost = True
        for port in transfer.ports:
            port.leave(transfer)
        transfer.ports.clear()
        transfer.lose()

    def _is_sound(self, transfer: Transfer) -> bool:
        sender, receiver = transfer.sender, transfer.receiver
        sending, receiving = transfer.lives
        return (
            receiver.is_in(receiving)
            and (sender.is_in(sending) or sender.died(sending) >= transfer.left)
            and not self._is_cut(sender, receiver, transfer.began)
        )

    def _is_cut(self, one: VirtualProcess, other: VirtualProcess, since: float) -> bool:
        """Whether the two are, or since then were, cut off from each other."""
        cuts = self._cuts.get((one.name, other.name))
        if cuts is None:
            return False
        now = self._kernel.now
        return any(start <= now and since < stop for start, stop in cuts)
