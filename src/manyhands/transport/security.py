"""Authentication and encryption of connections.

On one host processes connect over ipc sockets in a folder that only their user can access. Every
TCP address, loopback included, is protected by CURVE: each side proves that it has the job's key
before any message is parsed, and everything is encrypted.
"""

from __future__ import annotations

import hashlib
import secrets
from typing import TYPE_CHECKING

import zmq
from zmq.auth.thread import ThreadAuthenticator
from zmq.utils import z85

from manyhands.files.private_file import write_private

if TYPE_CHECKING:
    from pathlib import Path

_DOMAIN = "manyhands"


class JobKey:
    """The secret that the processes of one run share; both sides' keys are derived from it."""

    def __init__(self, secret: bytes) -> None:
        if len(secret) != 32:
            raise ValueError(f"a job key must have 32 bytes, got {len(secret)}")
        self._secret = secret

    @classmethod
    def new(cls) -> JobKey:
        """A new random key."""
        return cls(secrets.token_bytes(32))

    @classmethod
    def read(cls, path: Path) -> JobKey:
        """Read a key from a file, as hexadecimal digits."""
        return cls(bytes.fromhex(path.read_text(encoding="ascii").strip()))

    def write(self, path: Path) -> None:
        """Write the key to a file that only its owner can read, in the place of any other."""
        write_private(path, self.text + "\n")

    @property
    def text(self) -> str:
        """The key as hexadecimal digits, as its file has it."""
        return self._secret.hex()

    def pair(self, side: str) -> tuple[bytes, bytes]:
        """The public and the secret key of the listening or the connecting side."""
        secret = z85.encode(hashlib.sha256(self._secret + side.encode()).digest())
        return zmq.curve_public(secret), secret


class Guard:
    """Admits, in one ZeroMQ context, only peers with the key; close it with the context."""

    def __init__(self, context: zmq.Context[zmq.Socket[bytes]], key: JobKey) -> None:
        admitted, _ = key.pair("connecting")
        self._authenticator = ThreadAuthenticator(context)
        self._authenticator.start()
        self._authenticator.configure_curve_callback(_DOMAIN, _OnlyKey(admitted))

    def close(self) -> None:
        """End the authenticator's thread."""
        self._authenticator.stop()


class _OnlyKey:
    def __init__(self, admitted: bytes) -> None:
        self._admitted = admitted

    def callback(self, _domain: str, key: bytes) -> bool:
        return secrets.compare_digest(key, self._admitted)


def needs_key(address: str) -> bool:
    """Whether processes of other users or hosts can connect to an address."""
    return not address.startswith("ipc://")


def allow_ipv6(socket: zmq.Socket[bytes], address: str) -> None:
    """Make a socket use IPv6, before it is bound or connected, if the address is one of IPv6."""
    if address.startswith("tcp://["):
        socket.setsockopt(zmq.IPV6, 1)


def listen_securely(socket: zmq.Socket[bytes], key: JobKey) -> None:
    """Make a socket, before it is bound, require and prove knowledge of the key."""
    _, secret = key.pair("listening")
    socket.curve_server = True
    socket.curve_secretkey = secret
    socket.zap_domain = _DOMAIN.encode()


def connect_securely(socket: zmq.Socket[bytes], key: JobKey) -> None:
    """Make a socket, before it connects, require and prove knowledge of the key."""
    socket.curve_serverkey, _ = key.pair("listening")
    socket.curve_publickey, socket.curve_secretkey = key.pair("connecting")
