"""Control channel: connections of all processes of a run to the coordinator.

ZeroMQ over an ipc socket in a private folder, which file permissions protect without a handshake
(`docs/decisions/0006-control-and-store.md`); other hosts connect over TCP and prove that they have
the job's key. Sockets belong to the thread that created them.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Self

import zmq

from manyhands.transport.listeners import Listeners
from manyhands.transport.refusals import Reception
from manyhands.transport.security import JobKey, allow_ipv6, connect_securely, needs_key
from manyhands.wire import Control, WireError, decode, encode
from manyhands.wire.control import LIMIT

if TYPE_CHECKING:
    from collections.abc import Iterable
    from types import TracebackType

_QUEUE = 10_000
_KEEPALIVE = 15
"""Seconds of silence after which the kernel probes the connection to another host."""


def _configure(socket: zmq.Socket[bytes]) -> None:
    """Set the limits on message sizes and queues."""
    socket.setsockopt(zmq.MAXMSGSIZE, LIMIT)
    socket.setsockopt(zmq.SNDHWM, _QUEUE)
    socket.setsockopt(zmq.RCVHWM, _QUEUE)
    socket.setsockopt(zmq.TCP_KEEPALIVE, 1)
    socket.setsockopt(zmq.TCP_KEEPALIVE_IDLE, _KEEPALIVE)


class Hub:
    """The coordinator's end: receives from all processes, sends by name.

    Args:
        address: address for processes of this host.
        outside: the TCP address for other hosts; port 0 takes a free one.
        key: key required of other hosts.
    """

    def __init__(self, address: str, outside: str | None = None, key: JobKey | None = None) -> None:
        self._listeners = Listeners(address, outside, key, _configure)
        self.outside = self._listeners.outside
        """Address for other hosts, with its port."""
        self.refused = 0
        self.is_mute = False
        """Whether messages are discarded instead of being sent."""

    def receive(self, timeout: float) -> list[tuple[str, Control]]:
        """Messages that arrive within `timeout` seconds, with the names of their senders."""
        messages: list[tuple[str, Control]] = []
        for listener in self._listeners.ready(timeout):
            # Frames are counted, not messages: a peer that floods the hub with garbage must not
            # block it.
            for _ in range(_QUEUE):
                try:
                    frames = listener.recv_multipart(zmq.NOBLOCK)
                except zmq.Again:
                    break
                try:
                    identity, frame = frames
                    name = identity.decode("ascii")
                    messages.append((name, decode(frame)))
                    self._listeners.remember(name, listener)
                except (ValueError, WireError):
                    self.refused += 1
        return messages

    def send(self, name: str, message: Control) -> None:
        """Send to a peer; dropped silently if it is not connected, which heartbeats reveal."""
        self.send_all((name,), message)

    def send_all(self, names: Iterable[str], message: Control) -> None:
        """Send a message to several peers; it is encoded once."""
        if self.is_mute:
            return
        frame = encode(message)
        for name in names:
            for listener in self._listeners.listeners_for(name):
                listener.send_multipart([name.encode("ascii"), frame], zmq.NOBLOCK)

    def take_refused(self) -> list[str]:
        """Addresses that connected without the key since the last call."""
        return self._listeners.take_refused()

    def close(self, linger: float = 0.0) -> None:
        """Close; messages still queued are sent for up to `linger` seconds."""
        self._listeners.close(int(linger * 1000))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


class Line:
    """A named connection to the coordinator.

    Args:
        address: the coordinator's address.
        name: the name to which the coordinator sends.
        key: the job's key; required for every address except ipc.
        context: context shared with other sockets of this process; a new one by default.
    """

    def __init__(
        self,
        address: str,
        name: str,
        key: JobKey | None = None,
        context: zmq.Context[zmq.Socket[bytes]] | None = None,
    ) -> None:
        if needs_key(address) and key is None:
            raise ValueError(f"connecting to {address} requires the job's key")
        self._shares = context is not None
        self._context: zmq.Context[zmq.Socket[bytes]] = context or zmq.Context()
        self._socket = self._context.socket(zmq.DEALER)
        _configure(self._socket)
        if needs_key(address) and key is not None:
            connect_securely(self._socket, key)
        self._socket.setsockopt(zmq.IDENTITY, name.encode("ascii"))
        self._before_connecting()
        allow_ipv6(self._socket, address)
        self._socket.connect(address)

    def _before_connecting(self) -> None:
        """Hook for subclasses, called before the socket connects."""

    def receive(self, timeout: float) -> list[Control]:
        """Messages that arrive within `timeout` seconds."""
        messages: list[Control] = []
        if not self._socket.poll(int(timeout * 1000)):
            return messages
        with contextlib.suppress(zmq.Again):
            while True:
                messages.append(decode(self._socket.recv(zmq.NOBLOCK)))
        return messages

    def send(self, message: Control) -> bool:
        """Queue a message without blocking; False if the queue is full, and it was dropped."""
        try:
            self._socket.send(encode(message), zmq.NOBLOCK)
        except zmq.Again:
            return False
        return True

    def close(self, linger: float = 0.0) -> None:
        """Close; messages still queued are sent for up to `linger` seconds."""
        self._socket.close(linger=int(linger * 1000))
        if not self._shares:
            self._context.term()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


class WatchedLine(Line):
    """A line that detects a refused connection, which ZeroMQ itself would retry forever."""

    def _before_connecting(self) -> None:
        self._reception = Reception(self._socket)

    @property
    def is_in(self) -> bool:
        """Whether there is a connection, and both sides have proved that they have the key."""
        self._reception.look()
        return self._reception.is_in

    @property
    def is_refused(self) -> bool:
        """Whether the other side has refused the key."""
        self._reception.look()
        return self._reception.is_refused

    def close(self, linger: float = 0.0) -> None:
        """Close; messages still queued are sent for up to `linger` seconds."""
        self._reception.close()
        super().close(linger)
