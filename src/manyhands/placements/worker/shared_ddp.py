"""DistributedDataParallel whose gradients are summed in memory that workers share."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from manyhands.transport.shared.sums import SUMMABLE

if TYPE_CHECKING:
    from collections.abc import Iterator

    from torch._C._distributed_c10d import GradBucket

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
    """

    def __init__(self, shared: SharedSum, workers: int, waits: Waits) -> None:
        self._shared = shared
        self._workers = workers
        self._waits = waits
        self._begins = True
        self.failure: Exception | None = None
        """What ended the last sum, which DDP would raise as another error."""
        self.finite = False
        """Whether all numbers of the gradient that was averaged last are finite; False if that is
        not known."""

    def __call__(self, bucket: GradBucket) -> torch.futures.Future[torch.Tensor]:
        """Average a bucket; the result is there when this returns."""
        vector, last = bucket.buffer(), bucket.is_last()
        if not last:
            # From the last gradient on, the rest of a step is a wait.
            self._waits.begin()
        self._waits.tally("allreduce", vector.nbytes, self._workers)
        try:
            finite = self._shared.average(vector)
        except Exception as error:
            self.failure = error
            raise
        self.finite = finite and (self.finite or self._begins)
        self._begins = last
        if not last:
            self._waits.end()
        future: torch.futures.Future[torch.Tensor] = torch.futures.Future()
        future.set_result(vector)
        return future


class SharedDDP(DistributedDataParallel):
    """A module whose buckets of gradients are averaged in memory that all workers share.

    A bucket is averaged when its gradients are complete, by the thread that computes them: on a
    host whose cores are taken, another thread would take its time from the computation.

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
        self.averaging = averaging = BucketAverages(shared, group.size, waits)
        """Averages buckets."""
        # DDP reads the hook's name and the names of its parameters.
        self.register_comm_hook(None, lambda _, bucket: averaging(bucket))

    @contextlib.contextmanager
    def reducing(self) -> Iterator[None]:
        """Context of a step's backward passes: an error of a sum is raised as it was."""
        try:
            yield
        except Exception:
            failure, self.averaging.failure = self.averaging.failure, None
            if failure is None:
                raise
            raise failure from None
