"""A cluster: hosts, sites, links, and which host each worker and each server is on.

A strategy does not choose hosts: the cluster places the workers and servers of all strategies by
one rule, so that compared runs differ in the strategy only
(`docs/decisions/0051-declared-cluster.md`).
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING

from manyhands.cluster.host import Host, Link, Site
from manyhands.cluster.servers import hosts_for_servers, places_of_servers
from manyhands.cluster.text import ClusterLayout, read, write
from manyhands.cluster.this_machine import this_host
from manyhands.sampling.division import part

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping


@dataclass(frozen=True)
class Cluster:
    """Hosts, the links between them, and the places of workers and servers.

    `mh.simulate` and `mh.compare(virtual=True)` run on any cluster; a live `mh.compare` on one that
    has a text, with a network namespace for each host. `mh.train` starts processes on this machine,
    which `Cluster.local()` describes.

    `str(cluster)` is the text that `Cluster.parse` reads as an equal cluster, if the cluster has
    one.

    Raises:
        ValueError: there is no host or none with workers, two hosts have one name, a link, a site
            or `servers` names an unknown host, a site has no link that it needs, or only some hosts
            have a number of workers.

    Example:
        >>> import manyhands as mh
        >>> hosts = tuple(mh.Host(name, cores=4, memory=16 << 30) for name in ("a", "b", "c"))
        >>> slow, fast = mh.Link(12.5e6), mh.Link(1.25e9)
        >>> cluster = mh.Cluster(hosts, link=slow, links=(("a", "b", fast),))
        >>> cluster.cores
        12
        >>> cluster.between("a", "b") == fast, cluster.between("a", "c") == slow
        (True, True)
        >>> sites = mh.Cluster.parse("2 sites of 8 workers, 1gbit within, 100mbit and 40ms between")
        >>> len(sites.hosts), sites.between("host-0", "host-8").bandwidth
        (16, 12500000.0)
        >>> apart = mh.Cluster.parse("4 workers, 1gbit, servers on 2 hosts apart")
        >>> apart.server_hosts(workers=4, servers=3)
        ('servers-0', 'servers-1', 'servers-0')
    """

    hosts: tuple[Host, ...]
    """At least one, each with a name of its own; site by site, if there are sites."""
    link: Link | None = None
    """The link between two hosts that neither `links` nor `sites` name; within one host there is
    none."""
    links: tuple[tuple[str, str, Link], ...] = ()
    """Links of single pairs: `("a", "b", Link(1.25e9))`."""
    sites: tuple[Site, ...] = ()
    """The sites that the hosts are divided into; empty if they are not."""
    servers: tuple[str, ...] = ()
    """Names of the hosts with the servers, which are on them in turn. Default: the hosts without
    workers, or if there are none all hosts, so that a single server is on the first one. A server
    that belongs to a group of workers, as the server of an island, is on the host of the group's
    first worker."""

    def __post_init__(self) -> None:
        names = [host.name for host in self.hosts]
        if not names:
            raise ValueError("a cluster needs at least one host")
        if len(set(names)) != len(names):
            raise ValueError(f"two hosts have one name: {', '.join(names)}")
        for first, second, _ in self.links:
            for name in (first, second):
                if name not in names:
                    raise ValueError(f"a link names host {name!r}, which the cluster lacks")
        for name in self.servers:
            if name not in names:
                raise ValueError(
                    f"servers are on host {name!r}, which the cluster lacks: use a tuple of names, "
                    f"as in ({names[0]!r},)"
                )
        if len({host.workers is None for host in self.hosts if host.workers != 0}) > 1:
            raise ValueError("some hosts have a number of workers and others do not: set it on all")
        if all(host.workers == 0 for host in self.hosts):
            raise ValueError("no host has workers: give one of them at least 1")
        self._check_sites(names)

    def _check_sites(self, names: list[str]) -> None:
        if not self.sites:
            return
        if [name for site in self.sites for name in site.hosts] != names:
            raise ValueError("every host must be in one site, and hosts be listed site by site")
        if len({site.name for site in self.sites}) != len(self.sites):
            raise ValueError(f"two sites have one name: {', '.join(s.name for s in self.sites)}")
        for site in self.sites:
            if len(site.hosts) > 1 and site.link is None:
                raise ValueError(f"site {site.name} has several hosts: set its link")
            if len(self.sites) > 1 and site.uplink is None:
                raise ValueError(f"site {site.name} has no link to the other sites: set its uplink")

    @classmethod
    def local(cls) -> Cluster:
        """This machine: the cores that this process may use, its memory and its GPUs.

        GPUs are counted without loading torch: those of the NVIDIA driver that
        `CUDA_VISIBLE_DEVICES` allows, if the installed torch is built for CUDA.
        """
        return cls(hosts=(this_host(),))

    @classmethod
    def parse(cls, source: str | Cluster) -> Cluster:
        """A cluster from its text; a cluster is returned as it is.

        Sites and hosts are counted from 0 and named `site-0`, `host-0` and so on; workers are on
        them in the order of ranks.

        Args:
            source: as in "2 sites of 8 workers, 1gbit within, 100mbit and 40ms between",
                "2 hosts of 4 workers, 1gbit" or "4 workers".

        Returns:
            The cluster.

        Raises:
            ValueError: the text does not describe a cluster.
        """
        return _made(read(source)) if isinstance(source, str) else source

    @cached_property
    def text(self) -> str:
        """The text that `parse` reads as an equal cluster; empty if there is none."""
        layout = _layout(self)
        return "" if layout is None or _made(layout) != self else write(layout)

    def __str__(self) -> str:
        return self.text or repr(self)

    @property
    def cores(self) -> int:
        """Cores of all hosts together."""
        return sum(host.cores for host in self.hosts)

    @property
    def workers(self) -> int | None:
        """Workers of all hosts together; None if the hosts do not say."""
        counts = [host.workers for host in self.hosts if host.workers is not None]
        return sum(counts) if any(counts) else None

    @property
    def hosts_for_workers(self) -> tuple[Host, ...]:
        """The hosts that are not for servers alone."""
        return tuple(host for host in self.hosts if host.workers != 0)

    def site_of(self, host: str) -> Site | None:
        """The site of a host.

        Args:
            host: its name.

        Returns:
            The site; None if there are no sites.
        """
        return self._sites.get(host)

    @cached_property
    def _sites(self) -> dict[str, Site]:
        return {name: site for site in self.sites for name in site.hosts}

    def between(self, first: str, second: str) -> Link | None:
        """The link between two hosts.

        Args:
            first: the name of one host.
            second: the name of the other.

        Returns:
            The pair's own link, that of their site, or the common one. Between two sites: the
            least bandwidth on the way, and the sum of the latencies. None within one host, or
            without links.
        """
        if first == second:
            return None
        for one, other, link in self.links:
            if {one, other} == {first, second}:
                return link
        here, there = self.site_of(first), self.site_of(second)
        if here is None or there is None:
            return self.link
        return here.link if here == there else _across(here, there)

    def default_workers(self) -> int:
        """The workers of all hosts, if they say how many; otherwise one per device.

        Returns:
            Without devices one per core, at most four or one per host.
        """
        if self.workers is not None:
            return self.workers
        hosts = self.hosts_for_workers
        devices = sum(len(host.devices) for host in hosts)
        return devices or min(sum(host.cores for host in hosts), max(4, len(hosts)))

    def check_workers(self, count: int) -> None:
        """Check a number of workers that was given beside the cluster.

        Args:
            count: the number of workers.

        Raises:
            ValueError: the cluster has another number of workers.
        """
        if self.workers not in (None, count):
            raise ValueError(
                f"workers is {count}, but the cluster has {self.workers}: omit one of the two"
            )

    def first(self, count: int) -> Cluster:
        """The first hosts of this cluster, with so many workers.

        Servers stay where they were declared: a host that was named for them, and one without
        workers, is kept.

        Args:
            count: the number of workers, at most as many as it has.

        Returns:
            A cluster that says how many workers each host has.

        Raises:
            ValueError: it has fewer workers.
        """
        if not 1 <= count <= self.default_workers():
            raise ValueError(f"the cluster has {self.default_workers()} workers, not {count}")
        blocks = Counter(self.worker_hosts(self.default_workers()))
        counts, left = dict[str, int](), count
        for host in self.hosts:
            counts[host.name] = min(blocks[host.name], left)
            left -= counts[host.name]
        return self.with_workers(counts)

    def with_workers(self, counts: Mapping[str, int]) -> Cluster:
        """The hosts of this cluster that have workers, and those of servers.

        Args:
            counts: by host, its workers; a host that is not named has none.

        Returns:
            A cluster that says how many workers each host has.
        """
        hosts = [
            replace(host, workers=counts.get(host.name, 0))
            for host in self.hosts
            if counts.get(host.name) or host.workers == 0 or host.name in self.servers
        ]
        kept = {host.name for host in hosts}
        sites = tuple(
            replace(site, hosts=tuple(name for name in site.hosts if name in kept))
            for site in self.sites
            if kept & {*site.hosts}
        )
        links = tuple(one for one in self.links if {one[0], one[1]} <= kept)
        return Cluster(tuple(hosts), self.link, links, sites, self.servers)

    def worker_hosts(self, count: int) -> tuple[str, ...]:
        """The hosts of workers: each host has a block of consecutive ranks.

        Args:
            count: the number of workers.

        Returns:
            The name of the host of each rank.
        """
        self.check_workers(count)
        hosts = self.hosts_for_workers
        blocks = (
            len(range(count)[part(count, at, len(hosts))]) if host.workers is None else host.workers
            for at, host in enumerate(hosts)
        )
        names = (host.name for host in hosts)
        return tuple(name for name, size in zip(names, blocks, strict=True) for _ in range(size))

    def most_on_a_host(self, count: int) -> int:
        """The most workers that one host has.

        Args:
            count: the number of workers.
        """
        return max(Counter(self.worker_hosts(count)).values())

    @property
    def hosts_for_servers(self) -> tuple[str, ...]:
        """The names of the hosts that servers are on, in turn."""
        return hosts_for_servers({host.name: host.workers for host in self.hosts}, self.servers)

    def server_hosts(
        self, workers: int, servers: int, groups: Iterable[tuple[range, range]] = ()
    ) -> tuple[str, ...]:
        """The host of each server, by the rule that live runs have too.

        Args:
            workers: the number of workers.
            servers: the number of servers.
            groups: ranks of workers and the numbers of the servers that belong to them.

        Returns:
            The name of the host of each server.
        """
        on = self.worker_hosts(workers)
        return places_of_servers(self.hosts_for_servers, servers, on, groups)

    def islands(self) -> tuple[int, ...]:
        """The workers of each part of the cluster that is well connected within itself.

        Returns:
            The workers of each site, or without sites of each host with several workers. Empty if
            the cluster is not divided, or does not say where workers are.
        """
        own = {host.name: host.workers or 0 for host in self.hosts_for_workers}
        if self.workers is None or len(own) == 1:
            return ()
        if self.sites:
            each = (sum(own.get(name, 0) for name in site.hosts) for site in self.sites)
            sizes = tuple(size for size in each if size)
            return sizes if len(sizes) > 1 else ()
        return tuple(own.values()) if max(own.values()) > 1 else ()


def _across(here: Site, there: Site) -> Link:
    """The way between two sites as one link."""
    uplinks = [site.uplink for site in (here, there) if site.uplink is not None]
    inner = [site.link for site in (here, there) if site.link is not None]
    latency = max(link.latency for link in uplinks) + sum(link.latency for link in inner)
    return Link(min(link.bandwidth for link in (*uplinks, *inner)), latency)


def _made(layout: ClusterLayout) -> Cluster:
    """The cluster of a text: hosts for servers alone come first, as does the coordinator's."""
    sites = layout.sites or 1
    names = [f"host-{number}" for number in range(sites * layout.hosts)]
    alone = [f"servers-{number}" for number in range(layout.apart)]
    cores = layout.cores or layout.workers
    hosts = (
        *(Host(name, cores, layout.memory, workers=0) for name in alone),
        *(Host(name, cores, layout.memory, workers=layout.workers) for name in names),
    )
    servers = tuple(names[number] for number in layout.servers)
    if layout.sites is None:
        return Cluster(hosts, layout.within, servers=servers)
    divided = tuple(
        Site(
            f"site-{number}",
            (
                *(alone if number == 0 else ()),
                *names[number * layout.hosts : (number + 1) * layout.hosts],
            ),
            layout.within,
            layout.between,
        )
        for number in range(sites)
    )
    return Cluster(hosts, sites=divided, servers=servers)


def _layout(cluster: Cluster) -> ClusterLayout | None:
    """The content of a cluster's text; other clusters may have the same."""
    hosts = cluster.hosts_for_workers
    first, names = hosts[0], [host.name for host in hosts]
    if first.workers is None or not {*cluster.servers} <= {*names}:
        return None
    site = cluster.sites[-1] if cluster.sites else None
    apart = len(cluster.hosts) - len(hosts)
    alone = apart if len(cluster.sites) == 1 else 0
    try:
        return ClusterLayout(
            workers=first.workers,
            hosts=len(names) if site is None else len(site.hosts) - alone,
            sites=len(cluster.sites) if site else None,
            within=cluster.link if site is None else site.link,
            between=None if site is None else site.uplink,
            cores=None if first.cores == first.workers else first.cores,
            servers=tuple(map(names.index, cluster.servers)),
            apart=apart,
            memory=first.memory,
        )
    except ValueError:
        return None
