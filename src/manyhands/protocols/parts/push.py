"""Workers that push gradients to servers, which run the optimizer."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, TypeVar

from msgspec import UNSET

from manyhands.costs import StepPayload
from manyhands.endpoint import Push
from manyhands.protocols.compression.coding import Compressed
from manyhands.protocols.parts.pull_and_rest import ServerBased, answer, rest
from manyhands.protocols.protocol import ServerState

if TYPE_CHECKING:
    from manyhands.endpoint import Endpoint, LeasedBatch, Replica
    from manyhands.job import Job
    from manyhands.protocols.compression.coding import Coding
    from manyhands.protocols.protocol import StrategyProtocol


ALONE: Final = (
    "a server applies every update alone, and has no others to compare it with; use synchronous() "
    "or softsync()"
)
"""Why a protocol has no `aggregate`."""
S = TypeVar("S", bound=ServerState)


class PushGradients(ServerBased, Compressed):
    """A protocol whose workers push gradients and receive parameters."""

    def coding_of(self, server: int, workers: int) -> Coding | None:
        """Gradients are updates: what was not sent is added to the next."""
        del server, workers
        return self.coding("updates")

    def check_job(self, job: Job, workers: int) -> None:
        """Raise ValueError, naming the fix, if it cannot train this job."""
        super().check_job(job, workers)
        if job.objective_names and self.coding("updates") is not None:
            raise ValueError(
                f"{self} encodes updates, and with several objectives the next update is one of "
                "other parameters: leave out the codecs, or use allreduce(codec=…)"
            )

    def step_payload(self, workers: int, size: int) -> StepPayload:
        """Every worker sends a gradient and receives the parameters."""
        del workers
        sent, received = self.exchanged(size, self.servers)
        return StepPayload(sent=sent, received=received)

    async def worker(self, replica: Replica, endpoint: Endpoint) -> None:
        """Pull; then, for every batch: compute, push, and receive the parameters again."""
        await self.refresh(replica, endpoint)
        async for batch in replica.batches():
            if batch is None:
                await rest(replica, endpoint)
                continue
            # Servers have gone on without it: its parameters are old, and the next round must wait
            # for it again.
            if replica.rests:
                await self.refresh(replica, endpoint)

            def push(server: int, batch: LeasedBatch = batch) -> None:
                read = replica.versions[server]
                endpoint.post(
                    replica.servers[server],
                    Push(
                        read,
                        batch.samples,
                        batch.dealt,
                        mass=batch.mass,
                        objective=batch.objective,
                        unused=replica.unused(server) or UNSET,
                    ),
                    payload=replica.update(server) if batch.samples else None,
                    into=replica.parameters(server),
                )

            await replica.gradient(batch, ready=push)
            versions, applied = [], True
            for name in replica.servers:
                said = await answer(endpoint, name)
                versions.append(said.version)
                applied = applied and said.applied
            replica.versions[:] = versions
            if applied:
                # After the answers of all servers: a lease that is committed is not given again,
                # and an update that one server has not got would be lost with this worker.
                replica.commit(batch)
            else:
                replica.forgo(batch)


def only_reads(protocol: StrategyProtocol) -> bool:
    """Whether the workers of a protocol read the parameters that they receive, and change none."""
    return getattr(type(protocol), "worker", None) is PushGradients.worker


def changed(state: S, **fields: Any) -> S:
    """A copy of a server's state with other values of some fields.

    As `dataclasses.replace`, without its checks: a server makes several copies per call.
    """
    copy = object.__new__(type(state))
    copy.__dict__.update(state.__dict__)
    copy.__dict__.update(fields)
    return copy
