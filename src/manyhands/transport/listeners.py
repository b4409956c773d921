"""Listeners of a process: one for its own host, and one for other hosts that have the job's key.

The listener for the own host is an ipc socket in a private folder, protected by file permissions.
The other one listens on TCP and is protected by CURVE. CURVE applies to a whole ZeroMQ socket, so
each listener is a separate socket; a peer is answered on the socket to which it connected.
"""

from __future__ import annotations

import socket
from typing import TYPE_CHECKING

import zmq

from manyhands.transport.interfaces import family_of, write_place
from manyhands.transport.refusals import Refusals
from manyhands.transport.security import Guard, JobKey, allow_ipv6, listen_securely, needs_key

if TYPE_CHECKING:
    from collections.abc import Callable

_READABLE = int(zmq.POLLIN)
Listener = zmq.Socket[bytes]
Context = zmq.Context[Listener]


class Listeners:
    """ROUTER sockets that are polled together; they belong to one thread.

    Args:
        address: address of the first listener.
        outside: address of the listener for other hosts, or a socket that listens already.
        key: key required of every peer on TCP.
        configure: sets a socket's options before it is bound.
    """

    def __init__(
        self,
        address: str,
        outside: str | socket.socket | None,
        key: JobKey | None,
        configure: Callable[[Listener], None],
    ) -> None:
        self._key = key
        self._configure = configure
        self._context: Context = zmq.Context()
        self._guard: Guard | None = None
        self._poller = zmq.Poller()
        self._sockets: list[Listener] = []
        self._private: set[Listener] = set()
        self._by_peer: dict[str, Listener] = {}
        """The socket to which each peer is connected."""
        self._refusals: list[Refusals] = []
        self.address = self._open(address)
        self.outside = "" if outside is None else self._open(outside)

    def _open(self, place: str | socket.socket) -> str:
        address = place if isinstance(place, str) else endpoint(place)
        if needs_key(address) and self._key is None:
            self.close(0)
            raise ValueError(f"listening at {address} requires the job's key")
        listener = self._context.socket(zmq.ROUTER)
        self._sockets.append(listener)
        if needs_key(address) and self._key is not None:
            self._guard = self._guard or Guard(self._context, self._key)
            listen_securely(listener, self._key)
            self._refusals.append(Refusals(listener))
            self._poller.register(self._refusals[-1].events, zmq.POLLIN)
        else:
            self._private.add(listener)
        # A restarted process reconnects under its name.
        listener.setsockopt(zmq.ROUTER_HANDOVER, 1)
        self._configure(listener)
        if listener in self._private:
            listener.setsockopt(zmq.HEARTBEAT_IVL, 0)
        allow_ipv6(listener, address)
        if isinstance(place, socket.socket):
            listener.setsockopt(zmq.USE_FD, place.detach())
        listener.bind(address)
        self._poller.register(listener, zmq.POLLIN)
        return listener.getsockopt_string(zmq.LAST_ENDPOINT)

    def ready(self, timeout: float) -> list[Listener]:
        """Listeners with messages, within `timeout` seconds; the last used one comes last."""
        ready = dict(self._poller.poll(int(timeout * 1000)))
        for refusals in self._refusals:
            if refusals.events in ready:
                refusals.look()
        return [listener for listener in self._sockets if listener in ready]

    def used(self, listener: Listener) -> None:
        """Move a listener behind the others, so that they are served first next time."""
        if len(self._sockets) > 1:
            self._sockets.remove(listener)
            self._sockets.append(listener)

    def is_private(self, listener: Listener) -> bool:
        """Whether only processes of this user on this host can connect to it."""
        return listener in self._private

    def remember(self, name: str, listener: Listener) -> None:
        """Remember on which listener to answer a peer."""
        self._by_peer[name] = listener

    def for_peer(self, name: str) -> Listener:
        """The listener on which a peer is answered."""
        return self._by_peer.get(name, self._sockets[0])

    def listeners_for(self, name: str) -> list[Listener]:
        """The listener on which a peer is answered; all of them if it has sent nothing yet.

        A process that continues for another sends to peers from which it has received nothing. A
        listener discards messages to peers that are not connected to it.
        """
        known = self._by_peer.get(name)
        return [*self._sockets] if known is None else [known]

    def take_refused(self) -> list[str]:
        """Addresses that connected without the key since the last call."""
        return [address for refusals in self._refusals for address in refusals.take()]

    def close(self, linger: int) -> None:
        """Close; messages still queued are sent for up to `linger` milliseconds."""
        for refusals in self._refusals:
            refusals.close()
        for listener in self._sockets:
            listener.close(linger=linger)
        if self._guard is not None:
            self._guard.close()
        self._context.term()


def is_readable(listener: Listener) -> bool:
    """Whether a message can be read at once; faster than polling or trying to read."""
    return bool(int(listener.getsockopt(zmq.EVENTS)) & _READABLE)


def listen(address: str, port: int = 0) -> socket.socket:
    """A listening socket, whose port is known before a server uses it."""
    return socket.create_server((address, port), family=family_of(address), backlog=1024)


def endpoint(listener: socket.socket) -> str:
    """The address of a listening socket, in ZeroMQ's notation."""
    address, port = listener.getsockname()[:2]
    return f"tcp://{write_place(address, port)}"
