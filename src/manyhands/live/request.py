"""A run as its user asked for it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

    from manyhands.cluster import Cluster
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
    """A run as its user asked for it."""

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
    """All hosts, this one first; None for a run on this one alone."""
    listen: str | None = None
    """Where others find this one, if its user chose."""
    patience: float | None = None
    """Seconds without a heartbeat after which a worker is ejected, if the user chose."""
    quiet: bool = False
    """Do not show in the terminal what workers print."""
    key: Path | None = None
    """The file of a key that all hosts have; by default a new one is made."""

    @property
    def host(self) -> str:
        """This host's name."""
        return self.cluster.hosts[0].name if self.hosts is None else self.hosts.names[0]

    @property
    def here(self) -> int:
        """How many workers this host has."""
        return self.workers if self.hosts is None else len(self.hosts.ranks(self.host))
