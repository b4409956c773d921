"""Where a job runs: hosts, their cores, devices and memory, and the links between them."""

from __future__ import annotations

import os
import socket
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Host:
    """One machine."""

    name: str
    cores: int
    memory: int
    """Bytes."""
    devices: tuple[str, ...] = ()
    """Accelerators, as torch names them ("cuda:0"); empty for a host that computes on its cores."""
    address: str = "127.0.0.1"
    """The address at which the other hosts reach this one."""

    def __post_init__(self) -> None:
        if self.cores < 1:
            raise ValueError(f"host {self.name} needs at least 1 core, not {self.cores}")


@dataclass(frozen=True)
class Link:
    """What joins two hosts, the same in both directions."""

    bandwidth: float
    """Bytes per second."""
    latency: float = 0.0
    """Seconds for the first byte."""


@dataclass(frozen=True)
class Cluster:
    """Hosts and the link between any two of them.

    `Cluster.local()` is this machine. Pairs that `links` does not name use `link`; on one host
    there is none.
    """

    hosts: tuple[Host, ...]
    link: Link | None = None
    links: tuple[tuple[str, str, Link], ...] = ()
    price: float | None = None
    """Money per host and hour, in the user's currency."""

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

    @classmethod
    def local(cls) -> Cluster:
        """This machine, with the cores this process may use."""
        host = Host(name=socket.gethostname(), cores=_usable_cores(), memory=_memory())
        return cls(hosts=(host,))

    @property
    def cores(self) -> int:
        """Cores of all hosts together."""
        return sum(host.cores for host in self.hosts)

    def between(self, first: str, second: str) -> Link | None:
        """The link between two hosts; None within one."""
        if first == second:
            return None
        for one, other, link in self.links:
            if {one, other} == {first, second}:
                return link
        return self.link

    def default_workers(self) -> int:
        """One worker per device; without devices one per core, at most four."""
        devices = sum(len(host.devices) for host in self.hosts)
        return devices or min(self.cores, 4)


def _usable_cores() -> int:
    return len(os.sched_getaffinity(0))


def _memory() -> int:
    for line in Path("/proc/meminfo").read_text(encoding="ascii").splitlines():
        if line.startswith("MemTotal:"):
            return int(line.split()[1]) * 1024
    raise RuntimeError("/proc/meminfo does not say how much memory there is")
