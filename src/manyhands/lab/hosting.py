"""The hosts of a virtual comparison, which are the same under every strategy."""

from __future__ import annotations

from typing import TYPE_CHECKING

from manyhands.strategies import protocol_of

if TYPE_CHECKING:
    from manyhands.lab.design import Design


def hosts_of(design: Design, workers: int) -> tuple[int, int] | None:
    """Hosts of workers and hosts of servers, in all runs with so many workers.

    None if all are on one host, or on those of a given cluster.

    Each worker has its own host, unless a strategy has islands: then all strategies run with one
    host per island. The number of server hosts is the largest number of servers of any strategy.

    Raises:
        ValueError: strategies have different numbers of islands, or there are too many hosts.
    """
    conditions = design.virtual
    if conditions is None or conditions.cluster is not None:
        return None
    if conditions.bandwidth is None:
        if conditions.hosts is not None:
            raise ValueError("hosts= requires the bandwidth of links, as in bandwidth='1gbit'")
        return None
    islands: dict[int, str] = {}
    servers = 0
    for entrant in design.entrants:
        protocol = protocol_of(entrant.strategy)
        if protocol is None:
            continue
        sites = [numbers for ranks, numbers in protocol.sites(workers) if ranks]
        if sites:
            islands[len(sites)] = entrant.label
        every = protocol.needs(workers).server_processes
        servers = max(servers, every - sum(map(len, sites)))
    return _choose(conditions.hosts, islands, workers), servers


def _choose(asked: int | None, islands: dict[int, str], workers: int) -> int:
    if asked is not None:
        if not 1 <= asked <= workers:
            raise ValueError(f"{workers} workers need 1 to {workers} hosts, got {asked}")
        return asked
    if len(islands) > 1:
        named = " and ".join(f"{label} ({count})" for count, label in islands.items())
        raise ValueError(
            f"{named} have different numbers of islands, but all strategies of a comparison run on "
            "the same hosts: give their number, as in hosts=2"
        )
    return next(iter(islands), workers)
