"""The one copy of the model that all virtual workers compute on, each when its time has come.

A worker keeps its parameters as flat bytes, and its buffers, and nothing else: ten thousand of
them need ten thousand parameter vectors and one model.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from manyhands.parameters import Copy, EnsembleModel, LocalOptimizer
from manyhands.sampling.permutation import mix, permutation
from manyhands.seeding import seed_host
from manyhands.virtual.divergence import VirtualDivergence
from manyhands.virtual.worker.loading import loader

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import nn

    from manyhands.job import Job
    from manyhands.leasing.leases import Lease

_PURPOSE = 1
"""What `mix` tells a worker's draws while it computes (dropout) from other uses of a seed by."""


class Replication:
    """What one life of a worker keeps of the model.

    Args:
        shared_model: where it computes.
        rank: the worker's.
        local: whether it has an optimizer of its own.
        beside: whether there is room for somebody else's parameters.
        common: the parameters, where it shares them with others.
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
        """Batches that it has computed."""
        self.shares = common is not None
        self.parameters = common if common is not None else shared_model.room()
        self.seen: list[torch.Tensor] = []
        """Shared parameters as they were when the worker began to compute."""
        self.buffers = shared_model.first_buffers()
        self.updates: list[torch.Tensor] = []
        """The last update, for a worker that has an optimizer of its own."""
        self.optimizer = shared_model.optimizer(self.parameters) if local else None
        self.beside = shared_model.room() if beside else []
        """Somebody else's parameters."""
        self.touched = True
        """Whether the parameters may have changed since they were last computed on."""

    def look(self) -> None:
        """Computing begins: what others write into shared parameters from now on is not seen."""
        if self.shares:
            self.seen = [stretch.clone() for stretch in self.parameters]
            self.touched = True


class SharedModel:
    """A model to compute gradients and evaluations on.

    Args:
        job: whose model and data.
        shards: how many the parameters have.
        clip: the norm that an update may have; None where servers see to it.
    """

    def __init__(self, job: Job, shards: int, clip: float | None = None) -> None:
        self._job = job
        self.divergence = VirtualDivergence(job)
        self._load_samples = loader(job, job.data)
        self._copy = Copy(job, shards, torch.device("cpu"), clip=clip)
        self.layout = self._copy.layout
        self.rate = self._copy.rate
        self._first = [buffer.clone() for buffer in self._copy.model.buffers()]
        self._loaded: Replication | None = None
        """Whose parameters, buffers and update the copy holds."""

    def room(self) -> list[torch.Tensor]:
        """Room for parameters."""
        return self.layout.split(torch.zeros(self.layout.nbytes, dtype=torch.uint8))

    def first_parameters(self) -> list[torch.Tensor]:
        """The model's parameters, if nothing was computed yet: as they are at the start."""
        return [stretch.clone() for stretch in self._copy.parameters]

    def first_buffers(self) -> list[torch.Tensor]:
        """The model's buffers as they are at the start."""
        return [buffer.clone() for buffer in self._first]

    def gradient(self, worker: Replication, lease: Lease) -> tuple[float, list[int]]:
        """Compute a worker's update; the loss, and the shards in the order of their completion.

        What the model draws depends on the seed, the worker and its count of batches alone, and
        what the data draws on the seed, the epoch and the sample, not on who computed before.
        """
        job = self._job
        draws = mix(job.seed, _PURPOSE, worker.rank, worker.computed)
        worker.computed += 1
        order = permutation(len(job.data), job.seed, lease.epoch)
        inputs, targets = self._load_samples(lease.epoch, order[lease.start : lease.stop])
        seed_host(draws)
        self._load(worker)
        worker.seen = []
        completed: list[int] = []
        loss = self._copy.gradient(inputs, targets, completed.append)
        if worker.buffers:
            for kept, buffer in zip(worker.buffers, self._copy.model.buffers(), strict=True):
                kept.copy_(buffer)
        if worker.optimizer is not None:
            worker.updates = [update.clone() for update in self._copy.updates]
        return loss.item(), completed

    def optimizer(self, parameters: Sequence[torch.Tensor]) -> LocalOptimizer:
        """The user's optimizer on a worker's parameters."""
        return LocalOptimizer(self._job, self._copy.model, self.layout, parameters)

    def apply(self, worker: Replication, weight: float, dealt: int) -> None:
        """A step of a worker's own optimizer with the update that it computed last."""
        if worker.optimizer is None:
            raise TypeError("this strategy's workers have no optimizer of their own")
        worker.optimizer.step(worker.updates, weight, dealt)
        worker.touched = True
        if worker.buffers:
            self._put_buffers(worker)
            self._copy.note_buffers(worker.parameters[-1])
            if self._loaded is not worker:
                self._loaded = None

    def adopt(self, worker: Replication) -> None:
        """Give a worker the buffers that came with its parameters."""
        worker.touched = True
        if worker.buffers:
            self._load(worker)
            self._copy.adopt_buffers()
            self.adopt_shared_buffers([worker])

    def update(self, worker: Replication, server: int) -> torch.Tensor:
        """The update that was computed last, if it was this worker's."""
        if self._loaded is not worker:
            raise RuntimeError(
                "on a virtual cluster an update is there until its worker waits for something, "
                "because all workers compute on one model: post it first"
            )
        return self._copy.updates[server]

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
        """A model that says what these replicas say in the mean."""
        self._loaded = None
        return EnsembleModel(self._copy, replicas)

    def shared(self, shards: Sequence[torch.Tensor], first: Replication | None) -> nn.Module:
        """The model of these shards; buffers that no worker shares are the first worker's."""
        self._loaded = None
        if first is not None:
            self._put_buffers(first)
        for place, shard in zip(self._copy.parameters, shards, strict=True):
            place.copy_(shard)
        self._copy.received()
        self._copy.adopt_buffers()
        return self._copy.model

    def adopt_shared_buffers(self, workers: Sequence[Replication]) -> None:
        """Give the buffers of `shared` to workers, as live ones take them when they evaluate."""
        for worker in workers:
            for kept, buffer in zip(worker.buffers, self._copy.model.buffers(), strict=True):
                if buffer.is_floating_point():
                    kept.copy_(buffer)
