"""Who may talk to us, and how what leaves the host is hidden.

On one host processes meet over ipc sockets in a folder that only their user may enter. Every TCP
address, loopback included, is guarded by CURVE: each side proves that it knows the job's key before
a single byte of ours is parsed, and everything is encrypted.
"""

from __future__ import annotations

import hashlib
import secrets
from typing import TYPE_CHECKING

import zmq
from zmq.auth.thread import ThreadAuthenticator
from zmq.utils import z85

if TYPE_CHECKING:
    from pathlib import Path

_DOMAIN = "manyhands"


class JobKey:
    """The secret that the processes of one run share; both sides' keys are derived from it."""

    def __init__(self, secret: bytes) -> None:
        if len(secret) != 32:
            raise ValueError(f"a job key has 32 bytes, not {len(secret)}")
        self._secret = secret

    @classmethod
    def new(cls) -> JobKey:
        """A fresh one."""
        return cls(secrets.token_bytes(32))

    @classmethod
    def read(cls, path: Path) -> JobKey:
        """The key in a file, as hexadecimal digits."""
        return cls(bytes.fromhex(path.read_text(encoding="ascii").strip()))

    def write(self, path: Path) -> None:
        """Store it, readable by its owner alone."""
        path.touch(mode=0o600)
        path.write_text(self._secret.hex() + "\n", encoding="ascii")

    def pair(self, side: str) -> tuple[bytes, bytes]:
        """The public and the secret key of the listening or the connecting side."""
        secret = z85.encode(hashlib.sha256(self._secret + side.encode()).digest())
        return zmq.curve_public(secret), secret


class Guard:
    """Admits, in one ZeroMQ context, only those who hold the key; close it with the context."""

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
    """Whether an address is reachable by others than this user on this host."""
    return not address.startswith("ipc://")


def listen_securely(socket: zmq.Socket[bytes], key: JobKey) -> None:
    """Make a socket, before it is bound, demand and prove knowledge of the key."""
    _, secret = key.pair("listening")
    socket.curve_server = True
    socket.curve_secretkey = secret
    socket.zap_domain = _DOMAIN.encode()


def connect_securely(socket: zmq.Socket[bytes], key: JobKey) -> None:
    """The same for a socket before it connects."""
    socket.curve_serverkey, _ = key.pair("listening")
    socket.curve_publickey, socket.curve_secretkey = key.pair("connecting")
