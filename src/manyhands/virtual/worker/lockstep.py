"""Replicas of virtual workers that step together, and the model that computes for them."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, cast

import torch

from manyhands.parameters.optional.clipping import MeanOf, clip_norm, norm
from manyhands.parameters.weights.loss_weight import counting_among
from manyhands.virtual.worker.replica import VirtualReplica
from manyhands.virtual.worker.shared_model import SharedModel
from manyhands.virtual.worker.sizes import SizedModel, SizedReplica

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from manyhands.codecs.kernels.finite import NotFinite
    from manyhands.collectives import StepProgram
    from manyhands.endpoint import LeasedBatch
    from manyhands.job import Job
    from manyhands.parameters import Layout
    from manyhands.virtual.worker.replica import VirtualBatch
    from manyhands.virtual.worker.shared_model import Replication


class GradientBuckets:
    """Parts of the gradient that are summed together, in the order of completion.

    A backward pass completes the last layer first. A tensor with which a bucket reaches its limit
    closes it, as under DDP. Gradients are complete in proportion to their bytes.

    Args:
        layout: the parameters, as one shard.
        cap: bytes of a bucket.
        share: share of a batch's time that the backward pass takes.
        from_first: whether buckets are filled from the first layer on, as DDP does if it searches
            for unused parameters.
    """

    def __init__(
        self, layout: Layout, cap: int, share: float = 2 / 3, *, from_first: bool = False
    ) -> None:
        (shard,) = layout.shards
        lines = shard.flat_by_dtype
        if len(lines) > 1:
            dtypes = ", ".join(str(line.dtype) for line in lines)
            raise ValueError(
                f"the model has parameters of several dtypes ({dtypes}), whose sum by messages is "
                "not simulated: use a model with one, or run the strategy with train"
            )
        self.width = width = lines[0].dtype.itemsize
        sizes = [piece.stop - piece.start for piece in shard.parameters]
        counts = [*_fill(sizes if from_first else sizes[::-1], max(1, cap // width))]
        if from_first:
            counts.reverse()
        self.slices: list[slice] = []
        """The elements of each bucket."""
        self.sizes: list[tuple[int, float]] = []
        """By bucket, its bytes and its share of a batch's time."""
        total = stop = sum(sizes)
        for count in counts:
            self.slices.append(slice(stop - count, stop))
            self.sizes.append((count * width, share * count / total))
            stop -= count
        last, share = self.sizes[-1]
        # The last bucket has the weight of the gradient as well.
        self.sizes[-1] = (last + width, share)


def _fill(sizes: Sequence[int], cap: int) -> Iterator[int]:
    """The elements of each bucket."""
    filled = 0
    for size in sizes:
        filled += size
        if filled >= cap:
            yield filled
            filled = 0
    if filled:
        yield filled


class LockstepModel(SharedModel):
    """A model whose gradients are clipped, and their norms taken, after they are summed.

    Args:
        job: the job that defines the model and the data.
        divides: whether workers have parts of a batch, and one weight each.
    """

    def __init__(self, job: Job, *, divides: bool = False) -> None:
        measures = tuple(one for one in job.measures if one != "gradient_norm")
        among = ("allreduce() on a virtual clock", 2) if divides else ("", 1)
        counted = counting_among(replace(job, measures=measures), *among)
        super().__init__(counted, 1, lockstep=True)
        self._clip = job.clip
        self._takes_norms = "gradient_norm" in job.measures
        self.norms = MeanOf()
        self._unused: dict[tuple[int, int], frozenset[int]] = {}
        """By the place in the run and the objective of a step, what no worker has used."""

    def note_unused(self, step: tuple[int, int], unused: tuple[int, ...]) -> None:
        """Note the parameters that a worker has not used in a step."""
        if step not in self._unused:
            # All workers have taken the steps before the last one.
            self._unused = {one: self._unused[one] for one in list(self._unused)[-1:]}
        self._unused[step] = self._unused.get(step, frozenset(unused)) & frozenset(unused)

    def unused_in(self, step: tuple[int, int]) -> tuple[int, ...]:
        """The parameters that no worker used in a step."""
        return tuple(self._unused.get(step, ()))

    def apply(
        self, worker: Replication, weight: float, dealt: int, objective: int = 0
    ) -> NotFinite:
        """Clip the mean gradient and take a step with it."""
        gradients = [piece.view(worker.updates[0]) for piece in self.layout.shards[0].parameters]
        if self._takes_norms and worker.rank == 0:
            self.norms.add(norm(gradients))
        if self._clip is not None:
            clip_norm(gradients, self._clip)
        return super().apply(worker, weight, dealt, objective)

    def forget(self, number: int) -> None:
        """Forget the batch of a lease that was read from a stream."""
        self._read.pop(number, None)


class BucketModel(LockstepModel):
    """A model whose gradients are summed in buckets.

    Args:
        job: the job that defines the model and the data.
        cap: bytes of a bucket of gradients.
        from_first: see `GradientBuckets`.
        divides: see `LockstepModel`.
    """

    def __init__(
        self, job: Job, cap: int, *, from_first: bool = False, divides: bool = True
    ) -> None:
        super().__init__(job, divides=divides)
        self.buckets = GradientBuckets(self.layout, cap, from_first=from_first)

    @torch.no_grad()
    def mean_of(self, workers: Sequence[Replication]) -> torch.Tensor:
        """The parameters, which are equal, with the mean of the workers' buffers.

        Buffers that are not averaged are the first worker's.
        """
        mean = workers[0].parameters[0].clone()
        for piece in self.layout.shards[0].buffers:
            held = [piece.bytes(one.parameters[0]).clone().view(piece.dtype) for one in workers]
            average = torch.stack(held).mean(0)
            piece.bytes(mean).copy_(average.view(torch.uint8))
        return mean


class VirtualLockstepReplica(VirtualReplica):
    """The replica of a worker that steps together with all others."""

    _timed: LeasedBatch | None = None
    """The batch whose time was drawn last."""
    _drawn: float = 0.0
    """Its seconds."""
    _weight: float = 0.0
    """The weight of its gradient."""
    _summed: list[torch.Tensor]
    """The weighted buckets, which collectives sum in place."""

    @property
    def buckets(self) -> Sequence[tuple[int, float]]:
        """By bucket, its bytes and its share of a batch's time, in the order of completion."""
        return cast("BucketModel", self._shared_model).buckets.sizes

    @property
    def width(self) -> int:
        """Bytes of a parameter's element."""
        return cast("BucketModel", self._shared_model).buckets.width

    async def compute(self, batch: LeasedBatch, share: float) -> None:
        """Hold a core for a share of the time that the batch takes."""
        self._check_alive()
        if batch is not self._timed:
            self._timed = batch
            has_work = self._has_work(batch)
            self._drawn = self._draw(cast("VirtualBatch", batch)) if has_work else 0.0
        asked = self._kernel.now
        if share * self._drawn:
            begun = await self._cores.compute(self._member, share * self._drawn)
            self._log.time("wait", asked, begun - asked)
            self._log.span("compute", begun)

    async def code(self, seconds: float) -> None:
        """Hold a core for the time that encoding or decoding takes."""
        self._check_alive()
        if seconds:
            begun = await self._cores.compute(self._member, seconds)
            self._log.span("encode", begun)

    def _has_work(self, batch: LeasedBatch) -> bool:
        """Whether a worker has anything to compute."""
        return batch.samples > 0

    def differentiate(self, batch: LeasedBatch) -> None:
        """Compute the loss and the gradient of a batch; 0 if it has no samples."""
        self._check_alive()
        if batch.samples:
            self._compute(cast("VirtualBatch", batch))
            model = cast("LockstepModel", self._shared_model)
            model.note_unused((batch.dealt, batch.objective), self.unused(0))
        else:
            mine = self.replication
            mine.updates = [torch.zeros_like(flat) for flat in mine.parameters]
        self._weight = batch.mass or float(batch.samples)
        self._summed = []

    def weighted(self, bucket: int) -> torch.Tensor | None:
        """A bucket of the gradient times its weight; the last one with the weight at its end."""
        slices = cast("BucketModel", self._shared_model).buckets.slices
        part = self.update_vector(0)[slices[bucket]] * self._weight
        if bucket == len(slices) - 1:
            part = torch.cat([part, part.new_tensor([self._weight])])
        self._summed.append(part)
        return part

    def step(self, batch: LeasedBatch) -> None:
        """Take a step with the mean that the summed buckets give."""
        model = cast("BucketModel", self._shared_model)
        vector, weight = self.update_vector(0), float(self._summed[-1][-1])
        for where, summed in zip(model.buckets.slices, self._summed, strict=True):
            size = where.stop - where.start
            vector[where] = summed[:size] / weight if weight else 0.0
        self.replication.unused = [model.unused_in((batch.dealt, batch.objective))]
        about = (self.terms.weigh(batch.total, batch.dealt), batch.dealt, batch.objective)
        model.apply(self.replication, *about)


class SizedBucketModel(SizedModel):
    """Stands in for `BucketModel` in a run without numbers."""

    def __init__(self, job: Job, cap: int, workers: int, *, from_first: bool = False) -> None:
        super().__init__(job, 1, workers)
        self.buckets = GradientBuckets(self.layout, cap, from_first=from_first)


class SizedLockstepReplica(VirtualLockstepReplica, SizedReplica):
    """A replica without content that steps together with all others."""

    def differentiate(self, batch: LeasedBatch) -> None:
        """There is no gradient."""

    def weighted(self, bucket: int) -> None:
        """There are no numbers."""

    def step(self, batch: LeasedBatch) -> None:
        """No effect."""


class PlacedReplica(VirtualLockstepReplica):
    """A worker under a placement: the first one computes the numbers of all."""

    @property
    def program(self) -> StepProgram:
        """What workers do in a step."""
        return cast("PlacedModel", self._shared_model).program

    def _has_work(self, batch: LeasedBatch) -> bool:
        return batch.total > 0

    def differentiate(self, batch: LeasedBatch) -> None:
        """On the first worker, compute the loss and the gradient of the whole global batch."""
        self._check_alive()
        model, part = cast("PlacedModel", self._shared_model), cast("VirtualBatch", batch)
        model.forget(part.lease.number)
        if self.rank == 0 and batch.total:
            # The first worker's part begins where the global batch begins.
            lease = replace(part.lease, stop=part.lease.start + batch.total)
            self._compute(replace(part, lease=lease, samples=batch.total))

    def step(self, batch: LeasedBatch) -> None:
        """On the first worker, take a step."""
        if self.rank == 0 and batch.total:
            about = (self.terms.weigh(batch.total, batch.dealt), batch.dealt, batch.objective)
            self._shared_model.apply(self.replication, *about)


class PlacedModel(LockstepModel):
    """The one replica of a placement on a virtual clock.

    Args:
        job: the job that defines the model and the data.
        program: what workers do in a step.
    """

    def __init__(self, job: Job, program: StepProgram) -> None:
        super().__init__(job)
        self.program = program


class SizedPlacedModel(SizedModel):
    """Stands in for `PlacedModel` in a run without numbers."""

    def __init__(self, job: Job, workers: int, program: StepProgram) -> None:
        super().__init__(job, 1, workers)
        self.program = program


class SizedPlacedReplica(PlacedReplica, SizedReplica):
    """A worker under a placement, in a run without numbers."""

    def differentiate(self, batch: LeasedBatch) -> None:
        """There is no gradient."""

    def step(self, batch: LeasedBatch) -> None:
        """No effect."""
