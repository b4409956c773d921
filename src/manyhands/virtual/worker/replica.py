"""A virtual worker's replica: gradients are real, and compute time is simulated."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING

import msgspec
import torch

from manyhands.leasing.leases import Lease
from manyhands.parameters import difference, lerp, trade
from manyhands.virtual.simulator.kernel import passes
from manyhands.virtual.simulator.member import Crashed
from manyhands.wire.leasing import Evaluate, Granted, Nothing, Over, StreamEnded

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable

    from manyhands.codecs.kernels.finite import NotFinite
    from manyhands.endpoint import LeasedBatch, Terms
    from manyhands.parameters import Shard, UpdateCounts
    from manyhands.trace import Phase
    from manyhands.virtual.coordinator import LeaseChannel
    from manyhands.virtual.log import WorkerLog
    from manyhands.virtual.simulator.cores import Cores
    from manyhands.virtual.simulator.kernel import Kernel
    from manyhands.virtual.simulator.member import VirtualProcess
    from manyhands.virtual.worker.shared_model import Replication, SharedModel
    from manyhands.wire.leasing import Leasing


@dataclass(eq=False, slots=True)
class VirtualBatch:
    """A batch, given by its lease; it is loaded when its gradient is computed."""

    lease: Lease
    samples: int
    total: int
    round: int
    dealt: int
    mass: float = 0.0
    objective: int = 0
    not_finite: NotFinite = ""
    """What its update has that is no finite number."""
    refused: bool = False
    """Whether its update was not applied because of that."""
    seconds: float = 0.0
    """How long it was computed, if batches are divided by speed."""


class VirtualReplica:
    """The replica of one incarnation of a virtual worker.

    Args:
        member: the worker's process.
        rank: its rank.
        servers: names of the servers, in the order of shards.
        terms: the facts about the job that protocols need.
        replication: its parameters and buffers.
        shared_model: the model that computes gradients.
        channel: its connection to the lease service.
        cores: the cores of its host.
        seconds: draws the compute time of a batch.
        kernel: the clock.
        log: its trace.
        writes: counts of updates, if workers write shared parameters themselves.
    """

    def __init__(
        self,
        member: VirtualProcess,
        rank: int,
        servers: tuple[str, ...],
        terms: Terms,
        replication: Replication,
        shared_model: SharedModel,
        channel: LeaseChannel,
        cores: Cores,
        seconds: Callable[[], float],
        kernel: Kernel,
        log: WorkerLog,
        writes: UpdateCounts | None = None,
    ) -> None:
        self.rank = rank
        self.servers = servers
        self.terms = terms
        self.versions = [0] * len(self.servers)
        self.rests = self.pauses = False
        self.refresh: Callable[[], Awaitable[object]] = _nothing
        """Loads the shared parameters, before an evaluation."""
        self.stand_by: Callable[[], Awaitable[object]] = _nothing
        """Called in its place if the worker has no part in the evaluation."""
        self.evaluators: Callable[[int], int] = int
        """Number of workers that evaluate."""
        self.enter: Callable[[Phase], None] = lambda _: None
        """Begins a phase, to which traffic is counted."""
        self._phase: Phase = "start"
        self.saving = 0.0
        """Seconds that storing the model takes."""
        self.by_speed = False
        """Whether compute times are in proportion to samples, by which faster workers get more."""
        self.replication = replication
        self._keeps = bool(replication.beside)
        self.returns = member.life > 1
        self._member = member
        self._life = member.life
        self._shared_model = shared_model
        self._streams = shared_model.streams
        self._channel = channel
        self._cores = cores
        self._seconds = seconds
        self._kernel = kernel
        self._log = log
        self._writes = writes
        self._read = 0
        """Updates that other workers had written when this worker last read."""
        self._has_batch = False
        """Whether a batch was returned since the last request."""
        self._next_objective: VirtualBatch | None = None
        """The current batch for the next objective of the job; None after the last one."""
        self._loss = 0.0
        """The sum of the losses of the current batch, over the objectives so far."""

    def batches(self) -> AsyncIterator[VirtualBatch | None]:
        """Batches until the run ends."""
        self.replication.begin()
        return _Batches(self._next)

    async def _next(self) -> VirtualBatch | None:
        """The next batch, which begins a step of the trace, as live."""
        self._check_alive()
        if self._next_objective is not None:
            return self._begin(self._next_objective)
        if self._has_batch:
            self._log.next_step()
            self._has_batch = False
        while True:
            word = await self._channel.lease(self._log)
            if isinstance(word, Granted):
                batch = (
                    self._from_stream(word) if self._streams else _batch(word, self.terms.workers)
                )
                if batch is None:
                    continue
                self._has_batch = True
                if self._phase != "training":
                    self._enter("training")
                return self._begin(batch)
            match word:
                case Evaluate(ranks=ranks) as cut if ranks:
                    # For a checkpoint.
                    await self._read_shared(cut)
                case Evaluate() as cut:
                    before = self._phase
                    self._enter("evaluation")
                    self._log.note_residual()
                    await self._read_shared(cut)
                    self._enter(before)
                case Nothing(pauses=pauses):
                    self.pauses = pauses
                    self._enter("idle")
                    return None
                case Over(stores=stores):
                    self._enter("idle")
                    if stores:
                        await self._store()
                    raise StopAsyncIteration

    def _from_stream(self, granted: Granted) -> VirtualBatch | None:
        """The batch of a lease of a stream; None if the stream has ended before it."""
        loaded = self._shared_model.read(granted)
        if loaded.end is not None:
            self._channel.say(StreamEnded(loaded.end))
        if loaded.is_void(lockstep=self._shared_model.lockstep):
            self._channel.forgo(granted.number)
            return None
        stop = granted.start + loaded.samples
        left = msgspec.structs.replace(granted, stop=stop, total=loaded.total)
        return _batch(left, self.terms.workers)

    def _begin(self, batch: VirtualBatch) -> VirtualBatch:
        """A batch, after which it is returned again for the next objective, if there is one."""
        following = batch.objective + 1
        is_last = following == self.terms.objectives
        self._next_objective = None if is_last else replace(batch, mass=0.0, objective=following)
        return batch

    def _enter(self, phase: Phase) -> None:
        self._phase = phase
        self.enter(phase)

    async def _store(self) -> None:
        """Store the model, which takes the configured time."""
        if self.saving:
            await self.refresh()
            await passes(self.saving)
        self._check_alive()
        await self._channel.saved(self._log)

    async def _read_shared(self, cut: Evaluate) -> None:
        """Read the shared parameters, again if a worker is lost meanwhile."""
        again: Leasing = cut
        while isinstance(again, Evaluate):
            await self._refresh(again)
            again = await self._channel.looked_up(again, self._log)

    async def _refresh(self, cut: Evaluate) -> None:
        """Read the shared parameters before an evaluation, as live workers do."""
        if cut.index >= self.evaluators(cut.parts):
            await self.stand_by()
            self._check_alive()
            return
        mine = self.replication
        kept = [flat.clone() for flat in mine.parameters] if self._keeps else []
        await self.refresh()
        self._check_alive()
        for flat, own in zip(mine.parameters, kept, strict=False):
            flat.copy_(own)

    async def gradient(
        self, batch: LeasedBatch, ready: Callable[[int], object] | None = None
    ) -> None:
        """Hold a core for the compute time, and compute the update at its end."""
        self._check_alive()
        if not isinstance(batch, VirtualBatch):
            raise TypeError(f"expected a batch of this replica, got {type(batch).__name__}")
        if not batch.samples:
            completed = list(range(len(self.replication.parameters)))
        else:
            asked = self._kernel.now
            seconds = self._draw(batch)
            look = partial(self._look, batch, seconds)
            begun = await self._cores.compute(self._member, seconds, look)
            self._log.time("wait", asked, begun - asked)
            self._log.span("compute", begun)
            completed = self._compute(batch)
        for server in completed:
            if ready is not None:
                ready(server)

    def _draw(self, batch: VirtualBatch) -> float:
        """The compute time of a batch. By speed, what is drawn is that of an even part."""
        seconds = self._seconds()
        if self.by_speed:
            seconds *= batch.samples * self.terms.workers / batch.total
            batch.seconds = seconds
        return seconds

    def _compute(self, batch: VirtualBatch) -> list[int]:
        """Compute the update of a batch; return the shards in order of completion."""
        about = (self.replication, batch.lease, batch.objective)
        loss, completed, batch.mass = self._shared_model.gradient(*about)
        batch.not_finite = self._shared_model.not_finite()
        self._loss = loss if batch.objective == 0 else self._loss + loss
        if self._next_objective is None:
            self._log.loss(self._loss, batch.samples)
        said = (self._log.recorder, loss, batch.dealt, self.rank)
        self._shared_model.divergence.training(*said)
        return completed

    def _look(self, batch: VirtualBatch, seconds: float) -> None:
        """Read the parameters at the start of the computation."""
        self.replication.look()
        self._shared_model.expect(self.replication, batch.lease, self._kernel.now + seconds)
        if self._writes is not None:
            self._read = self._writes.by_others(self.rank)

    def apply(self, batch: LeasedBatch, counts: int | None = None) -> None:
        """Take a step of the local optimizer; its time is part of the gradient's."""
        if not batch.samples:
            return
        samples = batch.total if counts is None else counts
        weight = self.terms.weigh(samples, batch.dealt)
        if found := self._shared_model.apply(self.replication, weight, batch.dealt):
            self._refuse(batch, found)
        else:
            self._note_write()

    def _refuse(self, batch: LeasedBatch, found: str) -> None:
        """Note that the update of a batch is not applied; forget the buffers that came with it."""
        if isinstance(batch, VirtualBatch) and found and not batch.refused:
            batch.refused, lease = True, batch.lease
            where = {"epoch": lease.epoch, "start": lease.start, "stop": lease.stop}
            where["sample"] = batch.dealt
            self._log.not_applied.note(self.rank, found, batch.samples, where)
            batch.samples, batch.mass = 0, 0.0
            self._shared_model.adopt(self.replication)

    def _note_write(self) -> None:
        """Count an update, if workers write shared parameters themselves."""
        if self._writes is not None:
            versions = self._writes.by_others(self.rank) - self._read
            self._log.staleness(versions, self._member.name)
            self._writes.add(self.rank)

    def beside(self, server: int) -> torch.Tensor:
        """The second buffer for a server's parameters."""
        return self.replication.beside[server]

    def draw(self, by: float, server: int | None = None) -> None:
        """Move the parameters, or those of one server, towards those in the second buffer."""
        self._pairs(lerp, by, server)

    def scale(self, by: float) -> None:
        """Multiply the parameters."""
        mine = self.replication
        for shard, parameters in zip(
            self._shared_model.layout.shards, mine.parameters, strict=True
        ):
            for flat in shard.flat_by_dtype:
                flat.view(parameters).mul_(by)
        mine.touched = True

    def trade(self, by: float) -> None:
        """As `draw`; the second buffer gets the old parameters."""
        self._pairs(trade, by)

    def _pairs(
        self,
        move: Callable[[Shard, torch.Tensor, torch.Tensor, float], None],
        by: float,
        server: int | None = None,
    ) -> None:
        mine, shards = self.replication, self._shared_model.layout.shards
        for shard in shards if server is None else (shards[server],):
            move(shard, mine.parameters[shard.number], mine.beside[shard.number], by)
        mine.touched = True

    def lay_aside(self, server: int | None = None) -> None:
        """Copy the parameters, or those of one server, to the second buffer."""
        mine = self.replication
        for number in range(len(mine.beside)) if server is None else (server,):
            mine.beside[number].copy_(mine.parameters[number])

    def moved(self, server: int) -> torch.Tensor:
        """The difference to the second buffer, computed in its memory."""
        shard, beside = self._shared_model.layout.shards[server], self.replication.beside[server]
        difference(shard, beside, self.replication.parameters[server], beside, 1.0)
        return beside

    def compare(self, by: float) -> None:
        """Set the update to `by` times the difference to the second buffer."""
        mine = self.replication
        if not mine.updates:
            mine.updates = [torch.zeros_like(flat) for flat in mine.parameters]
        for shard, result, one, other in zip(
            self._shared_model.layout.shards,
            mine.updates,
            mine.parameters,
            mine.beside,
            strict=True,
        ):
            difference(shard, result, one, other, by)

    def adopt(self) -> None:
        """Adopt the buffers that were received with the parameters."""
        self._shared_model.adopt(self.replication)

    def unused(self, server: int) -> tuple[int, ...]:
        """The parameters of a server's shard that have no gradient in the update."""
        return self._shared_model.unused(self.replication, server)

    def update(self, server: int) -> torch.Tensor:
        """The update for a server; to be posted before anything is awaited."""
        if self.replication.optimizer is not None:
            return self.replication.updates[server]
        return self._shared_model.update(self.replication, server)

    def parameters(self, server: int) -> torch.Tensor:
        """The parameters of a server, received in place."""
        self.replication.touched = True
        return self.replication.parameters[server]

    def taking_over(self) -> Callable[[str, torch.Tensor], None]:
        """Need no memory for parameters; returns what is called with those that a server sent."""
        self.replication.parameters[:] = self._shared_model.blank
        return self._take_over

    def _take_over(self, server: str, payload: torch.Tensor) -> None:
        """Use the parameters that a server sent, without a copy."""
        self.replication.adopt(self.servers.index(server), payload)

    def update_vector(self, server: int) -> torch.Tensor:
        """The update for a server as one vector; as `update`."""
        return self._shared_model.layout.shards[server].vector(self.update(server))

    def parameter_vector(self, server: int) -> torch.Tensor:
        """The parameters of a server as one vector."""
        return self._shared_model.layout.shards[server].vector(self.parameters(server))

    def commit(self, *batches: LeasedBatch) -> None:
        """Commit batches: their updates are part of the shared parameters."""
        for batch in batches:
            if batch.objective < self.terms.objectives - 1:
                continue
            if not isinstance(batch, VirtualBatch) or not self._member.is_in(self._life):
                return
            if batch.refused:
                self._channel.forgo(batch.lease.number)
            elif self._channel.commit(batch.lease.number, batch.seconds):
                self._log.committed(batch.samples)

    def forgo(self, *batches: LeasedBatch) -> None:
        """Discard batches: their updates were not applied."""
        for batch in batches:
            self._next_objective = None
            if isinstance(batch, VirtualBatch) and self._member.is_in(self._life):
                self._refuse(batch, batch.not_finite)
                self._channel.forgo(batch.lease.number)

    def _check_alive(self) -> None:
        if not self._member.alive or self._member.life != self._life:
            raise Crashed(f"{self._member.name} is dead and cannot compute")


def _batch(granted: Granted, workers: int) -> VirtualBatch:
    number, start, stop = granted.number, granted.start, granted.stop
    total, dealt = granted.total, granted.dealt
    lease = Lease(number, granted.epoch, start, stop, total, dealt)
    return VirtualBatch(lease, stop - start, total, number // workers, dealt)


class _Batches:
    """An asynchronous iterator; a dropped generator would still run its `finally` blocks."""

    def __init__(self, take: Callable[[], Awaitable[VirtualBatch | None]]) -> None:
        self._take = take

    def __aiter__(self) -> _Batches:
        return self

    def __anext__(self) -> Awaitable[VirtualBatch | None]:
        return self._take()


async def _nothing() -> None:
    pass
