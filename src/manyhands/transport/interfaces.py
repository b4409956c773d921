"""Addresses of this host's network interfaces."""

from __future__ import annotations

import ipaddress
import re
import socket

_ANYWHERE = ("192.0.2.1", "2001:db8::1")
"""Addresses reserved for documentation (RFC 5737, RFC 3849): their route is the default route."""
_PLACE = re.compile(r"^(?P<host>[^\s:\[\]]+|\[[^\s\[\]]+\])(:(?P<port>\d{1,5}))?$")
_REACHED_WITHIN = 3.0
"""Seconds in which this host must reach an address of its own."""


def address_towards(host: str, port: int) -> str:
    """This host's address on the route to another host. Nothing is sent.

    Raises:
        OSError: there is no route, or no such host.
    """
    family, _, _, _, place = socket.getaddrinfo(host, port, type=socket.SOCK_DGRAM)[0]
    with socket.socket(family, socket.SOCK_DGRAM) as probe:
        probe.connect(place)
        return str(probe.getsockname()[0])


def resolve(host: str, port: int) -> str:
    """The numeric address of a host; the first one if it has several.

    Raises:
        OSError: there is no such host.
    """
    return str(socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][4][0])


def own_address() -> str:
    """This host's address on its default route; that of IPv6 if there is none for IPv4.

    Raises:
        ValueError: it has none.
    """
    for anywhere in _ANYWHERE:
        try:
            return address_towards(anywhere, 9)
        except OSError:
            continue
    raise ValueError("this host has no default route: choose its address with --listen ADDRESS")


def read_place(text: str, port: int | None = None) -> tuple[str, int]:
    """Parse `ADDRESS:PORT`; the port may be omitted if a default is given.

    An IPv6 address stands in brackets, which may be omitted where there is no port.

    >>> read_place("[fd00::1]:40001")
    ('fd00::1', 40001)

    Raises:
        ValueError: the text is not of that form.
    """
    match = _PLACE.match(f"[{text}]" if port is not None and is_ipv6(text) else text)
    bracketed = match is not None and match["host"].startswith("[")
    host = match["host"].strip("[]") if match else ""
    if (
        not match
        or (match["port"] is None and port is None)
        or int(match["port"] or 0) > 65535
        or bracketed != is_ipv6(host)
    ):
        form = "ADDRESS:PORT" if port is None else "ADDRESS or ADDRESS:PORT"
        raise ValueError(
            f"{text!r} is not of the form {form}, as in 10.0.0.1:40001 or [fd00::1]:40001"
        )
    return host, int(match["port"] or port or 0)


def write_place(address: str, port: int) -> str:
    """`ADDRESS:PORT`, with an IPv6 address in brackets.

    >>> write_place("fd00::1", 40001)
    '[fd00::1]:40001'
    """
    return f"[{address}]:{port}" if is_ipv6(address) else f"{address}:{port}"


def is_ipv6(address: str) -> bool:
    """Whether this is an IPv6 address, as opposed to one of IPv4 or a name."""
    try:
        ipaddress.IPv6Address(address)
    except ValueError:
        return False
    return True


def family_of(address: str) -> socket.AddressFamily:
    """The family of sockets that listen at an address."""
    return socket.AF_INET6 if is_ipv6(address) else socket.AF_INET


def check_own_address(address: str) -> None:
    """Raise ValueError if this host cannot connect to an address of its own.

    torch would try for five minutes, and print its frames each time.
    """
    try:
        with (
            socket.create_server((address, 0), family=family_of(address)) as server,
            socket.create_connection(server.getsockname()[:2], _REACHED_WITHIN),
        ):
            pass
    except OSError as error:
        raise ValueError(
            f"workers connect to each other at {address}, and no connection to it is possible "
            f"({error.strerror or error}): enable the network interface of that address (the "
            "loopback interface: ip link set lo up), and allow it in the firewall"
        ) from None
