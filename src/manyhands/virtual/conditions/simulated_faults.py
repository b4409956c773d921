"""Faults of a virtual run: those of a schedule as the simulator carries them out."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from manyhands.faults import (
    Crash,
    CutHost,
    Fault,
    FullDisk,
    Isolate,
    Pause,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    from manyhands.faults import Faults
    from manyhands.virtual.conditions.process_hosts import ProcessHosts

PATIENCE = 30.0
"""Seconds after which a worker that is stopped for ever is ejected, as live by default."""
_RESTART = 1.0
"""Seconds until a worker that was ejected is restarted."""


def simulated(
    faults: Faults, places: ProcessHosts, *, peers: bool, back: bool = True
) -> tuple[Fault, ...]:
    """The faults that the simulator carries out, in the order of the schedule.

    Random faults are drawn. A host that is cut off is all of its workers, each isolated. A worker
    that is stopped for ever is ejected after `PATIENCE` and restarted, where the strategy takes it
    back.

    Args:
        faults: the schedule.
        places: the host of each process.
        peers: whether there are no servers that are processes of their own.
        back: whether the strategy takes a worker back that was lost.

    Raises:
        ValueError: a virtual run cannot have such a fault; the message names the fix.
    """
    servers = 0 if peers else len(places.servers)
    _check(faults, places, servers, peers=peers)
    drawn = faults.drawn(len(places.workers), servers)
    return tuple(one for fault in drawn for one in _lowered(fault, places, back=back))


def _check(faults: Faults, places: ProcessHosts, servers: int, *, peers: bool) -> None:
    for fault in faults.faults:
        match fault:
            case FullDisk():
                raise ValueError(f"{fault} needs a disk, which a virtual run has not: use train")
            case CutHost():
                _check_host(fault, places, servers)
    faults.check(len(places.workers), servers, peers=peers)


def _check_host(fault: CutHost, places: ProcessHosts, servers: int) -> None:
    if fault.way != "both":
        raise ValueError(f"{fault}: a virtual host is cut off in both directions: leave out way")
    if fault.host not in places.workers:
        hosts = list(dict.fromkeys(places.workers))
        some = ", ".join(hosts[:8]) + (" …" if len(hosts) > 8 else "")
        raise ValueError(f"{fault} names {fault.host}, and the hosts with workers are {some}")
    if not servers:
        raise ValueError(f"{fault} needs a strategy with separate servers: use cut or crash")
    if fault.host in places.servers:
        raise ValueError(
            f"{fault}: {fault.host} has a server, without which the run cannot continue: put the "
            "servers on other hosts, or cut off another one"
        )


def _lowered(fault: Fault, places: ProcessHosts, *, back: bool) -> Iterator[Fault]:
    match fault:
        case CutHost(host=host, at=at, seconds=seconds):
            for rank, place in enumerate(places.workers):
                if place == host:
                    yield Isolate(rank, at=at, seconds=1e9 if seconds is None else seconds)
        case Pause(worker=int(rank), at=at, seconds=None):
            yield Pause(worker=rank, at=at, seconds=PATIENCE)
            yield Crash(worker=rank, at=at + PATIENCE, restart=_RESTART if back else None)
        case Crash(worker=int()) if not back:
            yield replace(fault, restart=None)
        case _:
            yield fault
