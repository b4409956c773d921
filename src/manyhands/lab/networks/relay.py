"""Relay: a network switch that forwards every frame between links after a latency.

`python relay.py SECONDS LINK…` forwards frames between the links as a bridge would, in its own
process, and ends when its standard input is closed. It needs only Python's standard library.
"""

from __future__ import annotations

import contextlib
import os
import selectors
import socket
import sys
import time
from collections import deque

_PACKETS = 263  # SOL_PACKET, in <linux/socket.h>
_WITH_HEADER = 15  # PACKET_VNET_HDR, in <linux/if_packet.h>, as the next
_NOT_MY_OWN = 23  # PACKET_IGNORE_OUTGOING
_EVERYTHING = 0x0003  # ETH_P_ALL
_HEADER = 10
"""Bytes of the kernel's virtio header before each frame, with pending checksums and segmentation;
it is sent with the frame, so that large frames need not be split."""
_LARGEST = 1 << 17
_AT_ONCE = 64
"""Frames read from a link before due frames are sent."""


class Relay:
    """Forwards frames between links, each after the same latency.

    Args:
        latency: latency in seconds.
        links: names of network interfaces.
    """

    def __init__(self, latency: float, links: list[str]) -> None:
        self._latency = latency
        self._links = [_opened(link) for link in links]
        self._known: dict[bytes, socket.socket] = {}
        """By Ethernet address, the link from which its last frame came."""
        self._under_way: deque[tuple[float, socket.socket, bytes]] = deque()

    def run(self, until: int) -> None:
        """Forward frames until the file descriptor `until` is at its end."""
        # Other selectors round times up to milliseconds.
        with selectors.SelectSelector() as selector:
            for link in self._links:
                selector.register(link, selectors.EVENT_READ)
            selector.register(until, selectors.EVENT_READ)
            while True:
                for key, _ in selector.select(self._until_due()):
                    if key.fileobj != until:
                        self._take(key.fileobj)  # type: ignore[arg-type]  # a link
                    elif not os.read(until, 1):
                        return
                self._pass_on()

    def _until_due(self) -> float | None:
        if not self._under_way:
            return None
        return max(0.0, self._under_way[0][0] - time.monotonic())

    def _take(self, link: socket.socket) -> None:
        due = time.monotonic() + self._latency
        with contextlib.suppress(BlockingIOError):
            for _ in range(_AT_ONCE):
                self._under_way.append((due, link, link.recv(_LARGEST)))

    def _pass_on(self) -> None:
        now = time.monotonic()
        while self._under_way and self._under_way[0][0] <= now:
            _, came, frame = self._under_way.popleft()
            to, sender = frame[_HEADER : _HEADER + 6], frame[_HEADER + 6 : _HEADER + 12]
            self._known[sender] = came
            known = self._known.get(to)
            for link in [known] if known else self._links:
                if link is not came:
                    # A link whose queue is full drops frames, as a switch does.
                    with contextlib.suppress(OSError):
                        link.send(frame)


def _opened(name: str) -> socket.socket:
    link = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0)
    link.setsockopt(_PACKETS, _WITH_HEADER, 1)
    link.setsockopt(_PACKETS, _NOT_MY_OWN, 1)
    link.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 24)
    link.setblocking(False)
    link.bind((name, _EVERYTHING))
    return link


if __name__ == "__main__":
    relay = Relay(float(sys.argv[1]), sys.argv[2:])
    sys.stdout.write(".")
    sys.stdout.flush()
    relay.run(sys.stdin.fileno())
