"""The batches of leases: each is loaded once, ahead of time if there are loader processes."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from manyhands.data.taking import taker
from manyhands.live.worker.loader_processes import LoaderProcesses
from manyhands.live.worker.loading import load_here
from manyhands.live.worker.stream_position import StreamPosition
from manyhands.sampling.stream_parts import StreamedBatch, StreamPart
from manyhands.seeding import EpochOrder, Seeded, epoch_seed

if TYPE_CHECKING:
    from collections.abc import Callable

    import torch

    from manyhands.job import Job
    from manyhands.wire.leasing import Granted


class LeasedBatches:
    """Loads the batches of leases with one loader for the whole run.

    Batches are taken in the order in which their leases are granted.
    """

    def __init__(self, job: Job) -> None:
        self._job = job
        self.position = StreamPosition()
        """The place in the job's stream; it may be set before the first batch."""
        self._seeded: Seeded | None = None
        takes = job.collate_fn is None and taker(job.data) is not None
        self.ahead = not takes and job.num_workers > 0
        """Whether batches are loaded while the worker computes."""
        self._order = EpochOrder(job)
        self._loader: LoaderProcesses | None = None
        self._asked: deque[int] = deque()
        """The numbers of leases whose batches are being loaded."""

    def ask(self, lease: Granted) -> None:
        """Have the batch of a lease loaded, unless it is already being loaded."""
        empty = lease.start == lease.stop and not self._job.streams
        if not self.ahead or empty or lease.number in self._asked:
            return
        if self._loader is None:
            self._loader = LoaderProcesses(self._job, self._job.data, self.position.start)
        self._loader.ask(self._seed(lease), self._indices(lease))
        self._asked.append(lease.number)

    def take(self, lease: Granted) -> Any:
        """The batch of a lease; of a stream, a `StreamedBatch`."""
        loaded = self._taken(lease)
        if isinstance(loaded, StreamedBatch):
            self.position.note(loaded)
        return loaded

    def _taken(self, lease: Granted) -> Any:
        if not self.ahead:
            if self._seeded is None:
                start, places = self.position.start, self._job.checkpoint is not None
                self._seeded = Seeded(self._job.data, self._job.collate_fn, start, places=places)
            return load_here(self._job, self._seeded, self._seed(lease), self._indices(lease))
        self.ask(lease)
        number = self._asked.popleft()
        if self._loader is None or number != lease.number:
            raise RuntimeError(f"expected lease {number} next, got lease {lease.number}")
        return self._loader.take()

    def _seed(self, lease: Granted) -> int:
        return epoch_seed(self._job.seed, lease.epoch)

    def _indices(self, lease: Granted) -> torch.Tensor | StreamPart:
        if self._job.streams:
            return StreamPart(lease.dealt, lease.total, lease.start, lease.stop)
        return self._order(lease.epoch)[lease.start : lease.stop]

    def close(self) -> None:
        """End the loader processes."""
        if self._loader is not None:
            self._loader.close()
            self._loader = None


T = TypeVar("T")


class BatchIterator(Generic[T]):
    """An asynchronous iterator; unlike a generator, it executes nothing when it is dropped.

    Args:
        take: returns the next batch, or raises StopAsyncIteration.
    """

    def __init__(self, take: Callable[[], T]) -> None:
        self._take = take

    def __aiter__(self) -> BatchIterator[T]:
        return self

    async def __anext__(self) -> T:
        return self._take()
