"""A hook of DDP that reduces buckets in a thread, while the backward pass goes on.

A reduction has several collectives, each of which needs the result of the one before: in a thread
that is a few lines, without one a chain of callbacks (`docs/decisions/0057-reducers.md`).
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Protocol

from manyhands.engine.bucket_thread import BucketThread
from manyhands.placements.compression.bucket import Bucket, without_not_finite

if TYPE_CHECKING:
    from collections.abc import Mapping

    import torch
    from torch._C._distributed_c10d import GradBucket

    from manyhands.codecs.kernels.finite import NotFinite
    from manyhands.engine.bucket_thread import BucketFuture


class BucketReduction(Protocol):
    """A way to average a bucket over all workers."""

    def reduce(self, bucket: Bucket) -> None:
        """Replace the bucket's vector, on every worker, by the mean over all workers."""

    def unsent(self) -> dict[str, torch.Tensor]:
        """What was not sent yet of this worker's share of the sum, by parameter, as vectors."""

    def kept(self) -> dict[str, torch.Tensor]:
        """What else it needs to continue as it was."""

    def carry(self, tensors: Mapping[str, torch.Tensor]) -> None:
        """Take over what `unsent` and `kept` returned, before the first bucket."""


class Background:
    """A communication hook of DDP that reduces buckets in a thread, one after the other.

    Args:
        reduction: reduces a bucket.
        names: the name of each parameter, by its id.
    """

    def __init__(self, reduction: BucketReduction, names: Mapping[int, str]) -> None:
        self.reduction = reduction
        self._names = names
        self.refused: NotFinite = ""
        """What a bucket of this worker had, for which it sent zeros."""
        self.thread = BucketThread()
        """Reduces buckets."""

    def __call__(self, given: GradBucket) -> BucketFuture:
        """Queue a bucket."""
        return self.thread.submit(partial(self._reduce, Bucket.of(given, self._names)))

    def _reduce(self, bucket: Bucket) -> torch.Tensor:
        self.refused = without_not_finite(bucket) or self.refused
        self.reduction.reduce(bucket)
        return bucket.vector
