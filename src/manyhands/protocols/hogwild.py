"""Hogwild: workers write shared parameters at once, without a lock."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Literal

from manyhands.protocols.protocol import StrategyProtocol

if TYPE_CHECKING:
    from manyhands.endpoint import Endpoint, Replica


@dataclass(frozen=True, repr=False)
class Hogwild(StrategyProtocol):
    """Let all workers of one host write the shared parameters at once, without a lock.

    W_v ← W_v − λ·(b/B)·ΔW_v for every element v, whatever others do to it meanwhile: there is one
    W, in memory that all workers share. Each computes the gradient of its b samples from W as it
    is, and applies it in place with an optimizer of its own (momentum and the like are each
    worker's). Nothing is sent and nobody waits. Two who write one element at the same moment may
    lose one of the two changes, and a gradient may be computed from elements of different
    moments. That is rare where updates are sparse, and noise where they are not.

    Use it on one host with many cores and models so small that exchanging parameters would take
    longer than computing. Updates are stale as under `asynchronous`.

    Example: `hogwild()`

    Paper: Niu, Recht, Ré, Wright, HOGWILD!: A Lock-Free Approach to Parallelizing Stochastic
    Gradient Descent, NIPS 2011.
    """

    name: ClassVar[str] = "hogwild"
    support: ClassVar[Literal["beta"]] = "beta"
    local_optimizer: ClassVar[bool] = True
    shared_memory: ClassVar[bool] = True
    servers = 0

    async def worker(self, replica: Replica, endpoint: Endpoint) -> None:
        """Loop: read the state of W, compute the gradient of a batch, write every element."""
        del endpoint
        async for batch in replica.batches():
            if batch is not None:
                await replica.gradient(batch)
                replica.apply(batch, counts=batch.samples)
                replica.commit(batch)

    async def refresh(self, replica: Replica, endpoint: Endpoint) -> list[int]:
        """Nothing need be brought: the replica computes where the shared state is."""
        del replica, endpoint
        return []
