"""The control channel: one coordinator, everybody else connected to it.

ZeroMQ over an ipc socket in a private folder, so the file system keeps strangers out. Sockets
belong to the thread that made them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Self

import zmq

from manyhands.wire import Control, WireError, decode, encode
from manyhands.wire.control import LIMIT

if TYPE_CHECKING:
    from types import TracebackType

_QUEUE = 10_000


class _Socket:
    """A ZeroMQ socket with our limits, closed without lingering for peers that are gone."""

    def __init__(self, kind: int) -> None:
        self._context = zmq.Context()
        self._socket: zmq.Socket[bytes] = self._context.socket(kind)
        self._socket.setsockopt(zmq.MAXMSGSIZE, LIMIT)
        self._socket.setsockopt(zmq.SNDHWM, _QUEUE)
        self._socket.setsockopt(zmq.RCVHWM, _QUEUE)

    def close(self, linger: float = 0.0) -> None:
        """Close; what is still unsent gets `linger` seconds to leave."""
        self._socket.close(linger=int(linger * 1000))
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


class Hub(_Socket):
    """The coordinator's end: receives from anybody, answers by name."""

    def __init__(self, address: str) -> None:
        super().__init__(zmq.ROUTER)
        # A process that was restarted comes back under its name.
        self._socket.setsockopt(zmq.ROUTER_HANDOVER, 1)
        self._socket.bind(address)
        self.refused = 0

    def receive(self, timeout: float) -> list[tuple[str, Control]]:
        """Messages that are here or come within `timeout` seconds, with their senders' names."""
        messages: list[tuple[str, Control]] = []
        if not self._socket.poll(int(timeout * 1000)):
            return messages
        # Frames are counted, not messages: one who floods us with garbage must not keep us here.
        for _ in range(_QUEUE):
            try:
                frames = self._socket.recv_multipart(zmq.NOBLOCK)
            except zmq.Again:
                break
            try:
                identity, frame = frames
                messages.append((identity.decode("ascii"), decode(frame)))
            except (ValueError, WireError):
                self.refused += 1
        return messages

    def send(self, name: str, message: Control) -> None:
        """Send to a peer; silently nothing if it is not connected (its heartbeats will tell)."""
        self._socket.send_multipart([name.encode("ascii"), encode(message)], zmq.NOBLOCK)


class Line(_Socket):
    """A connection to the coordinator, under a name."""

    def __init__(self, address: str, name: str) -> None:
        super().__init__(zmq.DEALER)
        self._socket.setsockopt(zmq.IDENTITY, name.encode("ascii"))
        self._socket.connect(address)

    def receive(self, timeout: float) -> list[Control]:
        """Messages that are here or come within `timeout` seconds."""
        messages: list[Control] = []
        if not self._socket.poll(int(timeout * 1000)):
            return messages
        while True:
            try:
                messages.append(decode(self._socket.recv(zmq.NOBLOCK)))
            except zmq.Again:
                return messages

    def send(self, message: Control) -> bool:
        """Queue a message without blocking; False if the queue is full, and it was dropped."""
        try:
            self._socket.send(encode(message), zmq.NOBLOCK)
        except zmq.Again:
            return False
        return True
