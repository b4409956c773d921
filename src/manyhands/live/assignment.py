"""What the agent tells the processes it starts: one JSON file in the run's private folder."""

from __future__ import annotations

from pathlib import Path

import msgspec

from manyhands.live.hosts.host_list import Hosts
from manyhands.pacing import Pace
from manyhands.sampling.batches import BatchSizes
from manyhands.script.origin import Origin, Overrides
from manyhands.transport.control import Line
from manyhands.transport.security import JobKey


class Leasing(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The job's numbers, for a coordinator that never loads the job itself."""

    samples: int
    global_batch: int | BatchSizes
    budget: int | None
    seconds: float | None
    evaluates: bool
    lockstep: bool = False
    """Whether workers wait for each other: see `manyhands.leasing.leases`."""
    by_rank: bool = False


class Assignment(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A run as its processes see it."""

    origin: Origin
    overrides: Overrides
    strategy: str
    workers: int
    """Of all hosts together."""
    host: str
    """The name of this one."""
    folder: str
    coordinator: str
    """Address of the control channel."""
    private: str
    """The folder that nobody else may read: this file and the ipc sockets."""
    store_address: str
    store_port: int
    servers: tuple[str, ...]
    """Addresses of the parameter servers on this host; empty for strategies that have none."""
    leasing: Leasing | None
    """For workers that run free: what the coordinator must know to lease samples."""
    agent: int
    """The agent's process id: when it is no longer the parent, the run is over."""
    devices: tuple[str, ...]
    """One per worker of this host, as torch names them."""
    memory: int | None = None
    """The descriptor, in the agent, of memory that all share; None where nothing is shared so."""
    journals: tuple[int, ...] = ()
    """The descriptors, in the agent, of the memory in which its servers keep journals."""
    slow: tuple[Pace, ...] = ()
    """Workers that are made to compute longer than they need."""
    hosts: tuple[tuple[str, int], ...] = ()
    """All hosts in order, each with its number of workers; empty for a run on one."""
    address: str = "127.0.0.1"
    """Where other hosts reach this one."""
    port: int = 0
    """Where the coordinator listens for them; 0 for a free one."""
    key: str | None = None
    """The file with the job's key; needed where there are other hosts."""
    patience: float | None = None
    """Seconds without a heartbeat after which a worker is ejected, if the user chose."""
    peers: bool = False
    """Whether the servers live in the workers' processes."""
    facts: dict[str, str] = msgspec.field(default_factory=dict)
    """What must be the same on all hosts."""

    def write(self, path: Path) -> None:
        """Store it."""
        path.write_bytes(msgspec.json.encode(self))

    @property
    def first(self) -> int:
        """The rank of this host's first worker."""
        return Hosts(self.hosts).ranks(self.host).start if self.hosts else 0

    def device(self, rank: int) -> str:
        """What a worker of this host computes on."""
        return self.devices[rank - self.first]

    def job_key(self) -> JobKey | None:
        """What all processes of the run prove to know where hosts meet."""
        return None if self.key is None else JobKey.read(Path(self.key))

    def line(self, name: str) -> Line:
        """A line to the coordinator."""
        return Line(self.coordinator, name, self.job_key())

    @classmethod
    def read(cls, path: Path) -> Assignment:
        """Take it back."""
        return msgspec.json.decode(path.read_bytes(), type=cls)


def eager_limit(workers: int) -> int:
    """Bytes up to which payloads travel without asking: 64 MiB for all workers together."""
    return min(1 << 20, (64 << 20) // max(1, workers))
