"""The request for a run: job, strategy, cluster and options as the user gave them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

    from manyhands.cluster import Cluster
    from manyhands.faults import Fault, Faults
    from manyhands.job import Job
    from manyhands.live.hosts.host_list import Hosts
    from manyhands.pacing import Pace
    from manyhands.script.origin import Origin, Overrides
    from manyhands.strategies import Strategy


@dataclass(frozen=True)
class RunSetting:
    """A setting of the run and where it came from."""

    name: str
    value: str
    source: str


@dataclass(frozen=True)
class Request:
    """The job, strategy, cluster and options of a run, as the user gave them."""

    job: Job
    origin: Origin
    overrides: Overrides
    strategy: Strategy
    workers: int
    cluster: Cluster
    folder: Path
    settings: tuple[RunSetting, ...]
    slow: tuple[Pace, ...] = ()
    hosts: Hosts | None = None
    """All hosts, this one first; None for a run on this host only."""
    server_hosts: tuple[str, ...] = ()
    """The host of each server; empty: all servers are on this host."""
    listen: str | None = None
    """Address and port for other hosts; None for the default route and a free port."""
    patience: float | None = None
    """Seconds without progress after which a process is ended; None for the default."""
    quiet: bool = False
    """Whether to hide the output of workers in the terminal."""
    link: float | None = None
    """Bytes per second of the slowest link between hosts, if it was declared."""
    resume: Path | None = None
    """The checkpoint that the run continues from, a folder of one generation."""
    memory: tuple[str, ...] = ()
    """Where workers open the memory for checkpoints; empty if none is kept in memory."""
    generation: int = 0
    """Which of the two generations in memory is written first."""
    gone_back_to: int = -1
    """Samples of the checkpoint to which the run went back by itself; -1 if it did not."""
    returns: int = 0
    """How often it went back to the memory of several hosts since the last later checkpoint."""
    faults: Faults | None = None
    """What goes wrong on purpose; None for nothing."""
    key: Path | None = None
    """A key file that all hosts have; None creates a new key."""

    @property
    def kept_by_hosts(self) -> bool:
        """Whether several hosts keep checkpoints in memory."""
        return bool(self.memory) and self.hosts is not None and len(self.hosts.names) > 1

    @property
    def host(self) -> str:
        """This host's name."""
        return self.cluster.hosts[0].name if self.hosts is None else self.hosts.names[0]

    @property
    def preloads(self) -> tuple[str, ...]:
        """Modules that a host loads once for all of its workers."""
        from manyhands.engine import DYNAMO  # noqa: PLC0415 - torch is lazy

        needs = self.strategy.needs(self.workers)
        # Collectives of several hosts are those of DDP, where one host may do without it.
        return (DYNAMO,) if needs.collectives and self.hosts is not None else needs.preloads

    def has_server(self, number: int) -> bool:
        """Whether a server is on this host."""
        return not self.server_hosts or self.server_hosts[number] == self.host

    @property
    def serving(self) -> int:
        """Number of servers on this host."""
        servers = self.strategy.needs(self.workers).server_processes
        return sum(self.has_server(number) for number in range(servers))

    def drawn_faults(self) -> tuple[Fault, ...]:
        """The faults of the run, with random ones drawn."""
        servers = self.strategy.needs(self.workers).server_processes
        return () if self.faults is None else self.faults.drawn(self.workers, servers)

    def names_here(self) -> set[str]:
        """The names of the workers, servers and the coordinator on this host."""
        servers = range(self.strategy.needs(self.workers).server_processes)
        return {
            "coordinator",
            *(f"worker-{rank}" for rank in range(self.here)),
            *(f"server-{number}" for number in servers if self.has_server(number)),
        }

    @property
    def here(self) -> int:
        """Number of workers on this host."""
        return self.workers if self.hosts is None else len(self.hosts.ranks(self.host))
