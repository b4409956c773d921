"""The control channel: one coordinator, everybody else connected to it.

ZeroMQ over an ipc socket in a private folder, so the file system keeps strangers out; other hosts
come over TCP and prove that they hold the job's key. Sockets belong to the thread that made them.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Self

import zmq

from manyhands.transport.listeners import Listeners
from manyhands.transport.refusals import Reception
from manyhands.transport.security import JobKey, connect_securely, needs_key
from manyhands.wire import Control, WireError, decode, encode
from manyhands.wire.control import LIMIT

if TYPE_CHECKING:
    from collections.abc import Iterable
    from types import TracebackType

_QUEUE = 10_000
_KEEPALIVE = 15
"""Seconds of silence after which the kernel asks whether another host is still there."""


def _furnish(socket: zmq.Socket[bytes]) -> None:
    """Our limits."""
    socket.setsockopt(zmq.MAXMSGSIZE, LIMIT)
    socket.setsockopt(zmq.SNDHWM, _QUEUE)
    socket.setsockopt(zmq.RCVHWM, _QUEUE)
    socket.setsockopt(zmq.TCP_KEEPALIVE, 1)
    socket.setsockopt(zmq.TCP_KEEPALIVE_IDLE, _KEEPALIVE)


class Hub:
    """The coordinator's end: receives from anybody, answers by name.

    Args:
        address: where processes of this host come.
        outside: the TCP address for other hosts; port 0 takes a free one.
        key: demanded of those.
    """

    def __init__(self, address: str, outside: str | None = None, key: JobKey | None = None) -> None:
        self._doors = Listeners(address, outside, key, _furnish)
        self.outside = self._doors.outside
        """Where other hosts come, its port included."""
        self.refused = 0

    def receive(self, timeout: float) -> list[tuple[str, Control]]:
        """Messages that are here or come within `timeout` seconds, with their senders' names."""
        messages: list[tuple[str, Control]] = []
        for door in self._doors.ready(timeout):
            # Frames are counted, not messages: one who floods us with garbage must not keep us
            # here.
            for _ in range(_QUEUE):
                try:
                    frames = door.recv_multipart(zmq.NOBLOCK)
                except zmq.Again:
                    break
                try:
                    identity, frame = frames
                    name = identity.decode("ascii")
                    messages.append((name, decode(frame)))
                    self._doors.came(name, door)
                except (ValueError, WireError):
                    self.refused += 1
        return messages

    def send(self, name: str, message: Control) -> None:
        """Send to a peer; silently nothing if it is not connected (its heartbeats will tell)."""
        self.send_all((name,), message)

    def send_all(self, names: Iterable[str], message: Control) -> None:
        """Send the same to several peers; it is encoded once."""
        frame = encode(message)
        for name in names:
            self._doors.way(name).send_multipart([name.encode("ascii"), frame], zmq.NOBLOCK)

    def take_refused(self) -> list[str]:
        """The addresses of those who came without the key since the last call."""
        return self._doors.take_refused()

    def close(self, linger: float = 0.0) -> None:
        """Close; what is still unsent gets `linger` seconds to leave."""
        self._doors.close(int(linger * 1000))

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
    """A connection to the coordinator, under a name.

    Args:
        address: the coordinator's.
        name: by which it answers.
        key: the job's; needed for every address but ipc.
        context: shared with other sockets of this process; its own by default.
    """

    def __init__(
        self,
        address: str,
        name: str,
        key: JobKey | None = None,
        context: zmq.Context[zmq.Socket[bytes]] | None = None,
    ) -> None:
        if needs_key(address) and key is None:
            raise ValueError(f"a line to {address} needs the job's key")
        self._shares = context is not None
        self._context: zmq.Context[zmq.Socket[bytes]] = context or zmq.Context()
        self._socket = self._context.socket(zmq.DEALER)
        _furnish(self._socket)
        if needs_key(address) and key is not None:
            connect_securely(self._socket, key)
        self._socket.setsockopt(zmq.IDENTITY, name.encode("ascii"))
        self._before_connecting()
        self._socket.connect(address)

    def _before_connecting(self) -> None:
        """Nothing; for those who want to see how it goes."""

    def receive(self, timeout: float) -> list[Control]:
        """Messages that are here or come within `timeout` seconds."""
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
        """Close; what is still unsent gets `linger` seconds to leave."""
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
    """A line that knows how it was received: ZeroMQ itself would knock for ever."""

    def _before_connecting(self) -> None:
        self._reception = Reception(self._socket)

    @property
    def is_in(self) -> bool:
        """Whether there is a connection, and both sides have proved that they hold the key."""
        self._reception.look()
        return self._reception.is_in

    @property
    def is_refused(self) -> bool:
        """Whether the other side does not know our key."""
        self._reception.look()
        return self._reception.is_refused

    def close(self, linger: float = 0.0) -> None:
        """Close; what is still unsent gets `linger` seconds to leave."""
        self._reception.close()
        super().close(linger)
