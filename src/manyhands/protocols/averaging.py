"""Parameter averaging: workers take local steps and average their parameters every H steps."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, ClassVar, Literal

from manyhands.costs import StepPayload
from manyhands.endpoint import Push
from manyhands.protocols.actions import Action, Move
from manyhands.protocols.compression.coding import Compressed
from manyhands.protocols.parts.pull_and_rest import answer, rest
from manyhands.protocols.parts.rounds import Round, Rounds
from manyhands.protocols.parts.shares import DividedBatches
from manyhands.sampling.rounds import RoundLength

if TYPE_CHECKING:
    from collections.abc import Iterable

    from manyhands.endpoint import Endpoint, LeasedBatch, Replica
    from manyhands.protocols.compression.coding import Coding
    from manyhands.runtime_needs import RuntimeNeeds


class LocalSteps(DividedBatches, Rounds, Compressed):
    """Workers that take local steps with local optimizers, and synchronise every H steps."""

    local_optimizer: ClassVar[bool] = True
    lacks: ClassVar[dict[str, str]] = {
        "aggregate": "it averages replicas after several steps, not gradients; use synchronous()"
    }
    if TYPE_CHECKING:
        every: int

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.every < 1:
            raise ValueError(f"every must be 1 or more, got {self.every}")

    def coding_of(self, server: int, workers: int) -> Coding | None:
        """Replicas start from the last answer: the difference to it is sent."""
        del server, workers
        return self.coding("replicas")

    def step_payload(self, workers: int, size: int) -> StepPayload:
        """Every worker sends its parameters and receives the result, once in H steps."""
        del workers
        sent, received = self.exchanged(size, self.shards)
        return StepPayload(sent=sent / self.every, received=received / self.every)

    async def worker(self, replica: Replica, endpoint: Endpoint) -> None:
        """Take local steps; synchronise after every H of them, and before resting."""
        await self.refresh(replica, endpoint)
        step = 0
        alone: list[LeasedBatch] = []
        async for batch in replica.batches():
            if batch is not None:
                if replica.rests:
                    await self.refresh(replica, endpoint)
                    replica.adopt()
                await replica.gradient(batch)
                replica.apply(batch)
                alone.append(batch)
                step = batch.round + 1
            if alone and (batch is None or len(alone) >= self.interval(step)):
                if await self._synchronise(replica, endpoint, alone):
                    replica.commit(*alone)
                else:
                    replica.forgo(*alone)
                alone.clear()
            if batch is None:
                await rest(replica, endpoint)

    def interval(self, steps: int) -> int:
        """Local steps between two synchronisations, after `steps` steps of the run."""
        return self.round_length.after(steps)

    @property
    def round_length(self) -> RoundLength:
        """Local steps in a round, which ends with an epoch in any case."""
        return RoundLength(self.every)

    def needs(self, workers: int) -> RuntimeNeeds:
        """As of any protocol, and the length of a round."""
        return replace(super().needs(workers), rounds=self.round_length.numbers)

    async def _synchronise(
        self, replica: Replica, endpoint: Endpoint, alone: list[LeasedBatch]
    ) -> bool:
        """Exchange the replica for the result; return whether it is a part of it."""
        samples = sum(batch.samples for batch in alone)
        for server, name in enumerate(replica.servers):
            parameters = replica.parameters(server)
            message = Push(replica.versions[server], samples, mass=total_mass(alone))
            endpoint.post(name, message, payload=parameters, into=parameters)
        applied = True
        for server, name in enumerate(replica.servers):
            said = await answer(endpoint, name)
            replica.versions[server] = said.version
            applied = applied and said.applied
        replica.adopt()
        return applied


def total_mass(batches: Iterable[LeasedBatch]) -> float:
    """The weight of several batches in a mean, as `LeasedBatch.mass`: 0 if it is their samples."""
    own = [batch for batch in batches if batch.samples]
    weight = sum(batch.mass or float(batch.samples) for batch in own)
    return 0.0 if weight == sum(batch.samples for batch in own) else weight


@dataclass(frozen=True, repr=False)
class Averaging(LocalSteps):
    """Train every worker on its own samples, and average the parameters every `every` steps.

    W ← Σ b_n·W_n / Σ b_n over all workers n, each weighted by the samples b_n that it was trained
    on since the last average. With every=1 and plain SGD it equals `synchronous` exactly. With a
    stateful optimizer it does not, because every worker keeps its own optimizer state.

    Use it on slow networks: a worker sends m bytes and receives m once in `every` steps, not in
    every step. With a long interval the replicas drift apart, which costs accuracy.

    Example: `averaging(every=8)`

    Paper: McDonald, Hall, Mann, Distributed Training Strategies for the Structured Perceptron,
    NAACL 2010.
    """

    name: ClassVar[str] = "averaging"
    support: ClassVar[Literal["beta"]] = "beta"

    every: int = 1
    """Steps of each worker between two averages."""
    servers: int = 1
    """Number of server processes; each holds an equal shard of the parameters."""

    def conclude(self, state: Round) -> list[Action]:
        """Replace the parameters with the mean."""
        return [Move(by=1.0, over=state.shares)] if state.samples else []
