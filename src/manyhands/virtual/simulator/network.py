"""Network model: the duration of messages between hosts, and which of them are lost.

Every host has one port. Its outgoing and its incoming bandwidth, each that of the host's fastest
link, are shared equally by all its transfers in progress, as real flows share them. (A queue would
give the same total time, but not the same behaviour: updates that arrive together are answered
together, and nothing arrives meanwhile.) Switching is cut-through, not store-and-forward: the
receiver's port sees the first byte one latency after it left, so on idle ports a message takes
latency + size / bandwidth. Each port shares independently: bandwidth that a transfer cannot use at
one port, because it is limited at the other, is not given to other transfers. Within one host there
is no port and no link: a message is copied, and the receiving process has to wake up.

A message between two sites of a cluster also passes the uplink of its sender's site and the
downlink of its receiver's site. Both are ports of the same kind, shared by all hosts of the site.

A message is lost if its receiver dies before it is complete, if its sender dies before the last
byte has left, or if the link between the two is cut at any moment in between.
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
    """One message in flight."""

    sender: VirtualProcess
    receiver: VirtualProcess
    nbytes: int
    link: Link | None
    deliver: Callable[[], object]
    lose: Callable[[], object]
    began: float
    lives: tuple[int, int]
    """Incarnations of the sender and the receiver when the first byte left."""
    leaving: int = 1
    """Ports on the sender's side that have not sent it completely: its host's, its site's."""
    entering: int = 1
    """Ports on the receiver's side that have not received it completely."""
    left: float = math.inf
    """When the last byte left."""
    ports: list[Port] = field(default_factory=list)
    """The ports that it occupies."""
    is_lost: bool = False


class Port:
    """One direction of the traffic of a host or a site, shared equally by its transfers.

    `_given` counts the bytes per transfer since the port was last idle; a transfer is complete when
    that count has grown by its size since it joined.

    Args:
        kernel: the clock.
        bandwidth: bytes per second.
        done: called with a transfer that is complete.
    """

    def __init__(
        self, kernel: Kernel, bandwidth: float, done: Callable[[Transfer], object]
    ) -> None:
        self._kernel = kernel
        self._bandwidth = bandwidth
        self._done = done
        self._here: dict[Transfer, float] = {}
        """By transfer, the value of `_given` at which it is complete."""
        self._next: list[tuple[float, int, Transfer]] = []
        self._joined = 0
        self._given = 0.0
        self._since = 0.0
        self._changes = 0
        self._due = math.inf
        """Time of the next check for a complete transfer."""
        self._looks = 0
        """Number of scheduled checks; only the last one is valid."""

    def join(self, transfer: Transfer) -> None:
        """Add a transfer to the port."""
        here, now = self._here, self._kernel.now
        transfer.ports.append(self)
        self._joined += 1
        if not here:
            # As `_changed` would: an idle port has counted no bytes.
            until = float(transfer.nbytes)
            here[transfer] = until
            self._next.append((until, self._joined, transfer))
            self._changes = changes = self._changes + 1
            self._looks = number = self._looks + 1
            seconds = until / self._bandwidth
            self._since, self._due = now, now + seconds
            self._kernel.after(seconds, partial(self._look, number, changes))
            return
        self._given += (now - self._since) * self._bandwidth / len(here)
        self._since = now
        until = self._given + transfer.nbytes
        here[transfer] = until
        heappush(self._next, (until, self._joined, transfer))
        self._changed()

    def leave(self, transfer: Transfer) -> None:
        """Remove a transfer from the port."""
        self._give()
        del self._here[transfer]
        self._changed()

    def of(self, member: VirtualProcess) -> list[Transfer]:
        """The transfers from or to a process."""
        return [one for one in self._here if member in (one.sender, one.receiver)]

    def _give(self) -> None:
        now, here = self._kernel.now, self._here
        if here:
            self._given += (now - self._since) * self._bandwidth / len(here)
        self._since = now

    def _changed(self) -> None:
        """Schedule the check for the next complete transfer; a check too early is harmless."""
        kernel, here, upcoming = self._kernel, self._here, self._next
        self._changes = changes = self._changes + 1
        while upcoming and upcoming[0][2] not in here:
            heappop(upcoming)
        if not upcoming:
            self._given, self._due = 0.0, math.inf
            self._looks += 1
            return
        missing = upcoming[0][0] - self._given
        seconds = missing * len(here) / self._bandwidth if missing > 0 else 0.0
        due = kernel.now + seconds
        if due < self._due:
            self._due = due
            self._looks = number = self._looks + 1
            kernel.after(seconds, partial(self._look, number, changes))

    def _look(self, number: int, changes: int) -> None:
        if number != self._looks:
            return
        here, upcoming = self._here, self._next
        if changes == self._changes and len(here) == 1:
            # The only transfer is complete, as predicted: the port is idle.
            transfer = upcoming[0][2]
            here.clear()
            upcoming.clear()
            self._given, self._due, self._since = 0.0, math.inf, self._kernel.now
            self._changes += 1
            self._looks += 1
            transfer.ports.remove(self)
            self._done(transfer)
            return
        self._due = math.inf
        self._give()
        given = self._given
        if changes == self._changes and upcoming[0][0] > given:
            # Exactly at the predicted time, independent of rounding in the sums.
            self._given = given = upcoming[0][0]
        through = []
        while upcoming and upcoming[0][0] <= given:
            transfer = heappop(upcoming)[2]
            if here.pop(transfer, None) is not None:
                transfer.ports.remove(self)
                through.append(transfer)
        self._changed()
        for transfer in through:
            self._done(transfer)


class Network:
    """The network between all processes.

    Args:
        kernel: the clock.
        cluster: hosts and links.
        copy_rate: bytes per second within one host.
        handover: additional seconds of a message within one host.
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
        self._up: dict[str, Port] = {}
        """By site, the port to the other sites; so for"""
        self._down: dict[str, Port] = {}
        self._cuts: dict[tuple[str, str], list[tuple[float, float]]] = {}
        """By pair of processes, in either order, the times at which their link is cut."""
        self._losing: dict[tuple[str, str], int] = {}
        """By sender and receiver, the number of next messages to lose."""

    def cut(self, one: str, other: str, start: float, stop: float) -> None:
        """Cut the link between two processes from `start` to `stop`."""
        for pair in ((one, other), (other, one)):
            self._cuts.setdefault(pair, []).append((start, stop))

    def lose_next(self, sender: str, receiver: str) -> None:
        """Lose the next message from one process to another."""
        self._losing[sender, receiver] = self._losing.get((sender, receiver), 0) + 1

    def reaches(self, one: VirtualProcess, other: VirtualProcess) -> bool:
        """Whether a message could be sent now."""
        return other.alive and not self._is_cut(one, other, self._kernel.now)

    def latency(self, one: VirtualProcess, other: VirtualProcess) -> float:
        """Seconds that a message without content takes between two hosts; 0 within one."""
        link = self._link(one.host, other.host)
        return 0.0 if link is None else link.latency

    def send(
        self,
        sender: VirtualProcess,
        receiver: VirtualProcess,
        nbytes: int,
        deliver: Callable[[], object],
        lose: Callable[[], object],
    ) -> None:
        """Send some bytes; then either `deliver` or `lose` is called, once."""
        if not receiver.alive or (self._cuts and not self.reaches(sender, receiver)):
            lose()
            return
        if self._losing and self._losing.get((sender.name, receiver.name)):
            self._losing[sender.name, receiver.name] -= 1
            self._kernel.after(0.0, lose)
            return
        link = self._links.get((sender.host, receiver.host))
        if link is None:
            link = self._link(sender.host, receiver.host)
        now = self._kernel.now
        lives = (sender.life, receiver.life)
        transfer = Transfer(sender, receiver, nbytes, link, deliver, lose, now, lives)
        if link is None:
            seconds = nbytes / self._copy_rate
            transfer.left = now + seconds
            self._kernel.after(seconds + self._handover, partial(self._arrive, transfer))
            return
        (self._out.get(sender.host) or self._port(self._out, sender.host)).join(transfer)
        if self._cluster.sites and self._crosses(transfer):
            transfer.leaving = transfer.entering = 2
            self._site_port(self._up, sender.host).join(transfer)
        if link.latency:
            self._kernel.after(link.latency, partial(self._reach, transfer))
        else:
            self._reach(transfer)

    def drop(self, member: VirtualProcess) -> None:
        """Lose the unsent and unreceived messages of a process that died."""
        site = self._cluster.site_of(member.host)
        at_site = () if site is None else (self._up.get(site.name), self._down.get(site.name))
        for port in (self._out.get(member.host), self._in.get(member.host), *at_site):
            for transfer in port.of(member) if port else ():
                # A message that has left its sender arrives even if the sender dies.
                if transfer.receiver is member or transfer.left == math.inf:
                    self._lose(transfer)

    def _link(self, one: str, other: str) -> Link | None:
        found = self._links.get((one, other))
        if found is None and one != other:
            found = self._cluster.between(one, other)
            if found is None:
                raise ValueError(f"the cluster has no link between {one} and {other}: add one")
            self._links[one, other] = found
        return found

    def _port(self, ports: dict[str, Port], host: str) -> Port:
        port = ports.get(host)
        if port is None:
            links = [link for one, other, link in self._cluster.links if host in (one, other)]
            site = self._cluster.site_of(host)
            own = self._cluster.link if site is None else site.link or site.uplink
            links += [own] if own else []
            fastest = max(link.bandwidth for link in links)
            done = self._leave if ports is self._out else self._take_in
            port = ports[host] = Port(self._kernel, fastest, done)
        return port

    def _crosses(self, transfer: Transfer) -> bool:
        """Whether the transfer passes the uplinks of two sites; a pair's own link passes none."""
        one, other = transfer.sender.host, transfer.receiver.host
        own = any({one, other} == {*pair} for *pair, _ in self._cluster.links)
        return not own and self._cluster.site_of(one) != self._cluster.site_of(other)

    def _site_port(self, ports: dict[str, Port], host: str) -> Port:
        site = self._cluster.site_of(host)
        if site is None or site.uplink is None:
            raise ValueError(f"the site of {host} has no link to the other sites: set its uplink")
        port = ports.get(site.name)
        if port is None:
            done = self._leave if ports is self._up else self._take_in
            port = ports[site.name] = Port(self._kernel, site.uplink.bandwidth, done)
        return port

    def _reach(self, transfer: Transfer) -> None:
        """The first byte reaches the receiver's port, and that of its site."""
        if transfer.is_lost:
            return
        if self._is_sound(transfer):
            if transfer.entering > 1:
                self._site_port(self._down, transfer.receiver.host).join(transfer)
            host = transfer.receiver.host
            (self._in.get(host) or self._port(self._in, host)).join(transfer)
        else:
            self._lose(transfer)

    def _leave(self, transfer: Transfer) -> None:
        """The last byte leaves, no faster than the link's bandwidth allows."""
        transfer.leaving -= 1
        if transfer.leaving:
            return
        slowest = transfer.link.bandwidth if transfer.link else math.inf
        transfer.left = max(self._kernel.now, transfer.began + transfer.nbytes / slowest)
        if not transfer.entering:
            self._expect(transfer)

    def _take_in(self, transfer: Transfer) -> None:
        """A port of the receiver has received it, no earlier than the last byte arrives."""
        transfer.entering -= 1
        if not transfer.entering and transfer.left != math.inf:
            self._expect(transfer)

    def _expect(self, transfer: Transfer) -> None:
        """All ports are done: schedule the arrival of the last byte."""
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
            receiver.alive
            and receiver.life == receiving
            and ((sender.alive and sender.life == sending) or sender.died(sending) >= transfer.left)
            and not (self._cuts and self._is_cut(sender, receiver, transfer.began))
        )

    def _is_cut(self, one: VirtualProcess, other: VirtualProcess, since: float) -> bool:
        """Whether the link between the two is or, since then, was cut."""
        if not self._cuts:
            return False
        cuts = self._cuts.get((one.name, other.name))
        if cuts is None:
            return False
        now = self._kernel.now
        return any(start <= now and since < stop for start, stop in cuts)
