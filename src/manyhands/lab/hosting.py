"""The hosts of a virtual comparison without a declared cluster: the same under every strategy."""

from __future__ import annotations

from typing import TYPE_CHECKING

from manyhands.strategies import protocol_of

if TYPE_CHECKING:
    from manyhands.lab.design import Design, VirtualConditions


def hosts_of(
    design: Design, workers: int, conditions: VirtualConditions | None
) -> tuple[int, int] | None:
    """Hosts of workers and hosts of servers, in all runs with so many workers.

    None if all are on one host, or on those of a declared cluster.

    Each worker has its own host, unless a number of hosts is given. The number of server hosts is
    the largest number of servers of any strategy; the server of an island is on the host of the
    island's first worker.

    Raises:
        ValueError: there are too many hosts, or they have no bandwidth.
    """
    if conditions is None or design.cluster is not None:
        return None
    asked = conditions.hosts
    if conditions.bandwidth is None:
        if asked is not None:
            raise ValueError("hosts= requires the bandwidth of links, as in bandwidth='1gbit'")
        return None
    if asked is not None and not 1 <= asked <= workers:
        raise ValueError(f"{workers} workers need 1 to {workers} hosts, got {asked}")
    servers = 0
    for entrant in design.entrants:
        protocol = protocol_of(entrant.strategy)
        if protocol is not None:
            own = sum(len(numbers) for ranks, numbers in protocol.groups(workers) if ranks)
            servers = max(servers, protocol.needs(workers).server_processes - own)
    return asked or workers, servers
