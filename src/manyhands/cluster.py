"""Where a job runs: hosts with cores, memory and devices, and the links between them."""

from __future__ import annotations

import os
import socket
from dataclasses import dataclass
from importlib.util import find_spec
from itertools import takewhile
from pathlib import Path

_DRIVER = Path("/dev")
"""Where the NVIDIA driver has a file for each GPU: nvidia0, nvidia1."""


@dataclass(frozen=True)
class Host:
    """One machine of a cluster.

    Raises:
        ValueError: `cores` is below 1.

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

    def __post_init__(self) -> None:
        if self.cores < 1:
            raise ValueError(f"host {self.name} needs at least 1 core, not {self.cores}")


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
class Cluster:
    """Hosts, and the link between any two of them.

    `mh.simulate` and `mh.compare(virtual=True)` run on any cluster. `mh.train` starts processes on
    this machine, which `Cluster.local()` describes.

    Raises:
        ValueError: there is no host, two hosts have one name, or a link names an unknown host.

    Example:
        >>> import manyhands as mh
        >>> hosts = tuple(mh.Host(name, cores=4, memory=16 << 30) for name in ("a", "b", "c"))
        >>> slow, fast = mh.Link(12.5e6), mh.Link(1.25e9)
        >>> cluster = mh.Cluster(hosts, link=slow, links=(("a", "b", fast),))
        >>> cluster.cores
        12
        >>> cluster.between("a", "b") == fast, cluster.between("a", "c") == slow
        (True, True)
    """

    hosts: tuple[Host, ...]
    """At least one, each with a name of its own."""
    link: Link | None = None
    """The link between two hosts that `links` does not name; within one host there is none."""
    links: tuple[tuple[str, str, Link], ...] = ()
    """Links of single pairs: `("a", "b", Link(1.25e9))`."""

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
        """This machine: the cores that this process may use, its memory and its GPUs.

        GPUs are counted without loading torch: those of the NVIDIA driver that
        `CUDA_VISIBLE_DEVICES` allows, if the installed torch is built for CUDA.
        """
        devices = tuple(f"cuda:{number}" for number in range(_gpus()))
        host = Host(
            name=socket.gethostname(), cores=_usable_cores(), memory=_memory(), devices=devices
        )
        return cls(hosts=(host,))

    @property
    def cores(self) -> int:
        """Cores of all hosts together."""
        return sum(host.cores for host in self.hosts)

    def between(self, first: str, second: str) -> Link | None:
        """The link between two hosts.

        Args:
            first: the name of one host.
            second: the name of the other.

        Returns:
            The pair's own link, or the common one; None within one host, or without links.
        """
        if first == second:
            return None
        for one, other, link in self.links:
            if {one, other} == {first, second}:
                return link
        return self.link

    def default_workers(self) -> int:
        """One worker per device; without devices one per core, at most four or one per host."""
        devices = sum(len(host.devices) for host in self.hosts)
        return devices or min(self.cores, max(4, len(self.hosts)))


def _usable_cores() -> int:
    return len(os.sched_getaffinity(0))


def _gpus() -> int:
    """The GPUs that torch will find."""
    installed = find_spec("torch")
    if installed is None or installed.origin is None:
        return 0
    if not (Path(installed.origin).parent / "lib" / "libtorch_cuda.so").exists():
        return 0
    present = sum(path.name[len("nvidia") :].isdecimal() for path in _DRIVER.glob("nvidia*"))
    return _visible(present, os.environ.get("CUDA_VISIBLE_DEVICES"))


def _visible(present: int, allowed: str | None) -> int:
    """How many of the GPUs that are present CUDA shows: those before the first invalid entry.

    >>> _visible(4, None), _visible(4, "0,2"), _visible(4, ""), _visible(4, "1,-1,2")
    (4, 2, 0, 1)
    """
    if allowed is None:
        return present
    entries = [entry.strip() for entry in allowed.split(",")]
    valid = takewhile(
        lambda one: one.startswith(("GPU-", "MIG-")) or (one.isdecimal() and int(one) < present),
        entries,
    )
    return min(present, len(list(valid)))


def _memory() -> int:
    for line in Path("/proc/meminfo").read_text(encoding="ascii").splitlines():
        if line.startswith("MemTotal:"):
            return int(line.split()[1]) * 1024
    raise RuntimeError("/proc/meminfo does not say how much memory there is")
