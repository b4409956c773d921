"""Processes that load batches for one worker, from the first batch to the last.

Starting the processes of a `DataLoader` costs hundreds of milliseconds, and under a protocol a
worker learns only lease by lease which samples it needs. So one `DataLoader` is kept, and its
processes are told batch by batch what to load:

    ask(indices) ──queue of process k──> process k loads ──DataLoader──> take()

The data set that the `DataLoader` sees is an iterable one, whose items are batches: each process
waits for index lists in a queue of its own. A `DataLoader` takes items from its processes in turn,
and index lists are put into the queues in the same turn, so batches come in the order in which they
were asked for.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import multiprocessing
from torch.utils.data import DataLoader, IterableDataset, get_worker_info

from manyhands.data.taking import fetch

if TYPE_CHECKING:
    from collections.abc import Iterator

    from manyhands.job import Job, SizedData


class Loader:
    """Loads batches of one data set in `job.loaders` processes.

    Args:
        job: its loaders and its collate function.
        data: what to load from.
    """

    def __init__(self, job: Job, data: SizedData) -> None:
        self._queues = [multiprocessing.SimpleQueue() for _ in range(job.loaders)]
        # The seeds of the processes follow from the worker's own, and drawing them leaves the
        # worker's random state as it is: it trains alike with any number of loaders.
        seeds = torch.Generator().manual_seed(torch.initial_seed() % (1 << 63))
        loader: DataLoader[Any] = DataLoader(
            _Told(job, data, self._queues),
            batch_size=None,
            num_workers=job.loaders,
            generator=seeds,
        )
        self._batches = iter(loader)
        self._asked = 0
        self.pending = 0
        """Batches that were asked for and not taken."""

    def ask(self, indices: torch.Tensor) -> None:
        """Have a batch loaded."""
        self._queues[self._asked % len(self._queues)].put(indices.tolist())
        self._asked += 1
        self.pending += 1

    def take(self) -> Any:
        """The oldest batch that was asked for and not taken."""
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


class _Told(IterableDataset[Any]):
    """The batches that a process is told to load."""

    def __init__(self, job: Job, data: SizedData, queues: list[Any]) -> None:
        self._data = data
        self._collate = job.collate
        self._queues = queues

    def __iter__(self) -> Iterator[Any]:
        info = get_worker_info()
        assert info is not None  # noqa: S101 - it is used with processes only
        while (indices := self._queues[info.id].get()) is not None:
            yield fetch(self._data, self._collate, indices)
