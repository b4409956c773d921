"""A case: the protocol, problem, cluster and faults of one simulated run, drawn from a seed."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from manyhands.sampling.permutation import permutation
from manyhands.testing.cases.problem import (
    RATE,
    SLOPE,
    STEEPNESS,
    first,
)

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from manyhands.job import Job
    from manyhands.leasing.leases import Lease
    from manyhands.protocols import StrategyProtocol
    from manyhands.virtual import Conditions, Faults, ProcessHosts


@dataclass(frozen=True)
class Case:
    """All that determines one simulated run.

    Example:
        >>> from manyhands.protocols import Asynchronous
        >>> from manyhands.testing.cases.drawing import draw
        >>> case = draw(lambda rng, workers, servers: Asynchronous(servers), seed=3)
        >>> case.workers, case.protocol
        (4, asynchronous(servers=2))
    """

    seed: int
    protocol: StrategyProtocol
    workers: int
    job: Job
    targets: NDArray[np.float64]
    """The problem: the gradient of a sample is x − its target."""
    momentum: float
    places: ProcessHosts
    conditions: Conditions
    faults: Faults
    deadline: float
    """Virtual seconds, long after the last fault, by which the run must be over."""
    probes: bool = False
    """Whether every piece of the parameters ends with probes for `Weighting`."""
    _means: dict[Lease, NDArray[np.float64]] = field(default_factory=dict, repr=False)

    @property
    def is_exact(self) -> bool:
        """Whether vectors arrive as they were sent: there is no codec that loses something."""
        servers = range(self.protocol.count_servers(self.workers))
        codings = [self.protocol.coding_of(server, self.workers) for server in servers]
        codecs = [codec for one in codings if one for codec in (one.pushes, one.answers)]
        return all(codec is None or codec.lossless for codec in codecs)

    @property
    def servers(self) -> int:
        """Number of servers."""
        return self.protocol.count_servers(self.workers)

    @property
    def shards(self) -> int:
        """Number of shards of the parameters."""
        return self.protocol.shards

    @property
    def rate(self) -> float:
        """The learning rate."""
        return RATE

    def __str__(self) -> str:
        job, conditions = self.job, self.conditions
        hosts = self.places.cluster.hosts
        return (
            f"{self.protocol}, {self.workers} workers, {len(self.targets)} samples, global batch "
            f"{job.global_batch}, epochs {job.epochs}, seconds {job.seconds}, "
            f"{'with' if job.validation else 'without'} validation, times {conditions.times}, "
            f"service {conditions.service:g} s, detection {conditions.detection:g} s, saving "
            f"{conditions.saving:g} s, "
            f"{'one host' if len(hosts) == 1 else self.places.cluster.link}, faults {self.faults}"
        )

    def gradient(self, x: NDArray[np.float64], lease: Lease) -> NDArray[np.float64]:
        """The gradient of the mean of |x − target|² / 2 over a lease, for all shards."""
        mean = self._means.get(lease)
        if mean is None:
            order = permutation(len(self.targets), self.job.seed, lease.epoch)
            some = self.targets[order[lease.start : lease.stop].numpy()]
            mean = self._means[lease] = some.sum(0) / len(some)
        found = x - mean
        if self.probes:
            size = len(x) // self.shards
            found[size + SLOPE :: size] = STEEPNESS
        return found

    def first(self, seed: int | None = None) -> NDArray[np.float64]:
        """The initial parameters: with the job's seed, or another one."""
        size = self.targets.shape[1] // self.shards
        chosen = self.job.seed if seed is None else seed
        pieces = [first(size, n, chosen, probes=self.probes) for n in range(self.shards)]
        return np.concatenate(pieces)
