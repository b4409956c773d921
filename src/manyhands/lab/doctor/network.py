"""Checks of the network of this host: loopback, ports, the address for other hosts."""

from __future__ import annotations

import socket
from pathlib import Path
from typing import TYPE_CHECKING

from manyhands.lab.doctor.finding import Finding
from manyhands.live.hosts.invitation import choose_address
from manyhands.transport.collectives import LOOPBACK

if TYPE_CHECKING:
    from collections.abc import Iterator

    from manyhands.lab.doctor.finding import ExaminedRun, Surroundings

_RANGE = Path("/proc/sys/net/ipv4/ip_local_port_range")


def check_loopback(_plan: ExaminedRun, _around: Surroundings) -> Iterator[Finding]:
    """Whether processes of this host can connect to each other."""
    try:
        with (
            socket.create_server((LOOPBACK, 0)) as server,
            socket.create_connection(server.getsockname(), timeout=2.0),
        ):
            pass
    except OSError as error:
        yield Finding(
            "loopback",
            "error",
            f"no connection to {LOOPBACK} is possible ({error.strerror or error})",
            "bring the interface up (ip link set lo up), and allow it in the firewall",
        )
    else:
        yield Finding("loopback", "ok", f"{LOOPBACK} can be reached")


def check_ports(plan: ExaminedRun, _around: Surroundings) -> Iterator[Finding]:
    """Ports that the system gives to programs, against what the run takes."""
    try:
        first, last = map(int, _RANGE.read_text(encoding="ascii").split())
        used = _ports_in_use(first, last)
    except OSError:
        return
    # Every worker listens, and connects to every other one, under a strategy of collectives.
    pairs = plan.here * (plan.workers - 1) if plan.needs.collectives else plan.workers
    needed = pairs + 2 * plan.workers + 8
    free = last - first + 1 - used
    words = f"{free} of {last - first + 1} are free, the run takes up to {needed}"
    if free < needed:
        advice = "widen the range: sysctl net.ipv4.ip_local_port_range='32768 60999'"
        yield Finding("ports", "error", words, advice)
    else:
        yield Finding("ports", "ok", words)


def check_listening(plan: ExaminedRun, _around: Surroundings) -> Iterator[Finding]:
    """The address at which other hosts reach this one."""
    if plan.listen is None and (plan.hosts is None or len(plan.hosts.names) == 1):
        return
    try:
        address, port = choose_address(plan.listen)
    except ValueError as error:
        advice = "choose another address or port with --listen, or end the program that has it"
        yield Finding("address for other hosts", "error", str(error), advice)
        return
    place = f"{address}:{port}" if port else address
    if address.startswith("127.") and plan.hosts is not None and len(plan.hosts.names) > 1:
        words = f"{place} can be reached from this host only"
        advice = "choose the address of an interface to the other hosts with --listen"
        yield Finding("address for other hosts", "warning", words, advice)
    else:
        yield Finding("address for other hosts", "ok", f"this host can listen at {place}")


def _ports_in_use(first: int, last: int) -> int:
    """Ports of a range that sockets of this host have."""
    ports = set()
    for name in ("tcp", "tcp6"):
        table = Path("/proc/net") / name
        if table.exists():
            for line in table.read_text(encoding="ascii").splitlines()[1:]:
                ports.add(int(line.split()[1].rpartition(":")[2], 16))
    return sum(first <= port <= last for port in ports)
