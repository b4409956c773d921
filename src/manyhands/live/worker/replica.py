"""Replica of a live worker under a protocol, with samples that the coordinator leases."""

from __future__ import annotations

import time
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

import msgspec
import torch

from manyhands.endpoint import Terms
from manyhands.live.member.divergence import Divergence
from manyhands.live.worker.evaluation import evaluate, no_totals
from manyhands.live.worker.leased_batches import BatchIterator, LeasedBatches, LeaseQueue
from manyhands.live.worker.loading import Loading, move
from manyhands.live.worker.slowdown import Slowdown
from manyhands.parameters import EnsembleModel, LocalOptimizer, difference, lerp, trade
from manyhands.sampling.stream_parts import StreamedBatch
from manyhands.stopping import Improvement
from manyhands.trace import NotApplied
from manyhands.wire.leasing import (
    Commit,
    Enough,
    Evaluate,
    Forgo,
    Granted,
    Nothing,
    Over,
    Saved,
    StreamEnded,
    Sum,
    Tally,
)

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    from manyhands.endpoint import LeasedBatch
    from manyhands.job import Job
    from manyhands.live.member.progress import Progress
    from manyhands.live.worker.checkpoints.leased import LeasedCheckpoints
    from manyhands.live.worker.stream_position import StreamPosition
    from manyhands.parameters import Copy, UpdateCounts
    from manyhands.protocols import StrategyProtocol
    from manyhands.trace import Phase, Recorder
    from manyhands.transport.reliable_channel import ReliableLine


class LiveBatch:
    """A batch and its lease."""

    def __init__(
        self, lease: Granted, round_: int, inputs: Any, targets: Any, objective: int = 0
    ) -> None:
        self.lease = lease
        self.samples = lease.stop - lease.start
        self.total = lease.total
        self.dealt = lease.dealt
        self.mass = 0.0
        self.round = round_
        self.inputs = inputs
        self.targets = targets
        self.objective = objective
        self.seconds = 0.0
        """How long it was computed."""
        self.refused = False
        """Whether its update was not applied because it has NaN or infinity."""

    def following(self) -> LiveBatch:
        """The same batch for the next objective."""
        about = (self.lease, self.round, self.inputs, self.targets)
        return LiveBatch(*about, self.objective + 1)


class LiveReplica:
    """A worker's replica of the model, with batches from leases.

    The next lease is requested while the current one is computed, so that the request costs no
    time; with processes that load batches, one for each of them and one more.
    """

    def __init__(
        self,
        job: Job,
        protocol: StrategyProtocol,
        rank: int,
        workers: int,
        copy: Copy,
        line: ReliableLine,
        device: torch.device,
        recorder: Recorder,
        progress: Progress,
        writes: UpdateCounts | None = None,
        pacer: Slowdown | None = None,
    ) -> None:
        self.rank = rank
        self._needs = protocol.needs(workers)
        self.servers = tuple(f"server-{number}" for number in range(self._needs.servers))
        self.returns = self.rests = self.pauses = False
        self._objectives = len(job.one_by_one)
        self.terms = Terms(job.batch_sizes, workers, copy.rate, objectives=self._objectives)
        self.versions = [0] * len(self.servers)
        self.stores = False
        """Whether this worker stores the model."""
        self._job = job
        recorder.follows_staleness = "staleness" in job.measures
        self._leased = LeasedBatches(job)
        self._loading = Loading(job, progress.mark)
        self._divergence = Divergence(job, rank, recorder, copy.model.parameters)
        self._improvement = Improvement(job.early_stopping)
        self.pull_members: Callable[[], list[torch.Tensor]] = list
        """Pulls the replicas of an ensemble; set by `run_free`."""
        self._copy = copy
        self._local: LocalOptimizer | None = None
        self._not_applied = NotApplied(recorder)
        if self._needs.local_optimizer:
            self._local = LocalOptimizer(job, copy.model, copy.layout, copy.parameters)
        self._line = line
        self._device = device
        self._on_cpu = device.type == "cpu"
        self._recorder = recorder
        self._progress = progress
        self._pacer = pacer or Slowdown()
        self._writes = writes
        """If workers write shared parameters themselves: the number of updates by each."""
        self._read = 0
        """The number of updates by other workers when this worker last read."""
        self._has_batch = False
        """Whether the current step has a batch."""
        self._next_objective: LiveBatch | None = None
        """The current batch for the next objective of the job; None after the last one."""
        self._loss: torch.Tensor | None = None
        """The sum of the losses of the current batch, over the objectives so far."""
        # Every loading process has a batch, and one is ready. How far a stream goes on is known
        # only when a batch is loaded.
        self._queue = LeaseQueue(line, ahead=0 if job.streams else job.num_workers + 1)
        self.refresh: Callable[[], None] = lambda: None
        """Brings the replica to the shared state; set by `run_free`."""
        self.stand_by: Callable[[], None] = lambda: None
        """Called instead of `refresh` when other workers evaluate; set by `run_free`."""
        self.enter: Callable[[Phase], None] = lambda _: None
        """Begins a phase, to which traffic is counted; set by `run_free`."""
        self.coding: Callable[[], float] = lambda: 0.0
        """Seconds of encoding and decoding so far; set by `run_free`."""
        self.checkpoints: LeasedCheckpoints | None = None
        """Stores and restores this worker's part of checkpoints; set by `run_free`."""
        self._phase: Phase = "start"

    def batches(self) -> AsyncIterator[LiveBatch | None]:
        """Batches until the run ends."""
        if self.checkpoints is not None:
            self.checkpoints.restore(returns=self.returns)
        self._queue.ask()
        return BatchIterator(self._next)

    def _next(self) -> LiveBatch | None:
        """The next batch, after any evaluations before it; None if there is none at present.

        A step is the work on one batch, whether it is committed alone or together with others.

        Raises:
            StopAsyncIteration: the run is over.
        """
        if self._next_objective is not None:
            return self._begin(self._next_objective)
        self._progress.step += self._has_batch
        self._has_batch = False
        while True:
            begun = time.monotonic()
            self._progress.phase = "lease"
            message = self._queue.take()
            self._recorder.span("wait", begun, time.monotonic() - begun, self._progress.step)
            match message:
                case Granted():
                    if not self._job.streams:
                        self._queue.ask()
                    batch = self._load(message)
                    if batch is not None:
                        self._has_batch = True
                        self._enter("training")
                        return self._begin(batch)
                case Evaluate(ranks=ranks) if ranks:
                    self._store(message)
                    self._queue.ask()
                case Evaluate():
                    before = self._phase
                    self._enter("evaluation")
                    self._evaluate(message)
                    self._enter(before)
                    self._queue.ask()
                case Nothing(pauses=pauses):
                    self.pauses = pauses
                    self._enter("idle")
                    return None
                case Over(stores=stores):
                    self.stores = stores
                    self._enter("idle")
                    raise StopAsyncIteration

    def _begin(self, batch: LiveBatch) -> LiveBatch:
        """A batch, after which it is returned again for the next objective, if there is one."""
        is_last = batch.objective == self._objectives - 1
        self._next_objective = None if is_last else batch.following()
        return batch

    def _enter(self, phase: Phase) -> None:
        if phase != self._phase:
            self._phase = phase
            self.enter(phase)

    def _load(self, lease: Granted) -> LiveBatch | None:
        """The batch of a lease; None if a stream has ended before it."""
        round_ = lease.number // self.terms.workers
        if lease.start == lease.stop and not self._job.streams:
            return LiveBatch(lease, round_, None, None)
        begun = time.monotonic()
        self._progress.phase = "data"
        self._leased.ask(lease)
        self._load_ahead()
        loaded = self._leased.take(lease)
        if isinstance(loaded, StreamedBatch):
            left = self._as_far_as(lease, loaded)
            if left is None:
                return None
            if not loaded.samples:
                return LiveBatch(left, round_, None, None)
            loaded, lease = loaded.batch, left
        inputs, targets = self._job.divide(move(loaded, self._device))
        self._recorder.span("data", begun, time.monotonic() - begun, self._progress.step)
        return LiveBatch(lease, round_, inputs, targets)

    def _as_far_as(self, lease: Granted, loaded: StreamedBatch) -> Granted | None:
        """A lease as far as the stream reaches, None if it is given up; asks for the next one."""
        if loaded.end is not None:
            # Before the next lease is asked for: the service must not lease what is behind the end.
            self._line.send(StreamEnded(loaded.end))
        is_void = loaded.is_void(lockstep=self._needs.lockstep)
        if is_void:
            self._line.send(Forgo(lease.number))
        self._queue.ask()
        stop = lease.start + loaded.samples
        return None if is_void else msgspec.structs.replace(lease, stop=stop, total=loaded.total)

    def _load_ahead(self) -> None:
        """Start to load the batches of leases that were granted meanwhile."""
        if self._leased.ahead:
            for lease in self._queue.granted():
                self._leased.ask(lease)

    def check_finite(self) -> None:
        """Check the final parameters of the run."""
        self._divergence.finally_()

    def settle(self) -> None:
        """Write down at the end what is known about values that are not finite."""
        self._not_applied.settle()
        self._divergence.note_last()

    def close(self) -> None:
        """End the loader processes."""
        self._leased.close()
        self._loading.close()

    async def gradient(
        self, batch: LeasedBatch, ready: Callable[[int], object] | None = None
    ) -> None:
        """Compute the update of a batch."""
        if not isinstance(batch, LiveBatch):
            raise TypeError(f"expected a batch of this replica, got {type(batch).__name__}")
        if not batch.samples:
            for shard in range(len(self._copy.parameters)):
                if ready is not None:
                    ready(shard)
            return
        self._load_ahead()
        begun, coded = time.monotonic(), self.coding()
        self._progress.phase = "compute"
        self._copy.received()
        if self._writes is not None:
            self._read = self._writes.by_others(self.rank)
        self._pacer.begin()
        # On the processor the loss is checked before any of its gradients is sent. Waiting for an
        # accelerator's would cost time: that one is checked with the next batch.
        check = partial(self._divergence.training, sample=batch.dealt) if self._on_cpu else None
        ready = self._pacer.before(ready)
        weigh = partial(setattr, batch, "mass")
        about = (batch.inputs, batch.targets, batch.samples, ready, check, weigh, batch.objective)
        loss = self._copy.gradient(*about)
        self._pacer.stretch()
        # Shards are encoded within the backward pass, as soon as they are complete.
        spent = time.monotonic() - begun - (self.coding() - coded)
        self._recorder.span("compute", begun, spent, self._progress.step)
        batch.seconds += spent
        self._loss = loss if batch.objective == 0 or self._loss is None else self._loss + loss
        if self._next_objective is None:
            self._progress.losses.append((self._loss, batch.samples))
        if not self._on_cpu:
            self._divergence.training(loss, batch.dealt)

    def apply(self, batch: LeasedBatch, counts: int | None = None) -> None:
        """Take a step of this worker's local optimizer."""
        if self._local is None:
            raise TypeError("workers of this strategy have no local optimizer")
        if not batch.samples:
            return
        begun = time.monotonic()
        if self._writes is not None:
            # Before the step: what others write from here on is not what this update is late for.
            versions = self._writes.by_others(self.rank) - self._read
            self._recorder.staleness(versions, f"worker-{self.rank}")
        samples = batch.total if counts is None else counts
        self._pacer.begin()
        weight = self.terms.weigh(samples, batch.dealt)
        found = self._local.step(self._copy.updates, weight, batch.dealt, unused=self._copy.unused)
        if found:
            self._refuse(batch, found)
        else:
            self._copy.note_buffers(self._copy.parameters[-1])
        self._pacer.stretch()
        if self._writes is not None and not found:
            self._writes.add(self.rank)
        self._recorder.span("compute", begun, time.monotonic() - begun, self._progress.step)

    def _refuse(self, batch: LeasedBatch, found: str) -> None:
        """Note that the update of a batch is not applied; forget the buffers that came with it."""
        if isinstance(batch, LiveBatch) and found and not batch.refused:
            batch.refused, lease = True, batch.lease
            where = {"epoch": lease.epoch, "start": lease.start, "stop": lease.stop}
            where["sample"] = batch.dealt
            self._not_applied.note(self.rank, found, batch.samples, where)
            # It is sent all the same, as an empty contribution: others wait for this worker's part
            # of the round.
            batch.samples, batch.mass = 0, 0.0
            self._copy.adopt_buffers()

    def beside(self, server: int) -> torch.Tensor:
        """The buffer for other parameters, such as a server's or a neighbour's."""
        return self._copy.beside[server]

    def draw(self, by: float, server: int | None = None) -> None:
        """Interpolate the parameters, or those of one server, towards those in the buffers."""
        shards = self._copy.layout.shards
        for shard in shards if server is None else (shards[server],):
            number = shard.number
            lerp(shard, self._copy.parameters[number], self._copy.beside[number], by)

    def scale(self, by: float) -> None:
        """Multiply the parameters by a factor."""
        for shard in self._copy.layout.shards:
            for stretch in shard.flat_by_dtype:
                stretch.view(self._copy.parameters[shard.number]).mul_(by)

    def trade(self, by: float) -> None:
        """Interpolate as `draw` does, and store the former parameters in the buffers."""
        for shard in self._copy.layout.shards:
            number = shard.number
            trade(shard, self._copy.parameters[number], self._copy.beside[number], by)

    def lay_aside(self, server: int | None = None) -> None:
        """Copy the parameters, or those of one server, to the buffers."""
        for number in range(len(self._copy.beside)) if server is None else (server,):
            self._copy.beside[number].copy_(self._copy.parameters[number])

    def moved(self, server: int) -> torch.Tensor:
        """Replace a buffer by its difference from the parameters, and return it."""
        shard, beside = self._copy.layout.shards[server], self._copy.beside[server]
        difference(shard, beside, self._copy.parameters[server], beside, 1.0)
        return beside

    def compare(self, by: float) -> None:
        """Set the update to the difference of the parameters from those in the buffers."""
        copy = self._copy
        for shard in copy.layout.shards:
            number = shard.number
            one, other = copy.parameters[number], copy.beside[number]
            difference(shard, copy.updates[number], one, other, by)

    def adopt(self) -> None:
        """Load the model's buffers that were sent with the parameters."""
        self._copy.received()
        self._copy.adopt_buffers()

    def update(self, server: int) -> torch.Tensor:
        """The update for a server."""
        return self._copy.updates[server]

    def parameters(self, server: int) -> torch.Tensor:
        """The parameters of a server's shard, as used by the model."""
        return self._copy.parameters[server]

    def unused(self, server: int) -> tuple[int, ...]:
        """The parameters of a server's shard that have no gradient in the update."""
        return self._copy.unused[server]

    def update_vector(self, server: int) -> torch.Tensor:
        """The update for a server as one vector."""
        return self._copy.layout.shards[server].vector(self.update(server))

    def parameter_vector(self, server: int) -> torch.Tensor:
        """The parameters of a server as one vector."""
        return self._copy.layout.shards[server].vector(self.parameters(server))

    def commit(self, *batches: LeasedBatch) -> None:
        """Commit the leases of batches: their updates are part of the shared state."""
        for batch in batches:
            if batch.objective < self._objectives - 1:
                continue
            if isinstance(batch, LiveBatch):
                if batch.refused:
                    # Together with the next request for samples, in one frame; nothing waits for it
                    # before that.
                    self._line.send(Forgo(batch.lease.number), later=True)
                    continue
                self._line.send(Commit(batch.lease.number, batch.seconds), later=True)
            self._recorder.count(samples=batch.samples, steps=1)
            self._progress.samples += batch.samples

    def forgo(self, *batches: LeasedBatch) -> None:
        """Give up the leases of batches: their updates are discarded."""
        for batch in batches:
            self._next_objective = None
            if isinstance(batch, LiveBatch):
                if self._local is None:
                    self._refuse(batch, self._copy.not_finite())
                self._line.send(Forgo(batch.lease.number), later=True)

    def saved(self) -> None:
        """Report that the model is stored, and wait for the lease service's confirmation."""
        self._line.send(Saved())
        while not isinstance(self._queue.take(), Over):
            pass

    def _evaluate(self, cut: Evaluate) -> None:
        """Evaluate a part of the validation data on the consistent cut that all workers see."""
        begun = time.monotonic()
        self._progress.phase = "evaluate"
        # The mean of all replicas is read in the place of the own parameters, which go on after the
        # evaluation.
        kept = (
            [shard.clone() for shard in self._copy.parameters] if self._needs.own_parameters else []
        )
        model, job, parts = self._copy.model, self._copy.job, self._needs.evaluating(cut.parts)
        if cut.index >= parts:
            self.stand_by()
            totals = no_totals(job, model, self._device, self._loading)
        else:
            self.refresh()
            self.adopt()
            if self._needs.ensemble:
                model = EnsembleModel(self._copy, self.pull_members())
            about = (job, model, self._device, cut.index, parts)
            totals = evaluate(*about, loading=self._loading, divided=cut.parts)
        for shard, own in zip(self._copy.parameters, kept, strict=False):
            shard.copy_(own)
        if kept:
            self.adopt()
        self._line.send(Tally(cut.round, tuple(totals.tensor.tolist())))
        self._progress.phase = "lease"
        message = self._queue.take()
        while not isinstance(message, Sum):
            if isinstance(message, Evaluate):
                # A worker was lost during the evaluation: the others start it again.
                self._evaluate(message)
                return
            message = self._queue.take()
        self._progress.phase = "evaluate"
        tensor = torch.tensor(message.values, dtype=torch.float64)
        values = replace(totals, tensor=tensor).values()
        self._recorder.span("evaluate", begun, time.monotonic() - begun, self._progress.step)
        if cut.index == 0:
            for name, value in values.items():
                self._recorder.point(f"validation/{name}", value, samples=cut.samples)
        if norms := self._copy.norms.take():
            mean, count = norms
            self._recorder.point("measure/gradient_norm", mean, samples=cut.samples, weight=count)
        self._divergence.validation(values, cut.samples)
        if self._local is not None:
            self._local.observe(values)
        self._judge(values, cut)

    def _store(self, cut: Evaluate) -> None:
        """Store this worker's part of a checkpoint, and wait until all workers have theirs."""
        begun = time.monotonic()
        self._progress.phase = "store"
        if self.checkpoints is not None:
            stalled = self.checkpoints.store(cut, partial(self._bring, cut))
            if cut.index == 0:
                detail = {"samples": str(cut.samples), "seconds": f"{stalled:.4f}"}
                self._recorder.event("checkpoint", detail)
        self._line.send(Tally(cut.round, ()))
        self._progress.phase = "lease"
        message = self._queue.take()
        while not isinstance(message, Sum):
            if isinstance(message, Evaluate):
                # A worker was lost meanwhile: the others store again.
                self._store(message)
                return
            message = self._queue.take()
        self._recorder.span("wait", begun, time.monotonic() - begun, self._progress.step)

    @property
    def own_parts(self) -> tuple[LocalOptimizer | None, Improvement, StreamPosition]:
        """What a checkpoint stores of this replica beside the model."""
        return self._local, self._improvement, self._leased.position

    def _bring(self, cut: Evaluate) -> None:
        """Read the shared state, if this worker is one of those that evaluate."""
        if cut.index >= self._needs.evaluating(cut.parts):
            self.stand_by()
            return
        self.refresh()
        self.adopt()

    def _judge(self, values: dict[str, float], cut: Evaluate) -> None:
        """Ask for the end of the run if the validation values say so."""
        job = self._job
        if job.goal and job.goal.reached(values):
            event = ("target", {"target": str(job.goal), "samples": str(cut.samples)})
        elif self._improvement.is_over(values):
            event = ("stopped", {"why": str(job.early_stopping), "samples": str(cut.samples)})
        else:
            return
        if cut.index == 0:
            self._recorder.event(*event)
        self._line.send(Enough())
