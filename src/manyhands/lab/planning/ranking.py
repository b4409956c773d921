"""A plan: strategies ranked for a job and a cluster, with the reason and the command."""

from __future__ import annotations

import sys
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from manyhands.cluster import Cluster
from manyhands.lab.calibration import Calibration, read_calibration
from manyhands.lab.calibration.measure import measure_here
from manyhands.lab.planning.candidates import (
    Candidate,
    LeftOut,
    candidates,
    numbers_of_workers,
)
from manyhands.lab.planning.timing import predict
from manyhands.pacing import Pace
from manyhands.script import loading as scripts

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from manyhands.job import Job

MARGIN: Final = 0.05
"""Predictions that differ by less than this cannot be told apart, whatever their spread."""


@dataclass(frozen=True)
class PlannedStrategy:
    """A strategy of a plan, with its predicted speed.

    Example:
        >>> import manyhands as mh
        >>> one = mh.PlannedStrategy("allreduce()", 4, 980.0, 970.0, 990.0, "computing")
        >>> two = mh.PlannedStrategy("gossip()", 4, 1000.0, 990.0, 1010.0, "computing")
        >>> one.resembles(two)
        True
    """

    strategy: str
    workers: int
    rate: float
    """Samples per second."""
    low: float
    high: float
    limit: str
    """Without what it would be clearly faster: the network, or slower workers; or computing."""

    def resembles(self, other: PlannedStrategy) -> bool:
        """Whether the predictions of two cannot be told apart.

        Args:
            other: the other one.
        """
        overlap = self.low <= other.high and other.low <= self.high
        return overlap or abs(self.rate / other.rate - 1) < MARGIN


@dataclass(frozen=True)
class Plan:
    """Strategies ranked by predicted speed, as `mh.plan` returns it.

    Example:
        >>> import manyhands as mh
        >>> def fastest(job: mh.Job, calibration: mh.Calibration) -> str:
        ...     return mh.plan(job, "4 hosts of 1 worker, 1gbit", calibration).ranking[0].strategy
    """

    ranking: tuple[PlannedStrategy, ...]
    """The fastest first."""
    left_out: tuple[LeftOut, ...]
    cluster: str
    calibration: Calibration
    seconds: float
    """How long the plan took."""

    @property
    def best(self) -> tuple[PlannedStrategy, ...]:
        """The fastest, and those that cannot be told apart from it."""
        if not self.ranking:
            return ()
        first = self.ranking[0]
        return tuple(one for one in self.ranking if one is first or one.resembles(first))

    @property
    def verdict(self) -> str:
        """The answer in a sentence."""
        if not self.ranking:
            return "no strategy can train this job on this cluster"
        best = self.best
        alone = next((one for one in self.ranking if one.workers == 1), None)
        if alone in best:
            return (
                f"do not distribute: one worker reaches {alone.rate:,.0f} samples/s, and no "
                "strategy is clearly faster"
            )
        first = best[0]
        faster = "" if alone is None else f", {first.rate / alone.rate:.1f} times one worker"
        words = f"{first.strategy} on {first.workers} workers: {first.rate:,.0f} samples/s{faster}"
        if len(best) > 1:
            others = ", ".join(one.strategy for one in best[1:4])
            more = f" and {len(best) - 4} more" if len(best) > 4 else ""
            words += f"; cannot be told apart from {others}{more}"
        return words


def plan(
    job: Job | Callable[[], Job],
    cluster: str | Cluster | None = None,
    calibration: Calibration | str | Path | None = None,
    *,
    strategies: Sequence[str] | None = None,
    workers: Sequence[int] | None = None,
    slow: Sequence[str | Pace] = (),
    tell: Callable[[str], None] = lambda _: None,
) -> Plan:
    """Rank strategies for a job on a cluster by predicted speed.

    Each strategy runs on a virtual clock without numbers: batches take the times of the
    calibration, messages those of the cluster's links. How well a strategy learns is not predicted.

    Args:
        job: the job, or a function without arguments that returns it.
        cluster: the cluster, as text or as a value. Default: this machine.
        calibration: what a batch takes, as `mh.calibrate` returns or stores it. Default: it is
            measured, which takes about a minute.
        strategies: what to consider. Default: some twenty, with usual options.
        workers: numbers of workers. Default: all, half and a quarter of the cluster's.
        slow: workers that are slower than the others: `["3:4x"]`.
        tell: receives what is timed at the moment.

    Returns:
        The ranking, with what limits each strategy, and what was left out for which reason.

    Raises:
        ValueError: the cluster or the calibration cannot be read.

    Example:
        >>> import manyhands as mh
        >>> def advice(job: mh.Job) -> str:
        ...     return mh.plan(job, "4 hosts of 1 worker, 1gbit", "calibration.json").verdict
    """
    begun = time.monotonic()
    made = scripts.made(job)
    if calibration is None:
        calibration = measure_here(made, job, sys._getframe(1), tell=tell)
    known = calibration if isinstance(calibration, Calibration) else read_calibration(calibration)
    paces = tuple(map(Pace.read, slow))
    where = Cluster.local() if cluster is None else Cluster.parse(cluster)
    counts = list(workers or numbers_of_workers(where))
    found: list[PlannedStrategy] = []
    left: list[LeftOut] = []
    for one in candidates(made, where, counts, strategies):
        if isinstance(one, LeftOut):
            left.append(one)
            continue
        tell(f"{one} on {one.workers} workers")
        try:
            timed = predict(made, one, where, known, paces)
        except (ValueError, TypeError) as error:
            left.append(LeftOut(f"{one} on {one.workers} workers", str(error)))
            continue
        found.append(_planned(one, timed.rate, timed.low, timed.high, timed.limit))
    ranking = sorted(found, key=lambda one: -one.rate)
    spent = time.monotonic() - begun
    return Plan(tuple(ranking), tuple(left), str(where), known, spent)


def _planned(
    candidate: Candidate, rate: float, low: float, high: float, limit: str
) -> PlannedStrategy:
    return PlannedStrategy(str(candidate), candidate.workers, rate, low, high, limit)
