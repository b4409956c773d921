"""Predicted speed of a strategy: a virtual run without numbers, by calibrated times."""

from __future__ import annotations

import math
import statistics
import tempfile
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

from manyhands.cluster import Link
from manyhands.reports.figures.speed import throughput
from manyhands.verbs.simulate import Asked
from manyhands.verbs.simulate import plan as plan_run

if TYPE_CHECKING:
    from collections.abc import Sequence

    from manyhands.cluster import Cluster
    from manyhands.job import Job
    from manyhands.lab.calibration import Calibration
    from manyhands.lab.planning.candidates import Candidate
    from manyhands.pacing import Pace

STEPS: Final = 24
"""Global batches of a virtual run."""
REPEATS: Final = 3
_INTERVALS: Final = 3
_CLEAR: Final = 1.1
"""How much faster a strategy must be without something for that to limit it."""
_FAST: Final = Link(bandwidth=1e13)


@dataclass(frozen=True)
class PredictedSpeed:
    """The predicted speed of a strategy."""

    rate: float
    """Samples per second, the mean over repeats."""
    low: float
    high: float
    """The least and the largest of the repeats."""
    limit: str
    """Without what it would be faster: the network, or slower workers; otherwise computing."""


def predict(
    job: Job,
    candidate: Candidate,
    cluster: Cluster,
    calibration: Calibration,
    slow: Sequence[Pace] = (),
    *,
    steps: int = STEPS,
    repeats: int = REPEATS,
) -> PredictedSpeed:
    """Predict how fast a strategy trains a job on a cluster.

    Args:
        job: the job.
        candidate: the strategy and the number of workers.
        cluster: where.
        calibration: how long a batch takes.
        slow: workers that are slower than the others.
        steps: global batches of each virtual run.
        repeats: virtual runs, which differ by the random numbers of their times.
    """
    batch = job.batch_sizes.at(0)
    workers = candidate.workers
    # Of a strategy that synchronises every so many steps, some whole intervals.
    steps = max(steps, _INTERVALS * candidate.interval)
    place = cluster.first(workers)
    per_host = max(1, math.ceil(workers / len(place.hosts)))
    if candidate.divides_work:
        seconds = calibration.seconds(batch, per_host) / workers
    else:
        seconds = calibration.seconds(batch / workers, per_host)
    times = calibration.spread(seconds, batch / workers)
    service = None
    if candidate.strategy.needs(workers).leases and workers > 1:
        service = calibration.exchange
    about = Asked(
        strategy=candidate.strategy,
        workers=workers,
        cluster=place,
        times=times,
        slow=tuple(pace for pace in slow if pace.worker is None or pace.worker < workers),
        service=service,
        samples=steps * batch,
        time_only=True,
    )
    rates = [_rate(job, replace(about, seed=job.seed + number)) for number in range(repeats)]
    rate = statistics.mean(rates)
    steady = f"constant({seconds:.6g})"
    gains = {
        "the network": _rate(job, replace(about, cluster=_without_network(place))) / rate,
        "slower workers": _rate(job, replace(about, times=steady, slow=())) / rate,
    }
    most = max(gains, key=lambda name: gains[name])
    limit = most if workers > 1 and gains[most] >= _CLEAR else "computing"
    return PredictedSpeed(rate=rate, low=min(rates), high=max(rates), limit=limit)


def _rate(job: Job, asked: Asked) -> float:
    """Samples per second of a virtual run."""
    quiet = replace(job, target=None, validation=None, evaluate_every=None)
    with tempfile.TemporaryDirectory(prefix="manyhands-plan-") as folder:
        asked = replace(asked, output=Path(folder) / "run")
        run = plan_run(quiet, asked, "plan").carry_out(lambda _: None)
        return throughput(run.trace).rate


def _without_network(cluster: Cluster) -> Cluster:
    """The same hosts, with links that take next to no time."""
    sites = tuple(
        replace(
            site,
            link=None if site.link is None else _FAST,
            uplink=None if site.uplink is None else _FAST,
        )
        for site in cluster.sites
    )
    link = None if cluster.link is None else _FAST
    links = tuple((first, second, _FAST) for first, second, _ in cluster.links)
    return replace(cluster, link=link, links=links, sites=sites)
