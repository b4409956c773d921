"""The model that all virtual workers share for their computations.

A worker keeps only its parameters, as a flat tensor, and its buffers: ten thousand workers need ten
thousand parameter vectors and one model.
"""

from __future__ import annotations

from functools import cached_property, partial
from typing import TYPE_CHECKING, Any

import torch

from manyhands.parameters import Copy, EnsembleModel, LocalOptimizer
from manyhands.parameters.optional.loss_parameters import check_loss_parameters
from manyhands.sampling.permutation import mix
from manyhands.sampling.stream_parts import StreamPart
from manyhands.seeding import EpochOrder, Seeded, epoch_seed, seed_host
from manyhands.virtual.divergence import VirtualDivergence
from manyhands.virtual.worker.endpoint import give
from manyhands.virtual.worker.loading import loader
from manyhands.virtual.worker.together import LEAST_WORKERS, Together

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from torch import nn

    from manyhands.codecs.kernels.finite import NotFinite
    from manyhands.job import Job
    from manyhands.leasing.leases import Lease
    from manyhands.sampling.stream_parts import StreamedBatch
    from manyhands.wire.leasing import Granted

_PURPOSE = 1
"""Purpose for `mix`: random numbers of a worker's computation, such as dropout."""


class Replication:
    """The parameters, buffers and optimizer of one incarnation of a worker.

    Args:
        shared_model: the model that computes its gradients.
        rank: the worker's rank.
        local: whether it has a local optimizer.
        beside: whether to allocate a second buffer for parameters.
        common: the parameters, if workers share them.
    """

    def __init__(
        self,
        shared_model: SharedModel,
        rank: int,
        *,
        local: bool = False,
        beside: bool = False,
        common: list[torch.Tensor] | None = None,
    ) -> None:
        self.rank = rank
        self.computed = 0
        """Number of computed batches."""
        self.shares = common is not None
        self.parameters = common if common is not None else shared_model.room()
        self.seen: list[torch.Tensor] = []
        """Copy of shared parameters from the start of the current computation."""
        self.buffers = shared_model.first_buffers()
        self.updates: list[torch.Tensor] = []
        """The last update, for a worker with a local optimizer."""
        self.unused: list[tuple[int, ...]] = []
        """By shard, the parameters without a gradient in it; empty if all have one."""
        self.optimizer = shared_model.optimizer(self.parameters) if local else None
        self.beside = shared_model.room() if beside else []
        """The second buffer for parameters."""
        self.touched = True
        """Whether the parameters may have changed since the last computation."""
        self.begin: Callable[[], object] = _nothing
        """Called after the first exchange, before the first batch."""

    def adopt(self, shard: int, payload: torch.Tensor) -> None:
        """Use a payload in the place of a shard's parameters; nothing writes to either."""
        if payload.nbytes != self.parameters[shard].nbytes:
            held = self.parameters[shard].nbytes
            raise ValueError(f"expected parameters of {held} bytes, got {payload.nbytes}")
        self.parameters[shard] = payload
        self.touched = True

    def look(self) -> None:
        """Copy shared parameters at the start of a computation, which does not see later writes."""
        if self.shares:
            self.seen = [flat.clone() for flat in self.parameters]
            self.touched = True


class SharedModel:
    """A model that computes the gradients and evaluations of all virtual workers.

    Args:
        job: the job that defines the model and the data.
        shards: number of shards of the parameters.
        clip: the largest norm of an update; None if servers clip.
        lockstep: whether workers wait for each other.
        workers: number of workers; the gradients of many are evaluated together.
    """

    def __init__(
        self,
        job: Job,
        shards: int,
        clip: float | None = None,
        *,
        lockstep: bool = False,
        workers: int = 1,
    ) -> None:
        self._job = self.job = job
        self.lockstep = lockstep
        self.streams = job.streams
        """Whether the data is a stream, which is read when samples are leased."""
        self._read: dict[int, StreamedBatch] = {}
        """By the number of a lease, the batch that was read."""
        self._order = EpochOrder(job)
        self._seeded = Seeded(job.data, job.collate_fn)
        self.divergence = VirtualDivergence(job)
        self._unchecked = True
        """Whether no gradient was computed yet."""
        self._observed: list[Mapping[str, float]] = []
        self.plateau: Mapping[str, Any] | None = None
        """What the learning rates depended on before the run was continued."""
        self._load_samples = loader(job, self._seeded)
        self._copy = Copy(job, shards, torch.device("cpu"), clip=clip)
        self.layout = self._copy.layout
        self.rate = self._copy.rate
        self._first = [buffer.clone() for buffer in self._copy.model.buffers()]
        self.norms = self._copy.norms
        """Norms of gradients, if the job measures them."""
        self.computed: Callable[[], object] | None = None
        """Called after every gradient, if distances between replicas are measured."""
        self._loaded: Replication | None = None
        """The worker whose parameters, buffers and update are loaded."""
        self._together: Together | None = None
        if workers >= LEAST_WORKERS:
            about = (self._order, self._seeded, self._load_samples)
            self._together = Together(job, self._copy, *about)
        self._given: tuple[Replication, list[torch.Tensor], NotFinite] | None = None
        """The worker whose update was computed last, if it was evaluated with others."""

    def room(self) -> list[torch.Tensor]:
        """Allocate memory for parameters."""
        return self.layout.split(torch.zeros(self.layout.nbytes, dtype=torch.uint8))

    @cached_property
    def blank(self) -> list[torch.Tensor]:
        """Parameters of workers that have received none yet; nothing writes to them."""
        return self.room()

    def first_parameters(self) -> list[torch.Tensor]:
        """The model's initial parameters; valid before the first computation."""
        return [flat.clone() for flat in self._copy.parameters]

    def first_buffers(self) -> list[torch.Tensor]:
        """The model's initial buffers."""
        return [buffer.clone() for buffer in self._first]

    def read(self, lease: Granted | Lease) -> StreamedBatch:
        """The batch of a lease of a stream, which is kept until its gradient is computed."""
        with self._seeded.drawing():
            part = StreamPart(lease.dealt, lease.total, lease.start, lease.stop)
            loaded = self._seeded.part(epoch_seed(self._job.seed, 0), part)
        self._read[lease.number] = loaded
        return loaded

    def expect(self, worker: Replication, lease: Lease, due: float) -> None:
        """Note that a worker begins to compute, and will need its update at a time."""
        if self._together is not None:
            self._together.expect(worker, lease, due)

    def gradient(
        self, worker: Replication, lease: Lease, objective: int = 0
    ) -> tuple[float, list[int], float]:
        """Compute a worker's update; return the loss, and the shards in order of completion.

        The third item is the weight of the update, as `LeasedBatch.mass`.

        Random numbers of the model depend on the seed, the worker and its count of batches only,
        those of the data on the seed, the epoch and the sample; not on earlier computations.
        """
        plain, together = partial(self._plain, worker, lease, objective), self._together
        found = None if together is None else together.take(worker, lease, plain)
        if found is None or together is None:
            result = plain()
        else:
            updates, not_finite = found.updates(self.layout)
            self._given = (worker, updates, not_finite)
            worker.computed += 1
            worker.seen = []
            if worker.optimizer is not None:
                worker.updates, worker.unused = updates, []
            elif not not_finite:
                for update in updates:
                    give(update)
            result = (found.loss, together.completed, found.mass)
        if self.computed is not None:
            self.computed()
        return result

    def _plain(
        self, worker: Replication, lease: Lease, objective: int
    ) -> tuple[float, list[int], float]:
        """As `gradient`, of this worker alone."""
        self._given = None
        job = self._job
        draws = mix(job.seed, _PURPOSE, worker.rank, worker.computed)
        worker.computed += 1
        if self.streams:
            if lease.number not in self._read:
                # Another worker, to which it was leased as well, has computed it before.
                self.read(lease)
            loaded = self._read[lease.number]
            inputs, targets = job.divide(loaded.batch)
            samples = loaded.loaded
            if objective + 1 >= len(job.objective_names):
                del self._read[lease.number]
        else:
            wanted = self._order(lease.epoch)[lease.start : lease.stop]
            inputs, targets = self._load_samples(lease.epoch, wanted)
            samples = len(wanted)
        seed_host(draws)
        self._load(worker)
        if self._unchecked:
            self._unchecked = False
            check_loss_parameters(job, self._copy.model, (inputs, targets))
        worker.seen = []
        completed: list[int] = []
        weights = [0.0]
        about = (inputs, targets, samples, completed.append)
        loss = self._copy.gradient(*about, weigh=weights.append, objective=objective)
        if worker.buffers:
            for kept, buffer in zip(worker.buffers, self._copy.model.buffers(), strict=True):
                kept.copy_(buffer)
        if worker.optimizer is not None:
            worker.updates = [update.clone() for update in self._copy.updates]
            worker.unused = list(self._copy.unused)
        return loss.item(), completed, weights[-1]

    def optimizer(self, parameters: Sequence[torch.Tensor]) -> LocalOptimizer:
        """The job's optimizer on a worker's parameters."""
        made = LocalOptimizer(self._job, self._copy.model, self.layout, parameters)
        if self.plateau is not None and made.plateau is not None:
            made.plateau.restore(self.plateau)
        for values in self._observed:
            made.observe(values)
        return made

    def observe(self, values: Mapping[str, float], workers: Sequence[Replication]) -> None:
        """Note the values of an evaluation, on which workers' learning rates may depend."""
        self._observed.append(values)
        for worker in workers:
            if worker.optimizer is not None:
                worker.optimizer.observe(values)

    def not_finite(self) -> NotFinite:
        """What the last computed update has that is no finite number."""
        return self._copy.not_finite() if self._given is None else self._given[2]

    def apply(
        self, worker: Replication, weight: float, dealt: int, objective: int = 0
    ) -> NotFinite:
        """Take a step of a worker's local optimizer with its last update, if that is finite."""
        if worker.optimizer is None:
            raise TypeError("the workers of this strategy have no local optimizer")
        if found := worker.optimizer.step(worker.updates, weight, dealt, objective, worker.unused):
            return found
        worker.touched = True
        if worker.buffers:
            self._put_buffers(worker)
            self._copy.note_buffers(worker.parameters[-1])
            if self._loaded is not worker:
                self._loaded = None
        return ""

    def adopt(self, worker: Replication) -> None:
        """Copy the buffers that were received with its parameters to a worker."""
        worker.touched = True
        if worker.buffers:
            self._load(worker)
            self._copy.adopt_buffers()
            self.adopt_shared_buffers([worker])

    def update(self, worker: Replication, server: int) -> torch.Tensor:
        """The last computed update, which must be this worker's."""
        if self._given is not None and self._given[0] is worker:
            return self._given[1][server]
        if self._loaded is not worker or self._given is not None:
            raise RuntimeError(
                "on a virtual cluster all workers share one model, so an update is valid only "
                "until its worker awaits something: post the update first"
            )
        return self._copy.updates[server]

    def unused(self, worker: Replication, server: int) -> tuple[int, ...]:
        """The parameters of a shard that have no gradient in the last computed update."""
        if worker.optimizer is not None:
            return worker.unused[server] if worker.unused else ()
        return self._copy.unused[server] if self._given is None else ()

    def _load(self, worker: Replication) -> None:
        if self._loaded is worker and not worker.touched:
            return
        parameters = worker.seen or worker.parameters
        for place, kept in zip(self._copy.parameters, parameters, strict=True):
            place.copy_(kept)
        if worker.buffers:
            self._put_buffers(worker)
        self._copy.received()
        self._loaded, worker.touched = worker, False

    @torch.no_grad()
    def _put_buffers(self, worker: Replication) -> None:
        for buffer, kept in zip(self._copy.model.buffers(), worker.buffers, strict=True):
            buffer.copy_(kept)

    def ensemble(self, replicas: Sequence[torch.Tensor]) -> nn.Module:
        """A model whose outputs are the mean of these replicas' outputs."""
        self._loaded = None
        return EnsembleModel(self._copy, replicas)

    def shared(self, shards: Sequence[torch.Tensor], first: Replication | None) -> nn.Module:
        """The model with these shards; buffers that are not shared are the first worker's."""
        self._loaded = None
        if first is not None:
            self._put_buffers(first)
        for place, shard in zip(self._copy.parameters, shards, strict=True):
            place.copy_(shard)
        self._copy.received()
        self._copy.adopt_buffers()
        return self._copy.model

    def adopt_shared_buffers(self, workers: Sequence[Replication]) -> None:
        """Copy the buffers of `shared` to workers, as live workers do at an evaluation."""
        for worker in workers:
            for kept, buffer in zip(worker.buffers, self._copy.model.buffers(), strict=True):
                if buffer.is_floating_point():
                    kept.copy_(buffer)


def _nothing() -> None:
    pass
