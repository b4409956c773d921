"""The assignment of a run's processes: one JSON file, which the agent writes for them."""

from __future__ import annotations

from pathlib import Path

import msgspec

from manyhands.live.hosts.host_list import Hosts
from manyhands.live.hosts.shared_folder import marker_in
from manyhands.pacing import Pace
from manyhands.sampling.batches import BatchSizes, EvaluationPoints
from manyhands.script.origin import Origin, Overrides
from manyhands.transport.control import Line
from manyhands.transport.security import JobKey


class Leasing(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Sizes and limits of the job, for the coordinator, which does not load the job itself."""

    samples: int
    global_batch: int | BatchSizes
    budget: int | None
    seconds: float | None
    evaluates: bool
    lockstep: bool = False
    """Whether workers wait for each other: see `manyhands.leasing.leases`."""
    by_rank: bool = False
    by_speed: bool = False
    points: EvaluationPoints = EvaluationPoints()
    """Where evaluations are, by samples."""
    early: tuple[int, float] | None = None
    """Workers that begin, and the epochs after which the others join; None if all begin."""
    evaluation_seconds: float | None = None
    """Seconds from one evaluation to the next; None for no such interval."""
    stores: bool = False
    """Whether the run stores checkpoints."""
    storing: EvaluationPoints | None = None
    """Where checkpoints are, by samples; None if they are by time."""
    storing_seconds: float | None = None
    rounds: tuple[int, int] | None = None
    """The length of rounds, as in `RuntimeNeeds`."""
    """Seconds from one checkpoint to the next; None for no such interval."""
    since: tuple[int, int] = (0, 0)
    """Samples and global batches before the checkpoint that the run continues from."""
    spent: float = 0.0
    """Seconds of training before it."""


class Assignment(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Everything that the processes of a run need to know about it."""

    origin: Origin
    overrides: Overrides
    strategy: str
    workers: int
    """Number of workers on all hosts."""
    host: str
    """The name of this host."""
    folder: str
    coordinator: str
    """Address of the coordinator."""
    private: str
    """A folder that only this user can read, with this file and the ipc sockets."""
    store_address: str
    store_port: int
    servers: tuple[str, ...]
    """Addresses of the parameter servers on this host; empty for strategies that have none."""
    leasing: Leasing | None
    """For strategies that lease samples: sizes and limits of the job; None for collectives."""
    agent: int
    """The agent's process id: when it is no longer the parent, the run is over."""
    devices: tuple[str, ...]
    """One torch device per worker of this host."""
    memory: int | None = None
    """Descriptor, in the agent, of the shared memory for parameters; None if there is none."""
    journals: tuple[int, ...] = ()
    """Descriptors, in the agent, of the memory for the servers' journals."""
    coordinator_journal: tuple[int, ...] = ()
    """Descriptors, in the agent, of the memory for the coordinator's journal; empty: files in the
    private folder."""
    preloads: tuple[str, ...] = ()
    """Modules that a host loads once for all of its workers."""
    slow: tuple[Pace, ...] = ()
    """Workers that are slowed down."""
    hosts: tuple[tuple[str, int], ...] = ()
    """All hosts in order, each with its number of workers; empty for a run on one host."""
    server_hosts: tuple[str, ...] = ()
    """The host of each server process; empty: all are on the first host."""
    restarts_servers: bool = True
    """Whether a server that was killed can be restarted: its journal outlives it."""
    address: str = "127.0.0.1"
    """Address at which other hosts connect to this one."""
    port: int = 0
    """Port at which the coordinator listens for other hosts; 0 for a free one."""
    key: str | None = None
    """The file with the job's key; required for several hosts."""
    patience: float | None = None
    """Seconds without progress after which a process is ended; None for the default."""
    recovers: bool = True
    """Whether the run goes on without a worker that is lost, or goes back to a checkpoint."""
    elastic: bool = False
    """Whether workers of collectives continue without one that is lost, and it is replaced."""
    row: int = 1
    """Workers that hold parts of one replica: they are left out, and join, together."""
    peers: bool = False
    """Whether workers run peer servers in their own processes."""
    takes_back: bool = True
    """Whether a worker that leases samples may join again after it was lost."""
    resume: str | None = None
    """The folder of the checkpoint that the run continues from."""
    checkpoint_memory: tuple[str, ...] = ()
    """Where workers open the memory for checkpoints, for two generations; empty for none."""
    generation: int = 0
    """Which of the two is written first."""
    storage: str = ""
    """The first host's folder of the run, where all hosts that see it store their part of
    checkpoints; empty: `folder`."""
    attempt: str = ""
    """Distinguishes this run from earlier ones in the same folder, on all hosts."""
    faults: str = ""
    """What goes wrong on purpose, as text; each agent carries out what concerns its host."""
    facts: dict[str, str] = msgspec.field(default_factory=dict)
    """Facts that must be equal on all hosts."""

    def write(self, path: Path) -> None:
        """Write it to a file."""
        path.write_bytes(msgspec.json.encode(self))

    @property
    def first(self) -> int:
        """The rank of this host's first worker."""
        return Hosts(self.hosts).ranks(self.host).start if self.hosts else 0

    @property
    def shares_folder(self) -> bool:
        """Whether this host sees the first host's folder, where checkpoints are stored."""
        if not self.hosts or self.host == self.hosts[0][0]:
            return True
        return marker_in(Path(self.storage), self.attempt).exists()

    def device(self, rank: int) -> str:
        """The device of a worker of this host."""
        return self.devices[rank - self.first]

    def job_key(self) -> JobKey | None:
        """The key that authenticates connections between hosts; None for a run on one host."""
        return None if self.key is None else JobKey.read(Path(self.key))

    def line(self, name: str) -> Line:
        """A connection to the coordinator."""
        return Line(self.coordinator, name, self.job_key())

    @classmethod
    def read(cls, path: Path) -> Assignment:
        """Read it from a file."""
        return msgspec.json.decode(path.read_bytes(), type=cls)


def eager_limit(workers: int) -> int:
    """Bytes up to which payloads are sent without a grant: 64 MiB for all workers together."""
    return min(1 << 20, (64 << 20) // max(1, workers))
