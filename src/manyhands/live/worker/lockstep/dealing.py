"""One worker's batches in order, which can be dealt again among other workers."""

from __future__ import annotations

import contextlib
import sys
from dataclasses import dataclass
from itertools import tee
from typing import TYPE_CHECKING, Any

from manyhands.live.worker.lockstep.speed_shares import SpeedShares
from manyhands.sampling.permutation import shares
from manyhands.seeding import EpochOrder

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator

    from manyhands.job import Job
    from manyhands.live.worker.loading import Loading
    from manyhands.placements.bound import Bound
    from manyhands.sampling.permutation import Share
    from manyhands.trace import Recorder
    from manyhands.transport.collectives import Group
    from manyhands.transport.waits import Waits


@dataclass(frozen=True, eq=False)
class Batch:
    """One worker's part of one global batch, as `Trainer.batches` gives it.

    Example:
        >>> import manyhands as mh
        >>> def loop(trainer: mh.Trainer) -> None:
        ...     for batch in trainer.batches():
        ...         print(batch.epoch, batch.step, len(batch.inputs), trainer.step(batch).item())
    """

    inputs: Any
    targets: Any
    share: Share

    @property
    def epoch(self) -> int:
        """Its epoch, counted from 0."""
        return self.share.epoch

    @property
    def step(self) -> int:
        """Its step, counted from 0."""
        return self.share.step


class Dealing:
    """Iterates over a worker's shares, each with its loaded batch.

    Args:
        job: the job.
        loading: loads the batches.
        bound: the replica that the worker belongs to, of how many.
        step: the first step.
        since: samples and steps of the run that this one continues.
        by_speed: whether workers that compute faster get more samples.
    """

    def __init__(
        self,
        job: Job,
        loading: Loading,
        bound: Bound,
        step: int = 0,
        since: tuple[int, int] = (0, 0),
        *,
        by_speed: bool = False,
    ) -> None:
        self._since = since
        self._job = job
        self._loading = loading
        self._order = EpochOrder(job)
        self._by_speed = by_speed
        self._speeds: SpeedShares | None = None
        self._pairs = self._deal(bound, step)

    def __iter__(self) -> Iterator[tuple[Share, Any]]:
        return self

    def __next__(self) -> tuple[Share, Any]:
        return next(self._pairs)

    def close(self) -> None:
        """End the loading of batches ahead."""
        self._pairs.close()

    def balance(self, step: int, group: Group, waits: Waits, recorder: Recorder) -> None:
        """Before a step: decide with all workers on later shares, if it is time."""
        if self._speeds is not None:
            self._speeds.balance(step, group, waits, recorder)

    def note(self, samples: int, seconds: float) -> None:
        """Note how long this worker computed on so many samples."""
        if self._speeds is not None:
            self._speeds.note(samples, seconds)

    def deal_again(self, bound: Bound, step: int) -> None:
        """Continue with a step, by the division among the workers of now.

        Batches that were loaded ahead for the former division are dropped.
        """
        self._pairs.close()
        self._pairs = self._deal(bound, step)

    def _deal(self, bound: Bound, step: int) -> Generator[tuple[Share, Any], None, None]:
        job, divide = self._job, None
        if self._by_speed and bound.replicas > 1:
            ahead = 2 * job.num_workers + 1
            self._speeds = SpeedShares(bound.replica, bound.replicas, step, ahead)
            divide = self._speeds.part
        arguments = (job.epoch_samples, job.batch_sizes, job.seed)
        group = (bound.replica, bound.replicas, job.budget or sys.maxsize, bound.copies)
        deal = (*arguments, *group, job.evaluation_points, self._order)
        dealt, ahead_of_it = tee(
            shares(*deal, streams=job.streams, since=self._since, first=step, divide=divide)
        )
        wanted = ((share.epoch, share.streamed or share.indices) for share in ahead_of_it)
        loaded = self._loading.batches(job.data, wanted)
        # Loader processes that load ahead end with their iterator.
        with contextlib.closing(loaded):
            for share in dealt:
                yield share, next(loaded)
