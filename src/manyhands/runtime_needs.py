"""The requirements of a strategy on its runtime, live or virtual, as one value."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class RuntimeNeeds:
    """What a strategy needs of its runtime with a given number of workers.

    `strategy.needs(workers)` returns it. The code that starts processes, reserves memory or
    simulates reads this value, and does not ask for the kind of strategy.

    >>> RuntimeNeeds(servers=2, shards=2).server_processes
    2
    """

    collectives: bool = False
    """Workers step together in a process group. Otherwise they lease samples and exchange
    messages with servers."""
    only_one_worker: bool = False
    """The strategy runs with one worker only."""
    servers: int = 0
    """Servers that workers exchange messages with."""
    peer_servers: bool = False
    """Every worker's process holds a server with a whole replica, which ends with the worker.
    Otherwise servers are processes of their own, which are restarted from their journals."""
    shards: int = 1
    """Parts into which the parameters are divided."""
    shared_memory: bool = False
    """The parameters are in memory that all processes of one host use: servers write there what
    workers read, and without servers the workers write themselves."""
    local_optimizer: bool = False
    """Workers step with optimizers of their own."""
    own_parameters: bool = False
    """A worker's parameters differ from the shared ones."""
    ensemble: bool = False
    """The replicas stay apart, and their outputs are averaged."""
    lockstep: bool = False
    """Workers wait for each other, so each gets a part of every global batch, even an empty one."""
    by_rank: bool = False
    """A worker gets its own part of every global batch, and not the next part."""
    evaluators: int | None = None
    """The largest number of workers that evaluate; None for all."""
    early: tuple[int, float] | None = None
    """The workers that begin, and the epochs after which the others join; None if all begin."""
    clips: Literal["workers", "servers"] = "workers"
    """The processes that hold the gradient of an optimizer step, and so can clip its norm."""
    alternates: bool = False
    """A batch may give several steps, one for each objective of a job."""

    @property
    def leases(self) -> bool:
        """Whether the coordinator leases samples to workers."""
        return not self.collectives

    @property
    def server_processes(self) -> int:
        """Servers that are processes of their own."""
        return 0 if self.peer_servers else self.servers

    @property
    def takes_back(self) -> bool:
        """Whether a worker that was lost can be restarted and rejoin the run."""
        return self.leases and not self.peer_servers and not self.shared_memory

    def evaluating(self, workers: int) -> int:
        """How many of `workers` present workers evaluate, each a part of the data."""
        return workers if self.evaluators is None else min(workers, self.evaluators)
