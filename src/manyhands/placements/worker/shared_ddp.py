"""DistributedDataParallel whose gradients are summed in memory that workers of a host share."""

from __future__ import annotations

import contextlib
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from manyhands.engine.bucket_thread import BucketThread
from manyhands.engine.watched_group import SUMMABLE

if TYPE_CHECKING:
    from collections.abc import Iterator
    from contextlib import AbstractContextManager

    from torch._C._distributed_c10d import GradBucket

    from manyhands.engine.bucket_thread import BucketFuture
    from manyhands.transport.collectives import Group
    from manyhands.transport.shared.sums import SharedSum
    from manyhands.transport.waits import Waits


def summable(module: nn.Module) -> bool:
    """Whether all gradients of a module can be summed in shared memory."""
    for layer in module.modules():
        if isinstance(layer, nn.Embedding | nn.EmbeddingBag) and layer.sparse:
            return False
    trained = [each for each in module.parameters() if each.requires_grad]
    return all(each.dtype in SUMMABLE for each in trained)


class BucketAverages:
    """A communication hook of DDP that averages each bucket where its gradients were computed.

    Args:
        shared: averages vectors.
        workers: number of workers.
        waits: counts the payload, and the time in which buckets are averaged.
        thread: averages buckets while the backward pass goes on; by default the thread that
            computes does.
    """

    def __init__(
        self, shared: SharedSum, workers: int, waits: Waits, thread: BucketThread | None = None
    ) -> None:
        self._shared = shared
        self._workers = workers
        self._waits = waits
        self._begins = True
        self._thread = thread
        self._failure: Exception | None = None
        """What ended the last sum, which DDP would raise as another error."""
        self.finite = False
        """Whether all numbers of the gradient that was averaged last are finite; False if that is
        not known."""

    def __call__(self, bucket: GradBucket) -> BucketFuture:
        """Average a bucket."""
        vector, last = bucket.buffer(), bucket.is_last()
        self._waits.tally("allreduce", vector.nbytes, self._workers)
        if self._thread is not None:
            return self._thread.submit(partial(self._average, vector, last=last))
        if not last:
            # From the last gradient on, the rest of a step is a wait.
            self._waits.begin()
        try:
            self._average(vector, last=last)
        except Exception as error:
            self._failure = error
            raise
        if not last:
            self._waits.end()
        future: BucketFuture = torch.futures.Future()
        future.set_result(vector)
        return future

    def _average(self, vector: torch.Tensor, *, last: bool) -> torch.Tensor:
        finite = self._shared.average(vector)
        self.finite = finite and (self.finite or self._begins)
        self._begins = last
        return vector

    @contextlib.contextmanager
    def raising(self) -> Iterator[None]:
        """Context of a step's backward passes: an error of a sum is raised as it was."""
        try:
            with contextlib.nullcontext() if self._thread is None else self._thread.raising():
                yield
        except Exception:
            failure, self._failure = self._failure, None
            if failure is None:
                raise
            raise failure from None


class SharedDDP(DistributedDataParallel):
    """A module whose buckets of gradients are averaged in memory that workers of a host share.

    A bucket is averaged when its gradients are complete, on one host by the thread that computes
    them: where cores are taken, another thread would take its time from the computation. Between
    hosts a thread of its own waits for the network meanwhile. On one host `AveragedReplica` is
    faster, where it is known when all backward passes of a step have ended.

    Args:
        module: the module.
        shared: averages buckets.
        group: the workers.
        waits: counts the payload.
        options: options of DistributedDataParallel.
    """

    def __init__(
        self, module: nn.Module, shared: SharedSum, group: Group, waits: Waits, **options: Any
    ) -> None:
        super().__init__(module, process_group=group.handle, **options)
        self.sums = "in memory that the workers share"
        """Where gradients are summed."""
        thread = None
        if shared.between is not None:
            self.sums = "in memory that the workers of a host share, then between hosts"
            thread = BucketThread()
            group.at_close.append(thread.close)
        self.averaging = averaging = BucketAverages(shared, group.size, waits, thread)
        """Averages buckets."""
        # DDP reads the hook's name and the names of its parameters.
        self.register_comm_hook(None, lambda _, bucket: averaging(bucket))

    def reducing(self) -> AbstractContextManager[None]:
        """Context of a step's backward passes: an error of a sum is raised as it was."""
        return self.averaging.raising()

    def take_finite(self) -> bool:
        """Whether the gradient that was averaged last is known to be finite; once for each."""
        known, self.averaging.finite = self.averaging.finite, False
        return known
