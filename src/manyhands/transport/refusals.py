"""Detection of refused connections, whose key is not the job's.

ZeroMQ does not report a failed handshake: it closes the connection, and the other side retries
forever. Its socket monitor does. On the listening side decryption fails, on the connecting side the
connection is closed during the handshake.
"""

from __future__ import annotations

import contextlib
import os
import socket
from typing import Any

import zmq
from zmq.utils.monitor import recv_monitor_message

_ENOUGH = 3
"""Consecutive handshakes that must fail: a single one may fail because a process ends."""
_REMEMBERED = 100


class Refusals:
    """Watches a listener for peers with a wrong key; belongs to the listener's thread."""

    def __init__(self, listener: zmq.Socket[bytes]) -> None:
        self._listener = listener
        self.events: zmq.Socket[bytes] = listener.get_monitor_socket(
            zmq.EVENT_ACCEPTED
            | zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL
            | zmq.EVENT_HANDSHAKE_FAILED_AUTH
            | zmq.EVENT_HANDSHAKE_SUCCEEDED
            | zmq.EVENT_DISCONNECTED
        )
        self._peers: dict[int, str] = {}
        """The address at the other end of each connection, by its descriptor."""
        self._failed = False
        self._refused: set[str] = set()

    def look(self) -> None:
        """Process the monitor's events."""
        while self.events.poll(0):
            event = _event(self.events)
            match event["event"]:
                case zmq.EVENT_ACCEPTED:
                    self._peers[event["value"]] = _peer(event["value"])
                case zmq.EVENT_HANDSHAKE_FAILED_AUTH:
                    self._failed = True
                case zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL:
                    self._failed = event["value"] == zmq.PROTOCOL_ERROR_ZMTP_CRYPTOGRAPHIC
                case zmq.EVENT_DISCONNECTED:
                    # The event of a failure does not name its connection, which is closed next.
                    address = self._peers.pop(event["value"], "")
                    if self._failed and address and len(self._refused) < _REMEMBERED:
                        self._refused.add(address)
                    self._failed = False

    def take(self) -> list[str]:
        """Addresses that were refused since the last call."""
        refused, self._refused = self._refused, set()
        return sorted(refused)

    def close(self) -> None:
        """Stop watching."""
        self._listener.disable_monitor()
        self.events.close(linger=0)


class Reception:
    """State of a connection to a listener; belongs to its socket's thread."""

    def __init__(self, connecting: zmq.Socket[bytes]) -> None:
        self._socket = connecting
        self._events: zmq.Socket[bytes] = connecting.get_monitor_socket(
            zmq.EVENT_CONNECTED
            | zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL
            | zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL
            | zmq.EVENT_HANDSHAKE_FAILED_AUTH
            | zmq.EVENT_HANDSHAKE_SUCCEEDED
            | zmq.EVENT_DISCONNECTED
        )
        self._failures = 0
        self.is_in = False
        """Whether there is a connection, and both sides have proved that they have the key."""

    @property
    def is_refused(self) -> bool:
        """Whether the other side has refused the key."""
        return self._failures >= _ENOUGH

    def look(self) -> None:
        """Process the monitor's events."""
        while self._events.poll(0):
            match _event(self._events)["event"]:
                case zmq.EVENT_HANDSHAKE_SUCCEEDED:
                    self.is_in, self._failures = True, 0
                case zmq.EVENT_DISCONNECTED:
                    self.is_in = False
                case zmq.EVENT_CONNECTED:
                    pass
                case _:
                    self._failures += 1

    def close(self) -> None:
        """Stop watching."""
        self._socket.disable_monitor()
        self._events.close(linger=0)


def _event(events: zmq.Socket[bytes]) -> Any:
    return recv_monitor_message(events)


def _peer(descriptor: int) -> str:
    """The address at the other end of ZeroMQ's own socket; empty if it is closed already."""
    with contextlib.suppress(OSError), socket.socket(fileno=os.dup(descriptor)) as connection:
        return str(connection.getpeername()[0])
    return ""
