"""Hosts of servers: the one rule, for declared clusters, calibrations, plans and live runs.

Servers are on the hosts that were named for them, one after the other. Where none was named they
are on the hosts without workers, if there are any, and otherwise on all hosts: so several servers
lie in turn over all hosts, and a single server is on the first one. A server that belongs to a
group of workers, as the server of an island, is on the host of the group's first worker.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence


def hosts_for_servers(
    workers: Mapping[str, int | None], named: Sequence[str] = ()
) -> tuple[str, ...]:
    """The hosts that servers are on, in turn.

    >>> hosts_for_servers({"a": 4, "b": 4}), hosts_for_servers({"a": 0, "b": 4})
    (('a', 'b'), ('a',))

    Args:
        workers: of each host, in order; None if it is not known, and then not 0.
        named: the hosts that were named for servers.
    """
    if named:
        return tuple(named)
    return tuple(name for name, count in workers.items() if count == 0) or tuple(workers)


def places_of_servers(
    among: Sequence[str],
    servers: int,
    workers: Sequence[str],
    groups: Iterable[tuple[range, range]] = (),
) -> tuple[str, ...]:
    """The host of each server.

    >>> places_of_servers(["a", "b"], 3, ["a", "a", "b", "b"])
    ('a', 'b', 'a')

    Args:
        among: the hosts that servers are on, in turn.
        servers: number of servers.
        workers: the host of each worker.
        groups: ranks of workers and the numbers of the servers that belong to them.
    """
    own = {number: workers[ranks[0]] for ranks, numbers in groups if ranks for number in numbers}
    free = [number for number in range(servers) if number not in own]
    turns = {number: among[turn % len(among)] for turn, number in enumerate(free)}
    return tuple((own | turns)[number] for number in range(servers))


_NAMED = 6
"""The most hosts that are named in words."""


def servers_words(servers: Sequence[str], workers: Sequence[str]) -> str:
    """Where the servers are, in words; empty if there is none, or one host.

    >>> servers_words(["a", "b", "a"], ["a", "b"]), servers_words(["a"], ["a", "b"])
    ('a, b in turn', 'a, which has workers too')

    Args:
        servers: the host of each server.
        workers: the host of each worker.
    """
    on = [*dict.fromkeys(servers)]
    if not on or len({*servers, *workers}) == 1:
        return ""
    if len(on) == 1:
        return f"{on[0]}{', which has workers too' if on[0] in workers else ''}"
    if len(on) > _NAMED:
        return f"{', '.join(on[: _NAMED - 1])} and {len(on) - _NAMED + 1} more hosts in turn"
    return f"{', '.join(on)} in turn"
