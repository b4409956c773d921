"""The batches of leases: each is loaded once, ahead of time if there are loader processes."""

from __future__ import annotations

import time
from collections import deque
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from manyhands.data.taking import taker
from manyhands.live.worker.loader_processes import LoaderProcesses
from manyhands.live.worker.loading import load_here
from manyhands.live.worker.stream_position import StreamPosition
from manyhands.sampling.stream_parts import StreamedBatch, StreamPart
from manyhands.seeding import EpochOrder, Seeded, epoch_seed
from manyhands.wire.leasing import MOST_LEASES, Ask, Evaluate, Granted, Over

if TYPE_CHECKING:
    from collections.abc import Callable

    import torch

    from manyhands.job import Job
    from manyhands.transport.reliable_channel import ReliableLine
    from manyhands.wire.leasing import Leasing


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
        # Loading processes return batches in the order in which they were asked for.
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


_NEARBY, _OUTAGE = 0.01, 2.0
"""Seconds. Answers that take less are late because processes share cores, and holding more leases
would only take them from others. Answers that take longer come after an outage. Those in between
come from far away, or over a busy link."""


class LeaseQueue:
    """What the lease service has told a worker, and what the worker has asked it for.

    Every `Ask` is answered once, by leases, an evaluation or the end; one at most is unanswered. It
    counts as answered with the first of its leases.
    Answers can take longer than a batch: over a distance, or where they wait behind parameters that
    pass the same link. A worker that had to wait for one holds so many leases from then on that
    they last until the next answer.

    Args:
        line: to the lease service.
        ahead: leases that the worker may hold beyond the one that it computes, at least.
        clock: a source of seconds.
    """

    def __init__(
        self, line: ReliableLine, ahead: int, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._line = line
        self._least = ahead
        self._clock = clock
        self._received: list[Leasing] = []
        self._is_asking = False
        self._asked_at = 0.0
        self._taken_at: float | None = None
        """When the last lease was taken."""
        self._step = 0.0
        """Seconds from one lease to the next, without waiting for one; a mean of recent ones."""
        self._answer = 0.0
        """Seconds until an `Ask` is answered, of the longest of those that were waited for."""

    @property
    def ahead(self) -> int:
        """Leases that the worker may hold beyond the one that it computes."""
        if not self._least or not self._step:
            return self._least
        # From one answer to the next pass two of these times: one `Ask` at most is unanswered.
        return max(self._least, min(1 + int(2 * self._answer / self._step), MOST_LEASES))

    def ask(self) -> None:
        """Ask for more leases, unless that is not answered yet or the worker holds enough."""
        if self._is_asking or len(self._received) >= max(1, self.ahead):
            return
        self._is_asking = True
        self._asked_at = self._clock()
        self._line.send(Ask(max(1, self.ahead - len(self._received))))

    def take(self) -> Leasing:
        """The next message; waits for it."""
        begun = self._clock()
        self._receive(0.0)
        waits = not self._received
        while not self._received:
            self._receive(1.0)
        message = self._received.pop(0)
        if isinstance(message, Granted):
            self._note(begun, waits=waits and not message.delayed)
        return message

    def _note(self, begun: float, *, waits: bool) -> None:
        """Note how long a batch took, and whether the lease of this one came too late."""
        now = self._clock()
        if self._taken_at is not None:
            step, answer = begun - self._taken_at, now - self._asked_at
            self._step = 0.9 * self._step + 0.1 * step if self._step else step
            # It is forgotten slowly: what is far away stays there, and queues on links come again.
            self._answer *= 0.998
            if waits and _NEARBY < answer < _OUTAGE:
                self._answer = max(self._answer, answer)
        self._taken_at = now

    def granted(self) -> list[Granted]:
        """Leases that were granted and not taken; asks for more if there may be more."""
        self._receive(0.0)
        found = [one for one in self._received if isinstance(one, Granted)]
        # Not if an evaluation or the end is among what was received: a worker asks again after
        # that.
        if len(found) < self.ahead and len(found) == len(self._received):
            self.ask()
        return found

    def _receive(self, timeout: float) -> None:
        messages = self._line.receive(timeout)
        # Not with `Nothing`, which only announces an answer: asked again, the worker would be
        # answered twice.
        if any(isinstance(one, (Granted, Evaluate, Over)) for one in messages):
            self._is_asking = False
        self._received += messages


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
