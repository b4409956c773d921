"""Hogwild: workers update shared parameters concurrently, without a lock."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Literal

from manyhands.costs import StepPayload
from manyhands.protocols.parts.shares import AT_OWN_PACE
from manyhands.protocols.protocol import StrategyProtocol

if TYPE_CHECKING:
    from manyhands.endpoint import Endpoint, Replica


@dataclass(frozen=True, repr=False)
class Hogwild(StrategyProtocol):
    """Let all workers of one host update the shared parameters concurrently, without a lock.

    W_v ← W_v − λ·(b/B)·ΔW_v for every element v, without synchronisation: there is one W, in
    memory that all workers share. Each worker computes the gradient of its b samples from the
    current W, and applies it in place with its own optimizer and optimizer state. Nothing is sent
    and no worker waits. If two workers write one element at the same time, one of the two changes
    may be lost, and a gradient may be computed from a mix of old and new elements. Such conflicts
    are rare if updates are sparse, and act as noise if they are not.

    Use it on one host with many cores, for models so small that exchanging parameters would take
    longer than computing. Updates are stale as in `asynchronous`.

    Example: `hogwild()`

    Paper: Niu, Recht, Ré, Wright, HOGWILD!: A Lock-Free Approach to Parallelizing Stochastic
    Gradient Descent, NIPS 2011.
    """

    name: ClassVar[str] = "hogwild"
    support: ClassVar[Literal["beta"]] = "beta"
    lacks: ClassVar[dict[str, str]] = {
        "codec": "nothing is sent, because workers share one memory",
        "shares": AT_OWN_PACE,
    }
    local_optimizer: ClassVar[bool] = True
    shared_memory: ClassVar[bool] = True
    servers = 0

    def step_payload(self, workers: int, size: int) -> StepPayload:
        """Nothing: workers read and write the parameters in shared memory."""
        del workers, size
        return StepPayload()

    async def worker(self, replica: Replica, endpoint: Endpoint) -> None:
        """For every batch: read W, compute the gradient, and update every element in place."""
        del endpoint
        async for batch in replica.batches():
            if batch is not None:
                await replica.gradient(batch)
                replica.apply(batch, counts=batch.samples)
                replica.commit(batch)

    async def refresh(self, replica: Replica, endpoint: Endpoint) -> list[int]:
        """Do nothing: the replica computes on the shared parameters."""
        del replica, endpoint
        return []
