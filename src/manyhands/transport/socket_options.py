"""Options of the ZeroMQ sockets of callers and responders."""

from __future__ import annotations

import zmq

from manyhands.wire.envelope import CHUNK, HEAD_LIMIT

# As integers: combining ZeroMQ's flags takes as long as sending a small message.
AT_ONCE = int(zmq.NOBLOCK)
AND_MORE = int(zmq.NOBLOCK | zmq.SNDMORE)
HEARTBEAT = 10_000
"""Milliseconds between ZeroMQ's own heartbeats, on connections to other hosts. Both sides of each
connection send them, so with many connections they are most of the work of an idle process. Within
a host there are none: the kernel reports the end of the other process."""
SILENCE = 60_000
"""Milliseconds without a heartbeat after which a connection is closed. On a slow link a heartbeat
waits behind all data sent before it, so a short limit would disconnect busy senders."""
BUFFER = 4 << 20
"""Size of the kernel's send and receive buffers of a connection, in bytes."""


def configure_caller(socket: zmq.Socket[bytes], *, to_other_host: bool) -> None:
    """Set the options of a caller's socket before it connects."""
    _set_limits(socket)
    socket.setsockopt(zmq.RCVHWM, 64)
    # A server may begin to listen seconds after its first caller has tried to connect.
    socket.setsockopt(zmq.RECONNECT_IVL, 50)
    socket.setsockopt(zmq.RECONNECT_IVL_MAX, 250 if to_other_host else 100)
    if to_other_host:
        _set_heartbeats(socket)


def configure_responder(socket: zmq.Socket[bytes]) -> None:
    """Set the options of a responder's socket before it is bound."""
    _set_limits(socket)
    # Queued frames take memory too: a part of each granted payload.
    socket.setsockopt(zmq.RCVHWM, 16)
    _set_heartbeats(socket)


def _set_limits(socket: zmq.Socket[bytes]) -> None:
    socket.setsockopt(zmq.MAXMSGSIZE, CHUNK + HEAD_LIMIT)
    # Slots bound the data in flight; a high-water mark would drop messages silently.
    socket.setsockopt(zmq.SNDHWM, 0)
    socket.setsockopt(zmq.SNDBUF, BUFFER)
    socket.setsockopt(zmq.RCVBUF, BUFFER)


def _set_heartbeats(socket: zmq.Socket[bytes]) -> None:
    socket.setsockopt(zmq.HEARTBEAT_IVL, HEARTBEAT)
    socket.setsockopt(zmq.HEARTBEAT_TIMEOUT, SILENCE)
