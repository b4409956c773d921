"""Network model: the duration of messages between hosts, and which of them are lost.

Every host has one port. Its outgoing and its incoming bandwidth, each that of the fastest link that
the host uses, are shared by all its transfers in progress, equally or as streams of TCP share them
(see `ports`). A queue would give the same total time, but not the same behaviour: updates that
arrive together are answered together, and nothing arrives meanwhile
(`docs/decisions/0013-shared-ports.md`). Switching is cut-through, not store-and-forward: the
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
from functools import partial
from random import Random
from typing import TYPE_CHECKING

from manyhands.virtual.simulator.ports import EQUAL, Port, Sharing, Transfer

if TYPE_CHECKING:
    from collections.abc import Callable

    from manyhands.cluster import Cluster, Link
    from manyhands.trace import Phase
    from manyhands.virtual.simulator.kernel import Kernel
    from manyhands.virtual.simulator.member import VirtualProcess


class Network:
    """The network between all processes.

    Args:
        kernel: the clock.
        cluster: hosts and links.
        copy_rate: bytes per second within one host.
        handover: additional seconds of a message within one host.
        sharing: how transfers share ports.
        seed: of the shares that are drawn.
        starts_free: whether what workers receive before their first batch takes no time.
    """

    def __init__(
        self,
        kernel: Kernel,
        cluster: Cluster,
        copy_rate: float,
        handover: float = 0.0,
        sharing: Sharing = EQUAL,
        seed: int = 0,
        *,
        starts_free: bool = False,
    ) -> None:
        self._kernel = kernel
        self._cluster = cluster
        self._copy_rate = copy_rate
        self._handover = handover
        self._sharing = sharing
        self._starts_free = starts_free
        self._rng = Random(seed)  # noqa: S311 - no secrets
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

    def timed(self, phase: Phase, nbytes: int) -> int:
        """Of so many bytes that are sent in a phase, those that take time."""
        return 0 if self._starts_free and phase == "start" else nbytes

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
            # Not at once: its sender is still in the call that sends it, and may send it again.
            self._kernel.after(0.0, lose)
            return
        link = self._links.get((sender.host, receiver.host))
        if link is None:
            link = self._link(sender.host, receiver.host)
        now = self._kernel.now
        # As they are now: what was sent to an incarnation that has died must not reach its
        # successor.
        lives = (sender.life, receiver.life)
        transfer = Transfer(sender, receiver, nbytes, link, deliver, lose, now, lives)
        if link is None:
            seconds = nbytes / self._copy_rate
            transfer.left = now + seconds
            self._kernel.after(seconds + self._handover, partial(self._arrive, transfer))
            return
        if self._sharing.spread and nbytes >= self._sharing.least:
            transfer.share = self._rng.lognormvariate(0.0, self._sharing.spread)
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
            pairs = {(a, b): x for a, b, x in self._cluster.links if host in (a, b)}
            links = [*pairs.values()]
            site = self._cluster.site_of(host)
            own = self._cluster.link if site is None else site.link or site.uplink
            # A link that every pair of this host overrides is not that of its network card.
            others = {name for pair in pairs for name in pair} - {host}
            links += [own] if own and len(others) < len(self._cluster.hosts) - 1 else []
            fastest = max(link.bandwidth for link in links)
            done = self._leave if ports is self._out else self._take_in
            port = ports[host] = Port(self._kernel, fastest, done, self._sharing.lost)
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
            entrance = self._in.get(host) or self._port(self._in, host)
            entrance.join(transfer)
            if self._sharing.lost and transfer.nbytes >= self._sharing.least:
                self._pair(transfer, self._out[transfer.sender.host], entrance)
        else:
            self._lose(transfer)

    def _pair(self, transfer: Transfer, leaves: Port, enters: Port) -> None:
        """The transfer occupies the ports of both hosts, and may compete with others at both."""
        if leaves in transfer.ports:
            transfer.ends = (leaves, enters)
            leaves.compete(transfer, enters)
            enters.compete(transfer, leaves)

    def _part(self, transfer: Transfer) -> None:
        """The transfer has left one of the two ports."""
        if transfer.ends is not None:
            leaves, enters = transfer.ends
            transfer.ends = None
            leaves.compete_no_more(transfer, enters)
            enters.compete_no_more(transfer, leaves)

    def _leave(self, transfer: Transfer) -> None:
        """The last byte leaves, no faster than the link's bandwidth allows."""
        self._part(transfer)
        transfer.leaving -= 1
        if transfer.leaving:
            return
        slowest = transfer.link.bandwidth if transfer.link else math.inf
        transfer.left = max(self._kernel.now, transfer.began + transfer.nbytes / slowest)
        if not transfer.entering:
            self._expect(transfer)

    def _take_in(self, transfer: Transfer) -> None:
        """A port of the receiver has received it, no earlier than the last byte arrives."""
        self._part(transfer)
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
        self._part(transfer)
        # Last: the sender may send again at once, on ports that this transfer has left.
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
