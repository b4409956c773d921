"""By which of its addresses a host is reached."""

from __future__ import annotations

import re
import socket

_ANYWHERE = "192.0.2.1"
"""An address that is nobody's (RFC 5737): the way to it is the way to everywhere."""
_PLACE = re.compile(r"^(?P<host>[^\s:]+)(:(?P<port>\d{1,5}))?$")


def address_towards(host: str, port: int) -> str:
    """This host's address on the way to another. Nothing is sent.

    Raises:
        OSError: there is no way there.
    """
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect((host, port))
        return str(probe.getsockname()[0])


def own_address() -> str:
    """This host's address on its default route.

    Raises:
        ValueError: it has none.
    """
    try:
        return address_towards(_ANYWHERE, 9)
    except OSError:
        raise ValueError(
            "this host has no default route, so its address must be chosen: --listen ADDRESS"
        ) from None


def read_place(text: str, port: int | None = None) -> tuple[str, int]:
    """The address and port in `ADDRESS:PORT`; the port may be left out where there is a default.

    Raises:
        ValueError: it says neither.
    """
    match = _PLACE.match(text)
    if not match or (match["port"] is None and port is None) or int(match["port"] or 0) > 65535:
        form = "ADDRESS:PORT" if port is None else "ADDRESS or ADDRESS:PORT"
        raise ValueError(f"{text!r} is not of the form {form}, as in 10.0.0.1:40001")
    return match["host"], int(match["port"] or port or 0)
