"""The hosts of a live run's servers: those of a declared cluster, or those that were chosen."""

from __future__ import annotations

from typing import TYPE_CHECKING

from manyhands.cluster import Cluster
from manyhands.strategies import protocol_of

if TYPE_CHECKING:
    from manyhands.live.hosts.host_list import Hosts
    from manyhands.strategies import Strategy

EVERY = "all"
"""Servers are on all hosts."""


def servers_of_cluster(
    chosen: Strategy, text: str | None, workers: int
) -> tuple[Strategy, tuple[str, ...]]:
    """The strategy with islands as a declared cluster has them, and the host of each server."""
    protocol = protocol_of(chosen)
    if text is None or protocol is None:
        return chosen, ()
    declared = Cluster.parse(text)
    fitted = protocol.on_islands(declared.islands())
    servers = fitted.needs(workers).server_processes
    return fitted, declared.server_hosts(workers, servers, fitted.groups(workers))


def servers_on_hosts(
    text: str, hosts: Hosts | None, strategy: Strategy, workers: int
) -> tuple[str, ...]:
    """The host of each server: the named ones in turn. An island's server is with its workers.

    Args:
        text: names of hosts, separated by commas, or "all".
        hosts: the hosts of the run.
        strategy: the strategy.
        workers: number of workers.

    Raises:
        ValueError: there are no such hosts, or no servers.
    """
    if hosts is None or len(hosts.names) == 1:
        raise ValueError(
            f"servers cannot be on {text!r}: the run has one host; name more with --hosts"
        )
    named = [part.strip() for part in text.split(",")] if text != EVERY else [*hosts.names]
    unknown = [name for name in named if name not in hosts.names]
    if unknown:
        raise ValueError(
            f"servers cannot be on {unknown[0]!r}: the hosts are {', '.join(hosts.names)}; name "
            f"some of them, or write {EVERY!r}"
        )
    protocol = protocol_of(strategy)
    servers = strategy.needs(workers).server_processes
    if protocol is None or not servers:
        raise ValueError(f"{strategy} has no servers of its own: omit --servers-on")
    found = [named[number % len(named)] for number in range(servers)]
    on = [name for name, count in hosts.counts for _ in range(count)]
    for ranks, numbers in protocol.groups(workers):
        for number in numbers if ranks else ():
            found[number] = on[ranks[0]]
    return tuple(found)
