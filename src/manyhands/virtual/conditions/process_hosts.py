"""Assignment of workers and servers to the hosts of a cluster."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

from manyhands.cluster import Cluster, Host, Link
from manyhands.sampling.division import part

if TYPE_CHECKING:
    from collections.abc import Sequence

    from manyhands.protocols import WorkerGroup


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
    def colocated(
        cls,
        workers: int,
        servers: int,
        link: Link,
        cores: int = 1,
        groups: Sequence[WorkerGroup] = (),
    ) -> ProcessHosts:
        """A host for every worker; servers are distributed over these hosts in turn.

        A server that belongs to a group of workers is on the host of the group's first worker.
        """
        names = tuple(f"host-{number}" for number in range(workers))
        cluster = Cluster(tuple(_host(name, cores) for name in names), link)
        return cls.spread(cluster, workers, servers, groups)

    @classmethod
    def in_blocks(
        cls,
        workers: int,
        servers: int,
        hosts: tuple[int, int],
        link: Link,
        cores: int | None = None,
        groups: Sequence[WorkerGroup] = (),
    ) -> ProcessHosts:
        """Workers in blocks of ranks on some hosts, and servers in turn on others.

        A server that belongs to a group of workers is on the host of the group's first worker. By
        default a host has a core for each of its workers.
        """
        here, apart = hosts
        on = _blocks(workers, here)
        sizes = Counter(on)
        most = [max(1, sizes[number]) for number in range(here)] + [1] * apart
        made = tuple(_host(f"host-{at}", cores or own) for at, own in enumerate(most))
        local = {number: on[ranks[0]] for ranks, numbers in groups if ranks for number in numbers}
        others = [number for number in range(servers) if number not in local]
        local |= {number: here + turn % apart for turn, number in enumerate(others)}
        return cls(
            Cluster(made, link),
            tuple(made[at].name for at in on),
            tuple(made[local[number]].name for number in range(servers)),
        )

    @classmethod
    def spread(
        cls, cluster: Cluster, workers: int, servers: int, groups: Sequence[WorkerGroup] = ()
    ) -> ProcessHosts:
        """Workers and servers on the hosts that the cluster gives them, as in live runs."""
        beside = cluster.server_hosts(workers, servers, groups)
        return cls(cluster, cluster.worker_hosts(workers), beside)


def _blocks(workers: int, hosts: int) -> list[int]:
    """The index of the host of every rank."""
    return [host for host in range(hosts) for _ in range(workers)[part(workers, host, hosts)]]


def _host(name: str, cores: int) -> Host:
    return Host(name=name, cores=cores, memory=0)
