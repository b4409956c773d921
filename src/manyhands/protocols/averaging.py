"""Parameter averaging: workers train by themselves and meet every so many steps."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Literal

from manyhands.endpoint import Push
from manyhands.protocols.actions import Action, Move
from manyhands.protocols.parts.pull_and_rest import answer, rest
from manyhands.protocols.parts.rounds import Round, Rounds

if TYPE_CHECKING:
    from manyhands.endpoint import Endpoint, LeasedBatch, Replica


class Meeting(Rounds):
    """Workers that step alone with optimizers of their own, and meet every so many steps."""

    local_optimizer: ClassVar[bool] = True
    if TYPE_CHECKING:
        every: int

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.every < 1:
            raise ValueError(f"every must be 1 or more, not {self.every}")

    async def worker(self, replica: Replica, endpoint: Endpoint) -> None:
        """Step alone; meet the others after every so many steps, and before resting."""
        await self.refresh(replica, endpoint)
        steps = 0
        alone: list[LeasedBatch] = []
        async for batch in replica.batches():
            if batch is not None:
                if replica.rests:
                    await self.refresh(replica, endpoint)
                    replica.adopt()
                await replica.gradient(batch)
                replica.apply(batch)
                alone.append(batch)
                steps += 1
            if alone and (batch is None or len(alone) >= self.interval(steps)):
                await self._meet(replica, endpoint, alone)
                replica.commit(*alone)
                alone.clear()
            if batch is None:
                await rest(replica, endpoint)

    def interval(self, steps: int) -> int:
        """Steps between two averages, after so many steps."""
        del steps
        return self.every

    async def _meet(self, replica: Replica, endpoint: Endpoint, alone: list[LeasedBatch]) -> None:
        samples = sum(batch.samples for batch in alone)
        for server, name in enumerate(replica.servers):
            parameters = replica.parameters(server)
            message = Push(replica.versions[server], samples)
            endpoint.post(name, message, payload=parameters, into=parameters)
        for server, name in enumerate(replica.servers):
            replica.versions[server] = (await answer(endpoint, name)).version
        replica.adopt()


@dataclass(frozen=True, repr=False)
class Averaging(Meeting):
    """Train every worker on its own part, and average the parameters every so many steps.

    W ← Σ b_n·W_n / Σ b_n over what the workers came to, each weighing what it was trained on.
    With every=1 and plain SGD it is `synchronous`, exactly; an optimizer with a state makes a
    difference, because every worker keeps its own.

    Use it where the network is slow: it moves 2·m bytes per worker once in `every` steps, not in
    each. Rare averaging lets the replicas drift apart, and what they learn in between fits
    together less well.

    Example: `averaging(every=8)`

    Paper: McDonald, Hall, Mann, Distributed Training Strategies for the Structured Perceptron,
    NAACL 2010.
    """

    name: ClassVar[str] = "averaging"
    support: ClassVar[Literal["beta"]] = "beta"

    every: int = 1
    """Steps of each worker between two averages."""
    servers: int = 1
    """How many processes hold the parameters, an equal part each."""

    def conclude(self, state: Round) -> list[Action]:
        """The mean takes the place of what was there."""
        return [Move(by=1.0, over=state.samples)] if state.samples else []
