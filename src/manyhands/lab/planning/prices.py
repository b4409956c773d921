"""What a run costs: every host that it needs, from its start on.

A host is paid for whether it computes or not. So one with four workers costs four times the price
of a worker, also if a strategy uses two of them; and a host of servers alone costs as much as the
host with the most workers.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from manyhands.cluster.paid_hosts import paid_workers as of_hosts
from manyhands.lab.planning.timing import STEPS, asked_of, figure_of_run
from manyhands.live.agent.memory_check import serving_hosts
from manyhands.reports.figures.speed import training_interval

if TYPE_CHECKING:
    from collections.abc import Sequence

    from manyhands.cluster import Cluster
    from manyhands.job import Job
    from manyhands.lab.calibration import Calibration
    from manyhands.lab.planning.candidates import Candidate
    from manyhands.pacing import Pace

STARTS: Final = 3.2
"""Seconds from the command to the first step of two workers: the median of five starts on two
cores, `python -m benchmarks.first_step`."""


@dataclass(frozen=True)
class RunPrice:
    """What a run of a strategy costs.

    >>> RunPrice(price=2.0, paid=4, copying=1.0).of(seconds=3596.0, starts=3.0)
    8.0
    """

    price: float
    """Of a worker for an hour."""
    paid: int
    """Workers whose price is paid."""
    copying: float
    """Seconds until all workers have the first parameters."""

    def of(self, seconds: float, starts: float) -> float:
        """The price of a run.

        Args:
            seconds: how long it trains.
            starts: how long its processes take to start.
        """
        return self.price * self.paid * (starts + self.copying + seconds) / 3600


def run_price(
    candidate: Candidate,
    about: tuple[Job, Cluster, Calibration, Sequence[Pace]],
    price: float,
) -> RunPrice:
    """What runs of a strategy cost.

    Args:
        candidate: the strategy and the number of workers.
        about: the job, where it trains, how long a batch takes, and slower workers.
        price: of a worker for an hour.
    """
    job, cluster, calibration, slow = about
    asked = asked_of(job, candidate, cluster, calibration, slow)
    asked = replace(asked, samples=STEPS * job.batch_sizes.at(0), time_only=True, seed=job.seed)
    copying = figure_of_run(
        job,
        calibration.pieces,
        asked,
        # A run trains as soon as one worker does; at its full speed when the last one does.
        lambda trace: max(training_interval(worker)[0] for worker in trace.workers),
        starts_free=False,
    )
    return RunPrice(price, paid_workers(candidate, cluster), copying)


def paid_workers(candidate: Candidate, cluster: Cluster) -> int:
    """The workers of all hosts that it needs; a host of servers alone counts as the largest.

    Args:
        candidate: the strategy and the number of workers.
        cluster: where.
    """
    size = Counter(cluster.worker_hosts(cluster.default_workers()))
    among = candidate.on(cluster)
    used = {*among.worker_hosts(candidate.workers)}
    used |= {*serving_hosts(candidate.strategy, candidate.workers, among)}
    return of_hosts(size, used)
