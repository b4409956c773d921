"""A protocol of one's own: DiLoCo that waits for a quorum, and sends changes in half the bytes.

    manyhands train examples/own_protocol.py --strategy "quorum(quorum=3)" --workers 4
    manyhands simulate examples/own_protocol.py --strategy "quorum(quorum=48)" --workers 64
    manyhands compare examples/own_protocol.py --strategies "quorum(3), ssp, asynchronous"

docs/write-a-protocol.md builds it step by step.
"""

from dataclasses import dataclass
from typing import ClassVar

import torch
import torch.nn.functional as F  # noqa: N812 - as everybody calls it

import manyhands as mh
from manyhands.protocols import Push, Rounds, ShardOperation, rest


@dataclass(frozen=True)
class AddChange(ShardOperation):
    """Add a worker's change, which was sent as bfloat16, to the sum of the round."""

    share: float

    def apply(self, shard, payload):
        """See above; a restarted server executes it again, with the same result."""
        shard.own_vector("sum").add_(payload.view(torch.bfloat16), alpha=self.share)


@dataclass(frozen=True)
class OuterStep(ShardOperation):
    """Move the parameters by the mean change, with Nesterov momentum."""

    over: float
    rate: float
    momentum: float

    def apply(self, shard, _):
        """See above; both vectors are part of the server's state."""
        mean, velocity = shard.own_vector("sum").div_(self.over), shard.own_vector("velocity")
        velocity.mul_(self.momentum).add_(mean)
        shard.vector.add_(mean + self.momentum * velocity, alpha=self.rate)
        mean.zero_()


@mh.register
@dataclass(frozen=True, repr=False)
class Quorum(Rounds):
    """Take local steps, then an outer step as soon as `quorum` workers have sent their change.

    As `diloco`, but slow workers delay nobody: their change counts in the round in which it
    arrives. Changes are sent as bfloat16, in half the bytes.

    Example: `quorum(quorum=3, every=10)`
    """

    name: ClassVar[str] = "quorum"
    local_optimizer: ClassVar[bool] = True
    servers: ClassVar[int] = 1

    quorum: int = 2
    """Number of workers that an outer step waits for."""
    every: int = 10
    """Local steps of a worker between two of its changes."""
    rate: float = 0.7
    """Learning rate of the outer step."""
    momentum: float = 0.9
    """Momentum of the outer step."""

    async def worker(self, replica, endpoint):
        """The algorithm of a worker."""
        await self.refresh(replica, endpoint)
        batches = []
        async for batch in replica.batches():
            if batch is not None:
                if replica.rests:
                    await self.refresh(replica, endpoint)
                if not batches:
                    start = replica.parameter_vector(0).clone()
                await replica.gradient(batch)
                replica.apply(batch)
                batches.append(batch)
            if batches and (batch is None or len(batches) == self.every):
                change = (replica.parameter_vector(0) - start).bfloat16()
                message = Push(replica.versions[0], sum(batch.samples for batch in batches))
                endpoint.post("server-0", message, change, into=replica.parameters(0))
                replica.versions[0] = (await endpoint.receive("server-0")).version
                replica.commit(*batches)
                batches.clear()
            if batch is None:
                await rest(replica, endpoint)

    @property
    def needed(self):
        """Changes that complete a round."""
        return self.quorum

    def by_rank(self, workers):
        """Whether each worker gets its own part of a global batch, and not the next part."""
        return self.quorum >= workers

    def gather(self, _, call, share):
        """What a server does with a change; its share is its number of samples."""
        return [AddChange(call, share)]

    def conclude(self, state):
        """What a server does when a round is complete."""
        return [OuterStep(None, state.shares, self.rate, self.momentum)] if state.samples else []


job = mh.Job(
    model=mh.models.LeNet,
    optimizer=lambda model: torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9),
    loss=F.cross_entropy,
    data=mh.data.mnist("train"),
    validation=mh.data.mnist("test"),
    global_batch=256,
    samples=20_000,
)
