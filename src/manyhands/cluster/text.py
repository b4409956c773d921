"""Clusters as text: `2 sites of 8 workers, 1gbit within, 100mbit and 40ms between`.

    cluster  =  [N "sites of"] [N "hosts of"] N "workers" {"," clause}
    clause   =  link | link "within" | link "between" | N "cores" | size "of memory" | servers
    link     =  bandwidth ["and" latency]
    servers  =  "servers at site" N | "servers at host" N | "servers in turn"

Workers without hosts have a host each if a link connects them, and are on one host otherwise.
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
_SERVERS = re.compile(r"servers (?:at (?P<unit>site|host) (?P<number>\d+)|in turn)")
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
    servers: int | None = 0
    """Number of the servers' host, counted from 0 over all sites; None: all hosts in turn."""
    memory: int = 0
    """Bytes of each host's main memory; 0 if it is not known."""

    def __post_init__(self) -> None:
        sites = 1 if self.sites is None else self.sites
        total = sites * self.hosts
        if min(sites, self.hosts, self.workers, self.cores or 1) < 1 or self.cores == 0:
            raise ValueError("there must be at least 1 of everything, got 0")
        if total * self.workers > _MOST:
            raise ValueError(f"a cluster has at most {_MOST:,} workers")
        if self.hosts > 1 and self.within is None:
            where = "" if self.sites is None else " within"
            raise ValueError(f"its hosts have no link to each other: add ', 1gbit{where}'")
        if self.sites is None and self.hosts == 1 and self.within is not None:
            raise ValueError("one host has no link: leave out the bandwidth")
        if sites > 1 and self.between is None:
            raise ValueError("its sites have no link to each other: add ', 100mbit between'")
        if sites == 1 and self.between is not None:
            raise ValueError("a single site has no link to others: leave out 'between'")
        if self.servers is not None and self.servers >= total:
            raise ValueError(
                f"there is no host {self.servers} for the servers: its hosts are 0 to {total - 1}"
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
    place = _place(servers, sites, count)
    between = links.get("between")
    return ClusterLayout(workers, count, sites, within, between, cores, place, memory or 0)


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


def _place(found: re.Match[str] | None, sites: int | None, hosts: int) -> int | None:
    """The number of the servers' host."""
    if found is None:
        return 0
    if found["number"] is None:
        return None
    number = int(found["number"])
    if found["unit"] == "host":
        return number
    if sites is None or number >= sites:
        there = "there are no sites" if sites is None else f"its sites are 0 to {sites - 1}"
        raise ValueError(f"there is no site {number} for the servers: {there}")
    return number * hosts


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
    if layout.servers is None:
        yield "servers in turn"
    elif layout.servers:
        site, host = divmod(layout.servers, layout.hosts)
        is_first = layout.sites is not None and not host
        yield f"servers at {f'site {site}' if is_first else f'host {layout.servers}'}"


def _counted(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"


def _written(link: Link) -> str:
    latency = "" if link.latency == LATENCY else f" and {seconds_text(link.latency)}"
    return f"{bandwidth_text(link.bandwidth)}{latency}"
