"""Times of one measured run: of each batch, and from one step to the next."""

from __future__ import annotations

import math
import statistics
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Final

from manyhands.failure import RunFailed
from manyhands.lab.calibration.calibration import ComputeTime
from manyhands.lab.calibration.load import uncertainty

if TYPE_CHECKING:
    from collections.abc import Sequence

    from manyhands.reports import Run
    from manyhands.trace import ProcessTrace

_FIRST: Final = 3
"""Steps at the beginning that are not counted."""


class NothingTimed(RunFailed):
    """A run completed no step in its time."""


class NoTimeLeft(RunFailed):
    """The calibration has used all of its time."""


@dataclass(frozen=True)
class WorkerTimes:
    """Seconds of each step of a worker."""

    compute: tuple[float, ...]
    data: tuple[float, ...] = ()


@dataclass(frozen=True)
class TimedRun:
    """What a run showed."""

    workers: tuple[WorkerTimes, ...]
    steps: tuple[float, ...]
    """Seconds from one step to the next, of the first worker."""
    slowdown: float = 1.0
    """How many times as long it took, at most, because other programs computed."""

    @property
    def step(self) -> float:
        """The median seconds from one step to the next.

        Raises:
            NothingTimed: there were not two steps.
        """
        if not self.steps:
            raise NothingTimed("fewer than two steps were completed in the time of the run")
        return statistics.median(self.steps)


def timed(run: Run, slowdown: float = 1.0) -> TimedRun:
    """The times of a run, by the spans of its traces."""
    workers = run.trace.workers
    return TimedRun(
        workers=timed_workers(workers),
        steps=_steady(_gaps(workers[0])) if workers else (),
        slowdown=slowdown,
    )


def timed_workers(workers: Sequence[ProcessTrace]) -> tuple[WorkerTimes, ...]:
    """The times of workers, by the spans of their traces."""
    return tuple(
        WorkerTimes(_steady(_by_step(one, "compute")), _steady(_by_step(one, "data")))
        for one in workers
    )


def compute_time(samples: int, workers: Sequence[WorkerTimes]) -> ComputeTime:
    """The times of the batches of workers.

    Raises:
        NothingTimed: there is no batch.
    """
    steps = sorted(seconds for worker in workers for seconds in worker.compute)
    loads = [seconds for worker in workers for seconds in worker.data]
    if not steps:
        raise NothingTimed(f"no batch of {samples} samples was completed in the time of the run")
    cut = len(steps) // 100
    kept = steps[cut : len(steps) - cut]
    mean = statistics.fmean(kept)
    spread = statistics.pstdev(kept) / mean if len(kept) > 1 and mean else 0.0
    each = [uncertainty(worker.compute) for worker in workers if worker.compute]
    return ComputeTime(
        samples=samples,
        seconds=statistics.median(kept),
        cv=spread,
        data=statistics.median(loads) if loads else 0.0,
        steps=len(steps),
        deviation=math.hypot(*each) / len(each),
    )


def _steady(seconds: Sequence[float]) -> tuple[float, ...]:
    """Those after the first ones, of which at least half are kept."""
    return tuple(seconds[min(_FIRST, len(seconds) // 2) :])


def _by_step(worker: ProcessTrace, kind: str) -> list[float]:
    """Seconds of a kind in each step."""
    found: dict[int, float] = {}
    for span in worker.spans:
        if span.kind == kind and span.step is not None:
            found[span.step] = found.get(span.step, 0.0) + span.seconds
    return [found[step] for step in sorted(found)]


def _gaps(worker: ProcessTrace) -> list[float]:
    begins: dict[int, float] = {}
    for span in worker.spans:
        if span.kind in ("compute", "data") and span.step is not None:
            begins.setdefault(span.step, span.start)
    return [later - earlier for earlier, later in pairwise(begins[step] for step in sorted(begins))]
