"""Loader processes of one worker, kept from the first batch to the last.

Starting the processes of a `DataLoader` takes hundreds of milliseconds, and under a protocol a
worker learns only lease by lease which samples it needs. So one `DataLoader` is kept, and its
processes receive the indices batch by batch:

    ask(indices) ──queue of process k──> process k loads ──DataLoader──> take()

The `DataLoader` has an `IterableDataset` whose items are batches: each process waits for index
lists in its own queue. A `DataLoader` takes items from its processes in turn, and index lists are
put into the queues in the same order, so batches arrive in the order in which they were requested.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import multiprocessing
from torch.utils.data import DataLoader, IterableDataset, default_collate, get_worker_info

from manyhands.sampling.stream_parts import StreamPart
from manyhands.seeding import Seeded

if TYPE_CHECKING:
    from collections.abc import Iterator

    from manyhands.data.sized import SizedData
    from manyhands.data.stream import StreamedData, StreamPlace
    from manyhands.job import Job


class LoaderProcesses:
    """Loads batches of one data set in `job.num_workers` processes.

    Args:
        job: the job with `num_workers` and `collate_fn`.
        data: the data set.
        start: a place to begin at, if it is a stream.
    """

    def __init__(
        self, job: Job, data: SizedData | StreamedData, start: StreamPlace | None = None
    ) -> None:
        self._queues: list[Any] = [multiprocessing.SimpleQueue() for _ in range(job.num_workers)]
        loader: DataLoader[Any] = DataLoader(
            _RequestedBatches(job, data, self._queues, start),
            batch_size=None,
            num_workers=job.num_workers,
            # Its own draws must not advance the generator that the model uses.
            generator=torch.Generator().manual_seed(job.seed),
        )
        self._batches: Iterator[Any] = iter(loader)
        self._asked = 0
        self.pending = 0
        """Batches that were requested and not taken."""

    def ask(self, seed: int, indices: torch.Tensor | StreamPart) -> None:
        """Request a batch, with the seed of its epoch."""
        wanted = indices if isinstance(indices, StreamPart) else indices.tolist()
        self._queues[self._asked % len(self._queues)].put((seed, wanted))
        self._asked += 1
        self.pending += 1

    def take(self) -> Any:
        """The oldest batch that was requested and not taken."""
        self.pending -= 1
        return next(self._batches)

    def close(self) -> None:
        """End the processes."""
        queues, self._queues = self._queues, []
        for queue in queues:
            queue.put(None)
        # The last reference to it: a DataLoader joins its processes when it is collected.
        self._batches = iter(())

    def __del__(self) -> None:
        # A process that waits in its queue would keep the DataLoader waiting when it is collected.
        self.close()


class _RequestedBatches(IterableDataset[Any]):
    """The batches that are requested from one process."""

    def __init__(
        self,
        job: Job,
        data: SizedData | StreamedData,
        queues: list[Any],
        start: StreamPlace | None,
    ) -> None:
        places = job.checkpoint is not None
        self._seeded = Seeded(data, job.collate_fn, start, places=places)
        self._collate = job.collate_fn or default_collate
        self._queues = queues

    def __iter__(self) -> Iterator[Any]:
        info = get_worker_info()
        assert info is not None  # noqa: S101 - it is iterated in loader processes only
        while (draw := self._queues[info.id].get()) is not None:
            if isinstance(draw[1], StreamPart):
                yield self._seeded.part(*draw)
            else:
                yield self._collate(self._seeded.__getitems__(draw))
