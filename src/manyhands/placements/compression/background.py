"""A thread that reduces DDP's buckets while the backward pass goes on.

DDP calls a hook for every bucket when its gradients are complete, in the same order on all workers,
and waits at the end of the backward pass. A reduction of several collectives, each of which needs
the result of the one before, runs in this thread, on connections of its own: DDP's collectives
may be started at the same time in another order.
"""

from __future__ import annotations

import contextlib
import queue
import threading
from typing import TYPE_CHECKING, Any, Protocol

import torch

from manyhands.placements.compression.bucket import Bucket, without_not_finite

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from torch._C._distributed_c10d import GradBucket

    from manyhands.codecs.kernels.finite import NotFinite

    Future = torch.futures.Future[Any]


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
        self._queue: queue.SimpleQueue[tuple[Bucket, Future] | None] = queue.SimpleQueue()
        self._failure: Exception | None = None
        self.refused: NotFinite = ""
        """What a bucket of this worker had, for which it sent zeros."""
        self._thread = threading.Thread(target=self._run, name="reduction", daemon=True)
        self._thread.start()

    def __call__(self, given: GradBucket) -> Future:
        """Queue a bucket."""
        future: Future = torch.futures.Future()
        self._queue.put((Bucket.of(given, self._names), future))
        return future

    def close(self) -> None:
        """End the thread; a reduction that waits for a peer ends when its group is freed."""
        self._queue.put(None)

    @contextlib.contextmanager
    def raising(self) -> Iterator[None]:
        """Context of a backward pass: raise what failed in the thread, not what DDP makes of it."""
        try:
            yield
        except RuntimeError:
            failure, self._failure = self._failure, None
            if failure is None:
                raise
            raise failure from None

    def _run(self) -> None:
        while (queued := self._queue.get()) is not None:
            bucket, future = queued
            try:
                if self._failure is None:
                    self.refused = without_not_finite(bucket) or self.refused
                    self.reduction.reduce(bucket)
            except Exception as error:  # noqa: BLE001 - raised again by `raising`
                self._failure = error
            if self._failure is None:
                future.set_result(bucket.vector)
            else:
                future.set_exception(self._failure)
