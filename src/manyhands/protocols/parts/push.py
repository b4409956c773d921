"""Workers that push gradients to servers, which run the optimizer."""

from __future__ import annotations

from typing import TYPE_CHECKING

from manyhands.endpoint import Push
from manyhands.protocols.parts.pull_and_rest import ServerBased, answer, rest

if TYPE_CHECKING:
    from manyhands.endpoint import Endpoint, Replica


class PushGradients(ServerBased):
    """A protocol whose workers push gradients and receive parameters."""

    async def worker(self, replica: Replica, endpoint: Endpoint) -> None:
        """Pull; then, for every batch: compute, push, and receive the parameters again."""
        await self.refresh(replica, endpoint)
        async for batch in replica.batches():
            if batch is None:
                await rest(replica, endpoint)
                continue
            if replica.rests:
                await self.refresh(replica, endpoint)

            def push(server: int, samples: int = batch.samples, dealt: int = batch.dealt) -> None:
                endpoint.post(
                    replica.servers[server],
                    Push(replica.versions[server], samples, dealt),
                    payload=replica.update(server) if samples else None,
                    into=replica.parameters(server),
                )

            await replica.gradient(batch, ready=push)
            answers = [await answer(endpoint, name) for name in replica.servers]
            replica.versions[:] = [one.version for one in answers]
            if all(one.applied for one in answers):
                replica.commit(batch)
            else:
                replica.forgo(batch)
