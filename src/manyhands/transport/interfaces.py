"""Addresses of this host's network interfaces."""

from __future__ import annotations

import re
import socket

_ANYWHERE = "192.0.2.1"
"""An address reserved for documentation (RFC 5737): its route is the default route."""
_PLACE = re.compile(r"^(?P<host>[^\s:]+)(:(?P<port>\d{1,5}))?$")


def address_towards(host: str, port: int) -> str:
    """This host's address on the route to another host. Nothing is sent.

    Raises:
        OSError: there is no route.
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
            "this host has no default route: choose its address with --listen ADDRESS"
        ) from None


def read_place(text: str, port: int | None = None) -> tuple[str, int]:
    """Parse `ADDRESS:PORT`; the port may be omitted if a default is given.

    Raises:
        ValueError: the text is not of that form.
    """
    match = _PLACE.match(text)
    if not match or (match["port"] is None and port is None) or int(match["port"] or 0) > 65535:
        form = "ADDRESS:PORT" if port is None else "ADDRESS or ADDRESS:PORT"
        raise ValueError(f"{text!r} is not of the form {form}, as in 10.0.0.1:40001")
    return match["host"], int(match["port"] or port or 0)
