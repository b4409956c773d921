"""Clusters as text: `2 sites of 8 workers, 1gbit within, 100mbit and 40ms between`.

    cluster  =  [N "sites of"] [N "hosts of"] N "workers" {"," clause}
    clause   =  link | link "within" | link "between" | N "cores" | size "of memory" | servers
    link     =  bandwidth ["and" latency]
    servers  =  "servers at site" N | "servers at host" N {"and" N} | "servers in turn"
             |  "servers apart" | "servers on" N "hosts apart"

Workers without hosts have a host each if a link connects them, and are on one host otherwise.
Without a place servers are on all hosts in turn, so that a single one is on the first host.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from manyhands.cluster.host import Link
from manyhands.units import bandwidth, bandwidth_text, seconds, seconds_text, size, size_text

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

EXAMPLE = "2 sites of 8 workers, 1gbit within, 100mbit and 40ms between"
LATENCY = 1e-4
"""Seconds of latency of a link whose text has none."""
_SIZES = re.compile(
    r"(?:(?P<sites>\d+) sites? of )?(?:(?P<hosts>\d+) hosts? of )?(?P<workers>\d+) workers?"
)
_CORES = re.compile(r"(\d+) cores?(?: per host)?")
_MEMORY = re.compile(r"(\S+) of memory(?: per host)?")
_SERVERS = re.compile(
    r"servers (?:at (?P<unit>site|hosts?) (?P<number>\d+(?: and \d+)*)|(?P<turn>in turn)|"
    r"(?:on (?P<apart>\d+) hosts? )?apart)"
)
_LINK = re.compile(r"(?P<bandwidth>\S+)(?: and (?P<latency>\S+))?(?: (?P<where>within|between))?")
_MOST = 100_000
"""Limit on the number of workers that a text can describe."""


@dataclass(frozen=True)
class ClusterLayout:
    """The content of a cluster's text: all sites are alike, and so are all hosts.

    Raises:
        ValueError: a number is out of range, or a link is missing or superfluous.
    """

    workers: int
    """Of each host."""
    hosts: int = 1
    """Of each site; without sites, of the cluster."""
    sites: int | None = None
    """None: the hosts are not divided into sites."""
    within: Link | None = None
    """Between hosts of a site; without sites, between any two hosts."""
    between: Link | None = None
    """Between sites."""
    cores: int | None = None
    """Of each host; None: one for every worker on it."""
    servers: tuple[int, ...] = ()
    """Numbers of the servers' hosts, counted from 0 over all sites; empty: the hosts for servers
    alone, or all hosts in turn."""
    apart: int = 0
    """Number of further hosts, for servers alone; with sites they are at the first one."""
    memory: int = 0
    """Bytes of each host's main memory; 0 if it is not known."""

    def __post_init__(self) -> None:
        sites = 1 if self.sites is None else self.sites
        total = sites * self.hosts
        if min(sites, self.hosts, self.workers, self.cores or 1) < 1 or self.cores == 0:
            raise ValueError("there must be at least 1 of everything, got 0")
        if self.apart and self.servers:
            raise ValueError("there is more than one place of servers")
        if total * self.workers > _MOST:
            raise ValueError(f"a cluster has at most {_MOST:,} workers")
        first = self.hosts + self.apart
        if first > 1 and self.within is None:
            where = "" if self.sites is None else " within"
            raise ValueError(f"its hosts have no link to each other: add ', 1gbit{where}'")
        if self.sites is None and first == 1 and self.within is not None:
            raise ValueError("one host has no link: leave out the bandwidth")
        if sites > 1 and self.between is None:
            raise ValueError("its sites have no link to each other: add ', 100mbit between'")
        if sites == 1 and self.between is not None:
            raise ValueError("a single site has no link to others: leave out 'between'")
        if max(self.servers, default=0) >= total:
            raise ValueError(
                f"there is no host {max(self.servers)} for the servers: its hosts are 0 to "
                f"{total - 1}"
            )


def read(text: str) -> ClusterLayout:
    """Parse the text of a cluster.

    >>> read("2 hosts of 4 workers, 1gbit").within
    Link(bandwidth=125000000.0, latency=0.0001)

    Raises:
        ValueError: the text does not describe a cluster; the message says which part of it, and
            how a cluster is written.
    """
    first, *rest = (" ".join(part.split()) for part in text.lower().split(","))
    try:
        return _layout(first, rest)
    except ValueError as error:
        raise ValueError(
            f"{text!r} is not a cluster: {error}. A cluster is written as in {EXAMPLE!r}"
        ) from None


def _layout(first: str, rest: Sequence[str]) -> ClusterLayout:
    sizes = _SIZES.fullmatch(first)
    if sizes is None:
        raise ValueError(f"{first!r} is not a number of workers, or of sites or hosts of workers")
    sites = None if sizes["sites"] is None else int(sizes["sites"])
    links: dict[str, Link] = {}
    cores: int | None = None
    memory: int | None = None
    servers: re.Match[str] | None = None
    for clause in rest:
        if found := _CORES.fullmatch(clause):
            _once("number of cores", cores)
            cores = int(found[1])
        elif found := _MEMORY.fullmatch(clause):
            _once("size of memory", memory)
            memory = int(size(found[1]))
        elif found := _SERVERS.fullmatch(clause):
            _once("place of servers", servers)
            servers = found
        else:
            where, link = _link(clause, is_divided=sites is not None)
            _once("link", links.get(where))
            links[where] = link
    workers, hosts, within = int(sizes["workers"]), sizes["hosts"], links.get("within")
    if hosts is None and within is not None:
        hosts, workers = workers, 1
    count = int(hosts or 1)
    place, apart = _place(servers, sites, count)
    between = links.get("between")
    return ClusterLayout(workers, count, sites, within, between, cores, place, apart, memory or 0)


def _once(name: str, before: object) -> None:
    if before is not None:
        raise ValueError(f"there is more than one {name}")


def _link(clause: str, *, is_divided: bool) -> tuple[str, Link]:
    """A link, and whether it is within or between sites."""
    found = _LINK.fullmatch(clause)
    if found is None:
        raise ValueError(f"{clause!r} is neither a link, nor 'N cores', nor 'servers at site N'")
    try:
        latency = LATENCY if found["latency"] is None else seconds(found["latency"])
        link = Link(bandwidth(found["bandwidth"]), latency)
    except ValueError as error:
        raise ValueError(f"{clause!r} is not a link: {error}") from None
    if not is_divided and found["where"] is not None:
        raise ValueError(f"{clause!r}: there are no sites, so write the link without 'within'")
    if is_divided and found["where"] is None:
        raise ValueError(f"{clause!r} does not say where: add 'within' or 'between'")
    return found["where"] or "within", link


def _place(
    found: re.Match[str] | None, sites: int | None, hosts: int
) -> tuple[tuple[int, ...], int]:
    """The numbers of the servers' hosts, and the number of hosts for servers alone."""
    if found is None or found["turn"]:
        return (), 0
    if found["unit"] is None:
        apart = int(found["apart"] or 1)
        if not apart:
            raise ValueError("servers apart need at least 1 host, got 0")
        return (), apart
    numbers = tuple(map(int, found["number"].split(" and ")))
    if found["unit"] != "site":
        return numbers, 0
    for number in numbers:
        if sites is None or number >= sites:
            there = "there are no sites" if sites is None else f"its sites are 0 to {sites - 1}"
            raise ValueError(f"there is no site {number} for the servers: {there}")
    return tuple(number * hosts for number in numbers), 0


def write(layout: ClusterLayout) -> str:
    """The text of a cluster, which `read` reads as the same value.

    >>> write(ClusterLayout(workers=4, hosts=2, within=Link(125e6, 1e-4)))
    '2 hosts of 4 workers, 1gbit'
    """
    return ", ".join(_clauses(layout))


def _clauses(layout: ClusterLayout) -> Iterator[str]:
    parts = [] if layout.sites is None else [_counted(layout.sites, "site")]
    if layout.within is not None and layout.workers == 1:
        parts.append(_counted(layout.hosts, "worker"))
    elif layout.within is None:
        parts.append(_counted(layout.workers, "worker"))
    else:
        parts += [_counted(layout.hosts, "host"), _counted(layout.workers, "worker")]
    yield " of ".join(parts)
    if layout.within is not None:
        yield _written(layout.within) + ("" if layout.sites is None else " within")
    if layout.between is not None:
        yield f"{_written(layout.between)} between"
    if layout.cores is not None:
        yield f"{_counted(layout.cores, 'core')} per host"
    if layout.memory:
        yield f"{size_text(layout.memory)} of memory per host"
    if layout.apart == 1:
        yield "servers apart"
    elif layout.apart:
        yield f"servers on {layout.apart} hosts apart"
    elif layout.servers:
        yield _servers(layout)


def _servers(layout: ClusterLayout) -> str:
    """The clause of the hosts that were named for servers."""
    number = layout.servers[0]
    site, host = divmod(number, layout.hosts)
    if len(layout.servers) == 1 and layout.sites is not None and not host:
        return f"servers at site {site}"
    hosts = " and ".join(map(str, layout.servers))
    return f"servers at {'host' if len(layout.servers) == 1 else 'hosts'} {hosts}"


def _counted(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"


def _written(link: Link) -> str:
    latency = "" if link.latency == LATENCY else f" and {seconds_text(link.latency)}"
    return f"{bandwidth_text(link.bandwidth)}{latency}"
