"""Placements on a virtual clock: their times from a program, their numbers from one replica."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, ClassVar, cast

from manyhands.collectives import (
    BY_KIND,
    BeginCollective,
    ComputeShare,
    EndCollective,
    GiveMessage,
    TakeMessage,
)
from manyhands.placements.placement import Placement  # noqa: TC001 - a field's type is needed
from manyhands.protocols import LockstepProtocol

if TYPE_CHECKING:
    from manyhands.collectives import StepProgram
    from manyhands.costs import ComputeConditions
    from manyhands.endpoint import (
        Begun,
        CollectiveEndpoint,
        Endpoint,
        LeasedBatch,
        LockstepReplica,
        Replica,
    )
    from manyhands.job import Job
    from manyhands.runtime_needs import Option, RuntimeNeeds


@dataclass(frozen=True, repr=False)
class PlacedProtocol(LockstepProtocol):
    """A placement on a virtual clock.

    Its numbers equal those of `single`, so the first worker computes them, with the whole global
    batch. Each worker takes the time of its program: shares of the time of its part of a batch, and
    collectives and messages through the network.
    """

    name: ClassVar[str] = "placed"
    placement: Placement
    """The strategy."""

    def __str__(self) -> str:
        return str(self.placement)

    def needs(self, workers: int) -> RuntimeNeeds:
        """As of any protocol with collectives."""
        own = self.placement.needs(workers)
        return replace(
            super().needs(workers),
            only_one_worker=own.only_one_worker,
            calling_alike=own.calling_alike,
            alternates=own.alternates,
            one_replica=True,
        )

    def check(self, workers: int) -> None:
        """As of the placement."""
        self.placement.check(workers)

    def check_job(self, job: Job, workers: int) -> None:
        """As of the placement, and of what is not simulated."""
        self.placement.check_job(job, workers)
        self.check_options(job)

    def obstacle(self, option: Option) -> str:
        """Whatever the placement does not support, or is not simulated."""
        return self.placement.obstacle(option) or super().obstacle(option)

    def program(self, job: Job, workers: int, conditions: ComputeConditions) -> StepProgram:
        """As of the placement."""
        return self.placement.program(job, workers, conditions)

    def memory(self, job: Job, workers: int) -> int:
        """Bytes of parameters, gradients and communication buffers on a worker, by the forecast."""
        return self.placement.forecast_job(job, workers).memory

    async def worker(self, replica: Replica, endpoint: Endpoint) -> None:
        """Carry out the program for every batch; the first worker computes the numbers."""
        own, group = cast("LockstepReplica", replica), cast("CollectiveEndpoint", endpoint)
        for one in own.program.start:
            await group.end(_begin(group, one))
        steps = alone = 0
        async for batch in own.batches():
            if batch is None:
                continue
            steps, alone = steps + 1, alone + 1
            await self._step(own, group, batch)
            if own.program.is_due(steps, alone):
                encoding, decoding = own.program.coding
                await own.code(encoding)
                await group.end(_begin(group, own.program.outer[own.rank]))
                await own.code(decoding)
                alone = 0
            own.commit(batch)

    async def _step(
        self, own: LockstepReplica, group: CollectiveEndpoint, batch: LeasedBatch
    ) -> None:
        begun: dict[int, Begun] = {}
        for instruction in own.program.ranks[own.rank]:
            match instruction:
                case ComputeShare(share=share):
                    await own.compute(batch, share)
                case BeginCollective(key=key):
                    begun[key] = _begin(group, instruction)
                case EndCollective(key=key):
                    await group.end(begun.pop(key))
                case GiveMessage(to=to, size=size, tag=tag):
                    group.give(to, size, tag)
                case TakeMessage(sender=sender, tag=tag):
                    await group.take(sender, tag)
        own.differentiate(batch)
        own.step(batch)


def _begin(group: CollectiveEndpoint, one: BeginCollective) -> Begun:
    return group.begin(BY_KIND[one.kind](len(one.ranks)), one.size, ranks=one.ranks)
