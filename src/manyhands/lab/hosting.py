"""The hosts of a virtual comparison: the same ones under every strategy."""

from __future__ import annotations

from typing import TYPE_CHECKING

from manyhands.strategies import protocol_of

if TYPE_CHECKING:
    from manyhands.lab.design import Design


def hosts_of(design: Design, workers: int) -> tuple[int, int] | None:
    """Hosts of workers and hosts of servers, in all runs with so many workers.

    None if all are on one host, or on those of a given cluster.

    Workers have a host each, unless a strategy has islands: then all strategies run on a host per
    island. There are hosts for as many servers as the strategy with the most of them has.

    Raises:
        ValueError: strategies have different numbers of islands, or there are too many hosts.
    """
    conditions = design.virtual
    if conditions is None or conditions.cluster is not None:
        return None
    if conditions.bandwidth is None:
        if conditions.hosts is not None:
            raise ValueError("hosts are joined by links: give their bandwidth too, as in '1gbit'")
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
            raise ValueError(f"{workers} workers are on 1 to {workers} hosts, not on {asked}")
        return asked
    if len(islands) > 1:
        named = " and ".join(f"{label} ({count})" for count, label in islands.items())
        raise ValueError(
            f"{named} have different numbers of islands, and all strategies of a comparison run on "
            "the same hosts: say how many, as in hosts=2"
        )
    return next(iter(islands), workers)
