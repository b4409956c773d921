"""Where a process listens: a door for its own host, and one for others that hold the job's key.

The door for the host is an ipc socket in a private folder; the file system keeps strangers out. The
other one listens on TCP and is guarded by CURVE. CURVE is a matter of the whole ZeroMQ socket, so
each door is a socket of its own; whoever came in by a door is answered there.
"""

from __future__ import annotations

import socket
from typing import TYPE_CHECKING

import zmq

from manyhands.transport.refusals import Refusals
from manyhands.transport.security import Guard, JobKey, listen_securely, needs_key

if TYPE_CHECKING:
    from collections.abc import Callable

_READABLE = int(zmq.POLLIN)
Door = zmq.Socket[bytes]
Context = zmq.Context[Door]


class Listeners:
    """ROUTER sockets that are listened to together; they belong to one thread.

    Args:
        address: the first door's.
        outside: where to listen for other hosts: an address, or a socket that listens already.
        key: demanded of every peer at a TCP door.
        furnish: sets a socket's options before it is bound.
    """

    def __init__(
        self,
        address: str,
        outside: str | socket.socket | None,
        key: JobKey | None,
        furnish: Callable[[Door], None],
    ) -> None:
        self._key = key
        self._furnish = furnish
        self._context: Context = zmq.Context()
        self._guard: Guard | None = None
        self._poller = zmq.Poller()
        self._doors: list[Door] = []
        self._private: set[Door] = set()
        self._ways: dict[str, Door] = {}
        """By which door each peer came in."""
        self._refusals: list[Refusals] = []
        self.address = self._open(address)
        self.outside = "" if outside is None else self._open(outside)

    def _open(self, place: str | socket.socket) -> str:
        address = place if isinstance(place, str) else endpoint(place)
        if needs_key(address) and self._key is None:
            self.close(0)
            raise ValueError(f"listening at {address} needs the job's key")
        door = self._context.socket(zmq.ROUTER)
        self._doors.append(door)
        if needs_key(address) and self._key is not None:
            self._guard = self._guard or Guard(self._context, self._key)
            listen_securely(door, self._key)
            self._refusals.append(Refusals(door))
            self._poller.register(self._refusals[-1].events, zmq.POLLIN)
        else:
            self._private.add(door)
        # A process that was restarted comes back under its name.
        door.setsockopt(zmq.ROUTER_HANDOVER, 1)
        self._furnish(door)
        if door in self._private:
            door.setsockopt(zmq.HEARTBEAT_IVL, 0)
        if isinstance(place, socket.socket):
            door.setsockopt(zmq.USE_FD, place.detach())
        door.bind(address)
        self._poller.register(door, zmq.POLLIN)
        return door.getsockopt_string(zmq.LAST_ENDPOINT)

    def ready(self, timeout: float) -> list[Door]:
        """The doors at which somebody is, within `timeout` seconds; the last used comes last."""
        ready = dict(self._poller.poll(int(timeout * 1000)))
        for refusals in self._refusals:
            if refusals.events in ready:
                refusals.look()
        return [door for door in self._doors if door in ready]

    def used(self, door: Door) -> None:
        """Let the others have their turn before this door's."""
        if len(self._doors) > 1:
            self._doors.remove(door)
            self._doors.append(door)

    def is_private(self, door: Door) -> bool:
        """Whether only this user's processes on this host come in there."""
        return door in self._private

    def came(self, name: str, door: Door) -> None:
        """Remember by which door to answer."""
        self._ways[name] = door

    def way(self, name: str) -> Door:
        """The door at which a peer is answered."""
        return self._ways.get(name, self._doors[0])

    def take_refused(self) -> list[str]:
        """The addresses of those who came without the key since the last call."""
        return [address for refusals in self._refusals for address in refusals.take()]

    def close(self, linger: int) -> None:
        """Close; what is still unsent gets `linger` milliseconds to leave."""
        for refusals in self._refusals:
            refusals.close()
        for door in self._doors:
            door.close(linger=linger)
        if self._guard is not None:
            self._guard.close()
        self._context.term()


def is_readable(door: Door) -> bool:
    """Whether a message can be read at once. It takes less time than polling or trying."""
    return bool(int(door.getsockopt(zmq.EVENTS)) & _READABLE)


def listen(address: str, port: int = 0) -> socket.socket:
    """A socket that listens there already, so that its port is known before anybody answers."""
    return socket.create_server((address, port), backlog=1024)


def endpoint(listener: socket.socket) -> str:
    """The address of a socket that listens, as ZeroMQ writes it."""
    address, port = listener.getsockname()[:2]
    return f"tcp://{address}:{port}"
