"""Loader processes of one worker, kept from the first batch to the last.

Starting the processes of a `DataLoader` takes hundreds of milliseconds, and under a protocol a
worker learns only lease by lease which samples it needs. So one `DataLoader` is kept
(`docs/decisions/0036-one-loader-per-run.md`), and its processes receive the indices batch by batch:

    ask(indices) ──queue of process k──> process k loads ──DataLoader──> take()

The `DataLoader` has an `IterableDataset` whose items are batches: each process waits for index
lists in its own queue. A `DataLoader` takes items from its processes in turn, and index lists are
put into the queues in the same order, so batches arrive in the order in which they were requested.

If one of the processes is killed, or exits, all are started again and load what is pending again:
what is drawn for a batch depends on its seed, epoch and samples only, so it is the same batch.
"""

from __future__ import annotations

import contextlib
import signal
import threading
import warnings
from collections import deque
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


_LOST = "DataLoader worker (pid"
"""What torch's message begins with if a process of a `DataLoader` is lost."""
_CAUGHT = "Caught "
"""The same if there was an exception in it."""
_MOST_RESTARTS = 3
"""How often the processes are started again for one batch: it may be the batch that ends them."""


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
        self._about = (job, data, start)
        self._pending: deque[tuple[int, Any]] = deque()
        """Batches that were requested and not taken: their seeds and what is wanted."""
        self._restarts = 0
        """Since the last batch that was taken."""
        self._start()

    def _start(self) -> None:
        job, data, start = self._about
        self._queues: list[Any] = [multiprocessing.SimpleQueue() for _ in range(job.num_workers)]
        loader: DataLoader[Any] = DataLoader(
            _RequestedBatches(job, data, self._queues, start),
            batch_size=None,
            num_workers=job.num_workers,
            # Its own draws must not advance the generator that the model uses.
            generator=torch.Generator().manual_seed(job.seed),
        )
        others = {*multiprocessing.active_children()}
        with _no_interruption():
            self._batches: Iterator[Any] = iter(loader)
        self._processes = [*({*multiprocessing.active_children()} - others)]
        self._asked = 0

    @property
    def pending(self) -> int:
        """The number of batches that were requested and not taken."""
        return len(self._pending)

    def ask(self, seed: int, indices: torch.Tensor | StreamPart) -> None:
        """Request a batch, with the seed of its epoch."""
        self._pending.append(
            (seed, indices if isinstance(indices, StreamPart) else indices.tolist())
        )
        self._put(self._pending[-1])

    def _put(self, request: tuple[int, Any]) -> None:
        self._queues[self._asked % len(self._queues)].put(request)
        self._asked += 1

    def take(self) -> Any:
        """The oldest batch that was requested and not taken."""
        while True:
            try:
                batch = next(self._batches)
            except (RuntimeError, OSError, EOFError) as error:
                if not _is_loss(error) or self._restarts == _MOST_RESTARTS:
                    raise
                self._restarts += 1
                warnings.warn(
                    f"{self._lost(error)}; the loader processes are restarted, and load their "
                    "batches again",
                    RuntimeWarning,
                    stacklevel=2,
                )
                self._start_again()
            else:
                self._restarts = 0
                self._pending.popleft()
                return batch

    def _lost(self, error: Exception) -> str:
        ended = [one for one in self._processes if not one.is_alive()]
        if not ended:
            return str(error)
        return "; ".join(
            f"loader process {one.pid} ended with exit code {one.exitcode}" for one in ended
        )

    def _start_again(self) -> None:
        for process in self._processes:
            # Those that are left wait in their queues, or for the lost one.
            process.kill()
        self._batches = iter(())
        self._start()
        for request in self._pending:
            self._put(request)

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


def _is_loss(error: Exception) -> bool:
    """Whether a process was lost, as opposed to an exception in it."""
    if isinstance(error, RuntimeError):
        return str(error).startswith(_LOST)
    # The memory of a batch is lost with the process that has loaded it.
    return not str(error).startswith(_CAUGHT)


@contextlib.contextmanager
def _no_interruption() -> Iterator[None]:
    """Context in which torch does not set its handler of SIGCHLD for good.

    The handler raises an exception wherever the main thread is when a process of a `DataLoader` is
    lost, in the middle of a step. Without it, torch notices the loss when a batch is taken.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.getsignal(signal.SIGCHLD)
    try:
        yield
    finally:
        signal.signal(signal.SIGCHLD, before)


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
