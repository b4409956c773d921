"""Assignment of workers and servers to the hosts of a cluster."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from manyhands.cluster import Cluster, Host, Link
from manyhands.sampling.division import part

if TYPE_CHECKING:
    from collections.abc import Sequence

    from manyhands.protocols import Site


@dataclass(frozen=True)
class ProcessHosts:
    """A cluster, and for every worker and every server the host that it runs on."""

    cluster: Cluster
    workers: tuple[str, ...]
    servers: tuple[str, ...]

    @classmethod
    def one_host(cls, workers: int, servers: int, cores: int | None = None) -> ProcessHosts:
        """All processes on one host, by default with a core for every worker."""
        host = _host("host-0", workers if cores is None else cores)
        return cls(Cluster((host,)), (host.name,) * workers, (host.name,) * servers)

    @classmethod
    def host_each(cls, workers: int, servers: int, link: Link, cores: int = 1) -> ProcessHosts:
        """A host for every worker and for every server, with this link between any two hosts."""
        for_workers = tuple(f"host-{number}" for number in range(workers))
        for_servers = tuple(f"host-{workers + number}" for number in range(servers))
        hosts = tuple(_host(name, cores) for name in (*for_workers, *for_servers))
        return cls(Cluster(hosts, link), for_workers, for_servers)

    @classmethod
    def colocated(cls, workers: int, servers: int, link: Link, cores: int = 1) -> ProcessHosts:
        """A host for every worker; servers are distributed over these hosts in turn."""
        names = tuple(f"host-{number}" for number in range(workers))
        hosts = tuple(_host(name, cores) for name in names)
        beside = tuple(names[number % workers] for number in range(servers))
        return cls(Cluster(hosts, link), names, beside)

    @classmethod
    def on_sites(cls, sites: Sequence[Site], link: Link, cores: int | None = None) -> ProcessHosts:
        """A host for every site, by default with a core for each of its workers."""
        workers: dict[int, str] = {}
        servers: dict[int, str] = {}
        hosts = []
        for number, (ranks, numbers) in enumerate(sites):
            host = _host(f"host-{number}", cores or max(1, len(ranks)))
            hosts.append(host)
            workers |= dict.fromkeys(ranks, host.name)
            servers |= dict.fromkeys(numbers, host.name)
        return cls(
            Cluster(tuple(hosts), link),
            tuple(workers[rank] for rank in range(len(workers))),
            tuple(servers[number] for number in range(len(servers))),
        )

    @classmethod
    def in_blocks(
        cls,
        workers: int,
        servers: int,
        hosts: tuple[int, int],
        link: Link,
        cores: int | None = None,
        sites: Sequence[Site] = (),
    ) -> ProcessHosts:
        """Workers in blocks of ranks on some hosts, and servers in turn on others.

        A server that belongs to a site is on the host of the site's first worker. By default a host
        has a core for each of its workers.
        """
        here, apart = hosts
        on = _blocks(workers, here)
        most = [max(1, on.count(number)) for number in range(here)] + [1] * apart
        made = tuple(_host(f"host-{at}", cores or own) for at, own in enumerate(most))
        local = {number: on[ranks[0]] for ranks, numbers in sites if ranks for number in numbers}
        others = [number for number in range(servers) if number not in local]
        local |= {number: here + turn % apart for turn, number in enumerate(others)}
        return cls(
            Cluster(made, link),
            tuple(made[at].name for at in on),
            tuple(made[local[number]].name for number in range(servers)),
        )

    @classmethod
    def spread(
        cls, cluster: Cluster, workers: int, servers: int, sites: Sequence[Site] = ()
    ) -> ProcessHosts:
        """Workers in blocks of ranks on the hosts of a cluster, as in live runs.

        Servers are distributed in turn; one that belongs to a site is on the host of the site's
        first worker.
        """
        names = [host.name for host in cluster.hosts]
        on = [names[at] for at in _blocks(workers, len(names))]
        beside = [names[number % len(names)] for number in range(servers)]
        for ranks, numbers in sites:
            for number in numbers if ranks else ():
                beside[number] = on[ranks[0]]
        return cls(cluster, tuple(on), tuple(beside))


def _blocks(workers: int, hosts: int) -> list[int]:
    """The index of the host of every rank."""
    return [host for host in range(hosts) for _ in range(workers)[part(workers, host, hosts)]]


def _host(name: str, cores: int) -> Host:
    return Host(name=name, cores=cores, memory=0)
