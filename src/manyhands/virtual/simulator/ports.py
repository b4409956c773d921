"""Ports: one direction of the traffic of a host or a site, and how transfers share it.

Streams of TCP do not share a link equally, and this changes more than the order in which they end:
workers that would all be answered at the same moment are answered one after the other, and then no
longer meet at their server. A share is drawn for every transfer, and stays the same.

Streams that compete with others at both ends, with different ones at each, fill neither link: TCP
needs some round trips to find out that a share has become free, and by then the transfer is over.
So a port is slower while it has such transfers. `LIKE_TCP` has what was measured (see
`docs/decisions/0085-shares-of-links.md`).
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from functools import partial
from heapq import heappop, heappush
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from manyhands.cluster import Link
    from manyhands.virtual.simulator.kernel import Kernel
    from manyhands.virtual.simulator.member import VirtualProcess


@dataclass(frozen=True, slots=True)
class Sharing:
    """How transfers share ports."""

    spread: float = 0.0
    """Standard deviation of the logarithm of a transfer's share; 0 shares equally."""
    lost: float = 0.0
    """How much longer transfers take that compete with others at both ends."""
    least: int = 16384
    """Bytes below which a transfer is a burst of a few packets, for which none of this holds."""


EQUAL = Sharing()
LIKE_TCP = Sharing(spread=0.5, lost=0.3)


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
    share: float = 1.0
    """Its share of a port, relative to those of other transfers."""
    ends: tuple[Port, Port] | None = None
    """The ports of both hosts, while it occupies both and may compete with others."""


class Port:
    """One direction of the traffic of a host or a site, shared by its transfers.

    `_given` counts the bytes for a share of 1 since the port was last idle; a transfer is complete
    when that count has grown by its size, divided by its share, since it joined.

    Args:
        kernel: the clock.
        bandwidth: bytes per second.
        done: called with a transfer that is complete.
        lost: how much longer transfers take that compete with others at both ends.
    """

    def __init__(
        self,
        kernel: Kernel,
        bandwidth: float,
        done: Callable[[Transfer], object],
        lost: float = 0.0,
    ) -> None:
        self._kernel = kernel
        self._bandwidth = bandwidth
        self._done = done
        self._lost = lost
        self._here: dict[Transfer, float] = {}
        """By transfer, the value of `_given` at which it is complete."""
        self._shares = 0.0
        """Sum of the shares of all transfers."""
        self._next: list[tuple[float, int, Transfer]] = []
        self._joined = 0
        self._given = 0.0
        self._since = 0.0
        self._changes = 0
        self._due = math.inf
        """Time of the next check for a complete transfer."""
        self._looks = 0
        """Number of scheduled checks; only the last one is valid."""
        self._others: dict[Port, list[Transfer]] = {}
        """By port at the other end, the transfers that may compete with others."""
        self._crowded = 0
        """Number of those that compete with others at their other end."""

    def join(self, transfer: Transfer) -> None:
        """Add a transfer to the port."""
        here, now = self._here, self._kernel.now
        transfer.ports.append(self)
        self._joined += 1
        if not here:
            # As `_changed` would: an idle port has counted no bytes.
            until = transfer.nbytes / transfer.share
            here[transfer] = until
            self._shares = transfer.share
            self._next.append((until, self._joined, transfer))
            self._changes = changes = self._changes + 1
            self._looks = number = self._looks + 1
            seconds = transfer.nbytes / self._bandwidth
            self._since, self._due = now, now + seconds
            self._kernel.after(seconds, partial(self._look, number, changes))
            return
        # Before the sum of the shares changes, here and below: the bytes so far passed at the
        # former speed.
        self._give()
        self._shares += transfer.share
        until = self._given + transfer.nbytes / transfer.share
        here[transfer] = until
        heappush(self._next, (until, self._joined, transfer))
        self._changed()

    def leave(self, transfer: Transfer) -> None:
        """Remove a transfer from the port."""
        self._give()
        del self._here[transfer]
        self._shares -= transfer.share
        self._changed()

    def of(self, member: VirtualProcess) -> list[Transfer]:
        """The transfers from or to a process."""
        return [one for one in self._here if member in (one.sender, one.receiver)]

    def compete(self, transfer: Transfer, other: Port) -> None:
        """Note that a transfer occupies another host's port too."""
        before = len(self._others)
        if before + (other not in self._others) < 2:
            # The usual case: all of its transfers have the same other end, and nothing changes.
            self._others.setdefault(other, []).append(transfer)
            return
        self._give()
        self._others.setdefault(other, []).append(transfer)
        if before < 2:
            for port, transfers in self._others.items():
                port._crowd(len(transfers))
        else:
            other._crowd(1)
        self._changed()

    def compete_no_more(self, transfer: Transfer, other: Port) -> None:
        """Note that a transfer no longer occupies both ports."""
        before = len(self._others)
        if before > 1:
            self._give()
        self._others[other].remove(transfer)
        if not self._others[other]:
            del self._others[other]
        if before > 1:
            other._crowd(-1)
            if len(self._others) < 2:
                for port, transfers in self._others.items():
                    port._crowd(-len(transfers))
            self._changed()

    def _crowd(self, more: int) -> None:
        """So many more transfers compete with others at their other end."""
        self._give()
        self._crowded += more
        self._changed()

    def _speed(self) -> float:
        """Bytes per second for all transfers."""
        if self._crowded and len(self._others) > 1:
            return self._bandwidth / (1 + self._lost * self._crowded / len(self._here))
        return self._bandwidth

    def _give(self) -> None:
        now = self._kernel.now
        if self._here:
            self._given += (now - self._since) * self._speed() / self._shares
        self._since = now

    def _changed(self) -> None:
        """Schedule the check for the next complete transfer; a check too early is harmless."""
        kernel, here, upcoming = self._kernel, self._here, self._next
        self._changes = changes = self._changes + 1
        while upcoming and upcoming[0][2] not in here:
            heappop(upcoming)
        if not upcoming:
            self._given, self._shares, self._due = 0.0, 0.0, math.inf
            self._looks += 1
            return
        missing = upcoming[0][0] - self._given
        seconds = missing * self._shares / self._speed() if missing > 0 else 0.0
        due = kernel.now + seconds
        if due < self._due:
            self._due = due
            self._looks = number = self._looks + 1
            kernel.after(seconds, partial(self._look, number, changes))

    def _look(self, number: int, changes: int) -> None:
        # Void, because a later change has scheduled another one: of two looks at one moment only
        # the last is valid (found by seeds: a port that looked twice never went on).
        if number != self._looks:
            return
        here, upcoming = self._here, self._next
        if changes == self._changes and len(here) == 1:
            # The only transfer is complete, as predicted: the port is idle.
            transfer = upcoming[0][2]
            here.clear()
            upcoming.clear()
            self._given, self._shares, self._due = 0.0, 0.0, math.inf
            self._since = self._kernel.now
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
                self._shares -= transfer.share
                through.append(transfer)
        self._changed()
        # After the port has its new state: what is done with a transfer may add the next one to
        # this port.
        for transfer in through:
            self._done(transfer)
