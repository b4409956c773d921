"""A virtual worker's replica: time passes for computing, and the gradient is real."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from manyhands.virtual.member import Crashed

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable

    import torch

    from manyhands.endpoint import LeasedBatch
    from manyhands.leases import Lease
    from manyhands.virtual.bench import Bench, Replication
    from manyhands.virtual.coordinator import Coordinator
    from manyhands.virtual.cores import Cores
    from manyhands.virtual.kernel import Kernel
    from manyhands.virtual.log import WorkerLog
    from manyhands.virtual.member import Member


@dataclass(eq=False, slots=True)
class Leased:
    """A batch that is known by its lease; it is loaded when it is computed on."""

    lease: Lease
    samples: int


class VirtualReplica:
    """The replica of one life of a virtual worker.

    Args:
        member: whose.
        servers: their names, in the order of the shards.
        replication: its parameters and buffers.
        bench: where gradients are computed.
        coordinator: where samples come from.
        cores: its host's.
        seconds: draws the time that a batch takes.
        kernel: the clock.
        log: its trace.
    """

    def __init__(
        self,
        member: Member,
        servers: tuple[str, ...],
        replication: Replication,
        bench: Bench,
        coordinator: Coordinator,
        cores: Cores,
        seconds: Callable[[], float],
        kernel: Kernel,
        log: WorkerLog,
    ) -> None:
        self.servers = servers
        self.replication = replication
        self._member = member
        self._life = member.life
        self._bench = bench
        self._coordinator = coordinator
        self._cores = cores
        self._seconds = seconds
        self._kernel = kernel
        self._log = log

    def batches(self) -> AsyncIterator[Leased]:
        """Batches until the run ends."""
        return _Batches(self._next)

    async def _next(self) -> Leased | None:
        self._check_alive()
        lease = await self._coordinator.lease(self._member.name, self._log)
        return None if lease is None else Leased(lease, lease.samples)

    async def gradient(self, batch: LeasedBatch, ready: Callable[[int], object]) -> None:
        """Hold a core for the time that it takes; then the update is there, all at once."""
        self._check_alive()
        if not isinstance(batch, Leased):
            raise TypeError("only batches of this replica can be computed")
        asked = self._kernel.now
        begun = await self._cores.compute(self._member, self._seconds())
        self._log.time("wait", asked, begun - asked)
        self._log.span("compute", begun)
        loss, completed = self._bench.gradient(self.replication, batch.lease)
        self._log.loss(loss, batch.samples)
        for server in completed:
            ready(server)

    def update(self, server: int) -> torch.Tensor:
        """The update for a server; to be posted before anything is awaited."""
        return self._bench.update(self.replication, server)

    def parameters(self, server: int) -> torch.Tensor:
        """The parameters of a server, where they are received."""
        self.replication.touched = True
        return self.replication.parameters[server]

    def commit(self, batch: LeasedBatch) -> None:
        """The batch's update is applied everywhere."""
        if not isinstance(batch, Leased) or not self._member.is_in(self._life):
            return
        if self._coordinator.commit(self._member.name, batch.lease):
            self._log.step(batch.samples)

    def _check_alive(self) -> None:
        if not self._member.is_in(self._life):
            raise Crashed(f"{self._member.name} is dead and computes nothing")


class _Batches:
    """An asynchronous iterator, not a generator, so that a dropped one runs nothing more."""

    def __init__(self, take: Callable[[], Awaitable[Leased | None]]) -> None:
        self._take = take

    def __aiter__(self) -> _Batches:
        return self

    async def __anext__(self) -> Leased:
        batch = await self._take()
        if batch is None:
            raise StopAsyncIteration
        return batch
