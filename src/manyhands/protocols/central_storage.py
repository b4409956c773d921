"""Central storage: one copy of the parameters in shared memory, read by all workers of a host."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Literal

from msgspec import UNSET

from manyhands.costs import StepPayload
from manyhands.endpoint import Pull, Push
from manyhands.protocols.parts.pull_and_rest import answer, rest
from manyhands.protocols.parts.shares import DividedBatches
from manyhands.protocols.synchronous import SynchronousRounds

if TYPE_CHECKING:
    from manyhands.endpoint import Endpoint, Replica


@dataclass(frozen=True, repr=False)
class CentralStorage(DividedBatches, SynchronousRounds):
    """Keep one copy of the parameters in the host's memory, and have all workers compute from it.

    W ← W − λ·mean(ΔW_n), weighted by samples: the same steps as `synchronous`, and as one worker
    with the whole batch. One server holds W and the optimizer, sums the gradients and steps.
    Workers on the same host read W in shared memory, so nothing is pulled. W changes only while
    all computing workers wait for the step.

    Use it on one host with several devices, if a copy of the parameters and of the optimizer state
    per device would not fit. Only the server runs the optimizer: with many workers `allreduce` is
    faster.

    Example: `central_storage()`

    After TensorFlow's `tf.distribute.experimental.CentralStorageStrategy`.
    """

    name: ClassVar[str] = "central_storage"
    support: ClassVar[Literal["beta"]] = "beta"
    lacks: ClassVar[dict[str, str]] = {
        "codec": "workers and server are on one host, where encoding takes longer than"
        " copying; use synchronous()"
    }
    shared_memory: ClassVar[bool] = True
    servers = 1

    def step_payload(self, workers: int, size: int) -> StepPayload:
        """Every worker sends a gradient; the parameters are read in shared memory."""
        del workers
        return StepPayload(sent=size)

    async def worker(self, replica: Replica, endpoint: Endpoint) -> None:
        """For every batch: compute from the shared parameters, push, and wait for the step."""
        (server,) = replica.servers
        (read,) = await self.refresh(replica, endpoint)
        resting = False
        async for batch in replica.batches():
            if batch is None:
                await rest(replica, endpoint)
                resting = True
                continue
            if resting:
                # From the answer on, rounds wait for this worker: no step happens while it reads.
                (read,) = await self.refresh(replica, endpoint)
                resting = False
            await replica.gradient(batch)
            update = replica.update(0) if batch.samples else None
            unused = replica.unused(0) or UNSET
            push = Push(read, batch.samples, batch.dealt, mass=batch.mass, unused=unused)
            endpoint.post(server, push, payload=update)
            said = await answer(endpoint, server)
            read = said.version
            if said.applied:
                replica.commit(batch)
            else:
                replica.forgo(batch)

    async def refresh(self, replica: Replica, endpoint: Endpoint) -> list[int]:
        """Take part in rounds from now on. The parameters are in shared memory already."""
        (server,) = replica.servers
        endpoint.post(server, Pull())
        return [(await answer(endpoint, server)).version]
