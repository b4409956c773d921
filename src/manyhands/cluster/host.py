"""The parts of a cluster: hosts, links and sites."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Host:
    """One machine of a cluster.

    Raises:
        ValueError: `cores` is below 1, or `workers` below 0.

    Example:
        >>> import manyhands as mh
        >>> mh.Host("a", cores=8, memory=64 << 30, devices=("cuda:0", "cuda:1")).cores
        8
    """

    name: str
    """Unique within its cluster."""
    cores: int
    """Processor cores that a run may use, at least 1."""
    memory: int
    """Bytes of main memory."""
    devices: tuple[str, ...] = ()
    """Accelerators, as torch names them ("cuda:0"); empty for a host that computes on its cores."""
    address: str = "127.0.0.1"
    """The address at which the other hosts reach this one."""
    workers: int | None = None
    """Number of workers on it: 0 for a host of servers alone, None if it depends on the number of
    workers of a run."""

    def __post_init__(self) -> None:
        if self.cores < 1:
            raise ValueError(f"host {self.name} needs at least 1 core, not {self.cores}")
        if self.workers is not None and self.workers < 0:
            raise ValueError(f"host {self.name} needs at least 0 workers, not {self.workers}")


@dataclass(frozen=True)
class Link:
    """The network link between two hosts, the same in both directions.

    Example:
        >>> import manyhands as mh
        >>> mh.Link(bandwidth=125e6, latency=0.5e-3)  # 1 Gbit/s, 0.5 ms
        Link(bandwidth=125000000.0, latency=0.0005)
    """

    bandwidth: float
    """Bytes per second."""
    latency: float = 0.0
    """Seconds for the first byte."""


@dataclass(frozen=True)
class Site:
    """Hosts at one place: a local network, with one uplink to the other sites.

    Example:
        >>> import manyhands as mh
        >>> mh.Site("east", ("a", "b"), link=mh.Link(125e6), uplink=mh.Link(12.5e6, 0.04)).hosts
        ('a', 'b')
    """

    name: str
    """Unique within its cluster."""
    hosts: tuple[str, ...]
    """Names of its hosts."""
    link: Link | None = None
    """The link between any two of its hosts; None for a site of one host."""
    uplink: Link | None = None
    """Its link to the other sites, shared by all its hosts. A message between two sites passes the
    uplinks of both; its latency is the larger of theirs, beside the latencies within the sites."""
