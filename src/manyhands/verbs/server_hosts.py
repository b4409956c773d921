"""The hosts of a live run's servers: those that were chosen, or those of the common rule.

The rule is that of declared clusters and of plans, in `manyhands.cluster.servers`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from manyhands.cluster import Cluster
from manyhands.cluster.servers import hosts_for_servers, places_of_servers, servers_words
from manyhands.strategies import protocol_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from manyhands.live.hosts.host_list import Hosts
    from manyhands.strategies import Strategy

EVERY = "all"
"""Servers are on all hosts."""


def on_declared_islands(chosen: Strategy, text: str | None) -> Strategy:
    """The strategy with islands as a declared cluster has them."""
    protocol = protocol_of(chosen)
    return chosen if text is None or protocol is None else protocol.on_islands(islands_of(text))


def islands_of(text: str) -> tuple[int, ...]:
    """The workers of each part of a declared cluster that is well connected within itself."""
    return Cluster.parse(text).islands()


def servers_by_default(
    text: str | None, hosts: Hosts | None, strategy: Strategy, workers: int
) -> tuple[str, ...]:
    """The host of each server if none was chosen; empty if all are on the first one.

    Args:
        text: the declared cluster whose hosts these are.
        hosts: the hosts of the run.
        strategy: the strategy.
        workers: number of workers.
    """
    if hosts is None or len(hosts.names) == 1:
        return ()
    named = () if text is None else Cluster.parse(text).servers
    found = _places(hosts_for_servers(dict(hosts.counts), named), hosts, strategy, workers)
    return () if {*found} <= {hosts.names[0]} else found


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
    found = _places(named, hosts, strategy, workers)
    if not found:
        raise ValueError(f"{strategy} has no servers of its own: omit --servers-on")
    return found


def words_for_hosts(places: tuple[str, ...], hosts: Hosts | None, strategy: Strategy) -> str:
    """Where the servers are, in words; empty if there is none, or one host.

    Args:
        places: the host of each server; empty if all are on the first one.
        hosts: the hosts of the run.
        strategy: the strategy.
    """
    if hosts is None or protocol_of(strategy) is None:
        return ""
    servers = strategy.needs(hosts.workers).server_processes
    on = [name for name, count in hosts.counts for _ in range(count)]
    return servers_words(places or hosts.names[:1] * servers, on)


def _places(
    among: Sequence[str], hosts: Hosts, strategy: Strategy, workers: int
) -> tuple[str, ...]:
    """The host of each server, none if the strategy has none."""
    protocol = protocol_of(strategy)
    servers = strategy.needs(workers).server_processes
    if protocol is None or not servers:
        return ()
    on = [name for name, count in hosts.counts for _ in range(count)]
    return places_of_servers(among, servers, on, protocol.groups(workers))
