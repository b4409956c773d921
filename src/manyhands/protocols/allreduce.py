"""Allreduce as messages between workers: what `allreduce()` is on a virtual clock.

In a live run `manyhands.placements.allreduce` leaves the sum to DistributedDataParallel. Here every
message of the chosen algorithm is sent, so that links, ports and stragglers act on it, and the sum
is made from what the messages carry.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, ClassVar, Final, Literal, cast

from manyhands.collectives import ALLREDUCE, FORWARD, AllreduceAlgorithm, by_hosts, tree_broadcast
from manyhands.costs import BETWEEN_WORKERS, StepPayload
from manyhands.protocols.parts.shares import DividedBatches
from manyhands.protocols.protocol import StrategyProtocol

if TYPE_CHECKING:
    from manyhands.endpoint import CollectiveEndpoint, Endpoint, LockstepReplica, Replica
    from manyhands.runtime_needs import Option, RuntimeNeeds

_MEBIBYTE: Final = 1024 * 1024


@dataclass(frozen=True, repr=False)
class LockstepProtocol(StrategyProtocol):
    """A strategy whose workers step together by collectives, on a virtual clock."""

    support: ClassVar[Literal["stable", "beta", "experimental"]] = "stable"
    local_optimizer: ClassVar[bool] = True
    alternates: ClassVar[bool] = True
    clips: ClassVar[Literal["servers"]] = "servers"
    """Not before gradients are summed; there are no servers."""
    if TYPE_CHECKING:
        servers: int = field(default=0, init=False)
    else:
        servers = 0
    obstacles: ClassVar[dict[str, str]] = {
        "sync_batchnorm": "the statistics of batches are not exchanged on a virtual clock: leave "
        "it out, or run the strategy with train",
        "float16": "a loss scale is not simulated: leave it out, use "
        'autocast="bfloat16", or run the strategy with train',
        "sparse_gradients": "gradients are dense on a virtual clock: use sparse=False, or run the "
        "strategy with train",
        "ema": "an average of weights is not simulated: leave it out, or run the strategy with "
        "train",
    }

    @property
    def bucket_bytes(self) -> int:
        """Bytes of gradients that are summed together; by default all."""
        return sys.maxsize

    @property
    def fills_from_first(self) -> bool:
        """Whether buckets are filled from the first layer on, and not from the last."""
        return False

    @property
    def lockstep(self) -> bool:
        """Workers wait for each other in every step."""
        return True

    def by_rank(self, workers: int) -> bool:
        """Each worker gets its part of every global batch."""
        del workers
        return True

    def needs(self, workers: int) -> RuntimeNeeds:
        """As of any protocol, and collectives."""
        return replace(super().needs(workers), collectives=True)

    def obstacle(self, option: Option) -> str:
        """As in `OptionSupport`: workers step themselves, and know all evaluations."""
        return self.obstacles.get(option, "")

    async def refresh(self, replica: Replica, endpoint: Endpoint) -> list[int]:
        """Do nothing: all replicas are equal."""
        del replica, endpoint
        return []


@dataclass(frozen=True, repr=False)
class AllreduceMessages(LockstepProtocol, DividedBatches):
    """Average every gradient over all workers in every step, by messages between them.

    Worker n multiplies the gradient of its b_n samples by b_n. The sum over all workers, divided by
    the sum of the b_n, is the gradient of the global batch, and every worker steps with it. Buckets
    of gradients are summed one after another, from the last layer on, while the backward pass still
    computes the earlier ones.
    """

    name: ClassVar[str] = "allreduce"

    bucket_mb: float = 25.0
    """Size of gradient buckets in MiB."""
    find_unused: bool = False
    """Without effect: parameters that a batch does not use have a gradient of 0."""
    algorithm: AllreduceAlgorithm = "ring"
    """The messages by which gradients are summed."""
    hosts_first: bool = True
    """With the ring: workers of a host sum among themselves before they sum with other hosts. In
    text it is `shared_memory`, the option of a live run with the same effect on messages."""

    def __str__(self) -> str:
        return super().__str__().replace("hosts_first", "shared_memory")

    @property
    def bucket_bytes(self) -> int:
        """Bytes of a bucket."""
        return int(self.bucket_mb * _MEBIBYTE)

    @property
    def fills_from_first(self) -> bool:
        """As DDP does, if it searches for unused parameters."""
        return self.find_unused

    def step_payload(self, workers: int, size: int) -> StepPayload:
        """Ring and halving: 2·m·(N − 1)/N. Tree: as much on average. Butterfly: m·log2 N."""
        sent = BETWEEN_WORKERS[self.algorithm](size, workers).sent / workers
        return StepPayload(sent=sent, received=sent, between_workers=True)

    async def worker(self, replica: Replica, endpoint: Endpoint) -> None:
        """For every batch: compute, sum gradients bucket by bucket, and step with the mean."""
        own, group = cast("LockstepReplica", replica), cast("CollectiveEndpoint", endpoint)
        workers = own.terms.workers
        sum_up = ALLREDUCE[self.algorithm](workers)
        if self.algorithm == "ring" and self.hosts_first:
            sum_up = by_hosts(group.hosts)
        first = own.parameters(0)
        await group.end(group.begin(tree_broadcast(workers), first.nbytes, first))
        async for batch in own.batches():
            if batch is None:
                continue
            await own.compute(batch, FORWARD)
            own.differentiate(batch)
            begun = []
            for number, (size, share) in enumerate(own.buckets):
                await own.compute(batch, share)
                values = own.weighted(number)
                begun.append(group.begin(sum_up, size, values, width=own.width))
            await group.end(*begun)
            own.step(batch)
            own.commit(batch)
