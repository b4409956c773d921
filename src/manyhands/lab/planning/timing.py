"""Predicted speed of a strategy: a virtual run without numbers, by calibrated times."""

from __future__ import annotations

import math
import statistics
import tempfile
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final, TypeVar

from manyhands.cluster import Cluster, Link
from manyhands.costs.compression import PAYLOAD_SHARE
from manyhands.lab.planning.candidates import paces_on
from manyhands.reports.figures.speed import throughput
from manyhands.reports.figures.worker_shares import uneven_share
from manyhands.sampling.speed_shares import EVERY
from manyhands.script.unmeasured import for_times
from manyhands.strategies import placement_of, protocol_of
from manyhands.verbs.asked import Asked
from manyhands.verbs.assumed_values import codecs_within
from manyhands.verbs.simulate import plan as plan_run

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from manyhands.costs import PieceTime
    from manyhands.job import Job
    from manyhands.lab.calibration import Calibration
    from manyhands.lab.planning.candidates import Candidate
    from manyhands.pacing import Pace
    from manyhands.placements import Placement
    from manyhands.trace import Trace

T = TypeVar("T")
STEPS: Final = 24
"""Global batches of a virtual run."""
LOCKSTEP_STEPS: Final = 6
"""The same, where all workers wait for each other in every step: one is like the next."""
REPEATS: Final = 3
_INTERVALS: Final = 3
_CLEAR: Final = 1.1
"""How much faster a strategy must be without something for that to limit it."""
LEAST_SPREAD: Final = 0.1
"""Least standard deviation / mean of the times of workers that run freely."""
SHARDED: Final = frozenset(("fully_sharded", "hybrid", "zero"))
"""Strategies whose workers gather parameters."""
MODEL_ERROR: Final = 0.067
"""By how much of the speed nine of ten real runs differed at most from their predictions: 71 runs
in 14 situations, `benchmarks/results/predictions.json` ("p90 error")."""
_NINE_OF_TEN: Final = 1.645
DECISIONS: Final = 2
"""Decisions on shares after which they hardly change."""
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
    reasons: bool = True,
    change: Callable[[Asked], Asked] = lambda asked: asked,
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
        reasons: whether to find out what limits it, by a virtual run without each.
        change: what is to be otherwise in each run.
    """
    batch = job.batch_sizes.at(0)
    # Of a strategy that synchronises every so many steps, some whole intervals.
    steps = max(steps, _INTERVALS * candidate.interval)
    if placement_of(candidate.strategy) is not None:
        steps = min(steps, LOCKSTEP_STEPS)
    asked = change(asked_of(job, candidate, cluster, calibration, slow))
    about = replace(asked, samples=steps * batch, time_only=True)
    # Without random numbers all repeats are the same run.
    steady_times = str(about.times).startswith("constant")
    seeds = range(job.seed, job.seed + (1 if steady_times else repeats))
    rate_of = partial(_rate, job, candidate, calibration.pieces)
    rates = [rate_of(replace(about, seed=seed)) for seed in seeds]
    rate = statistics.mean(rates)
    if not reasons:
        return PredictedSpeed(rate=rate, low=min(rates), high=max(rates), limit="")
    steady = f"constant({sum(seconds_of(job, candidate, cluster, calibration)):.6g})"
    unlimited = {"the network": replace(about, cluster=_without_network(about.cluster))}
    if about.slow or not steady_times:
        unlimited["slower workers"] = replace(about, times=steady, slow=())
    gains = {name: rate_of(one) / rate for name, one in unlimited.items()}
    most = max(gains, key=lambda name: gains[name])
    limit = most if candidate.workers > 1 and gains[most] >= _CLEAR else "computing"
    return PredictedSpeed(rate=rate, low=min(rates), high=max(rates), limit=limit)


def expected_range(
    value: float,
    low: float,
    high: float,
    deviation: float = 0.0,
    *,
    least: float = 1.0,
    most: float = 1.0,
) -> tuple[float, float]:
    """Where nine of ten real runs are expected: the error of predictions and the spread together.

    Errors that do not depend on each other add up as squares.

    Args:
        value: what is predicted.
        low: the least of the repeats of its virtual runs.
        high: their largest.
        deviation: standard deviation / mean of the calibration's figures.
        least: how many times as much it may be because the calibration was disturbed, at least.
        most: the same, at most.

    >>> expected_range(100.0, 100.0, 100.0)
    (93.3, 106.7)
    """
    # Nine of ten of a normal distribution are within 1.645 standard deviations.
    error = math.hypot(MODEL_ERROR, _NINE_OF_TEN * deviation) * value
    below = math.hypot(error, value - low, (1 - least) * value)
    above = math.hypot(error, high - value, (most - 1) * value)
    return max(0.0, value - below), value + above


def seconds_of(
    job: Job, candidate: Candidate, cluster: Cluster, calibration: Calibration
) -> tuple[float, float]:
    """Seconds that a worker computes in a step, and those that it spends on exchanges.

    What the network and servers take is not included.
    """
    batch, workers = job.batch_sizes.at(0), candidate.workers
    per_host = candidate.on(cluster).most_on_a_host(workers)
    overhead = 0.0
    if placement_of(candidate.strategy) is not None:
        sharded = candidate.strategy.name in SHARDED
        overhead = calibration.overhead(workers, per_host, sharded=sharded)
    elif workers > 1 and candidate.strategy.needs(workers).leases:
        overhead = _exchanging(candidate, calibration) * calibration.crowding(per_host)
    if candidate.divides_work:
        fixed = calibration.fixed
        return fixed + (calibration.seconds(batch, per_host) - fixed) / workers, overhead
    return calibration.seconds(batch / workers, per_host), overhead


def _exchanging(candidate: Candidate, calibration: Calibration) -> float:
    """Seconds of a step that a worker is busy with exchanges, on average."""
    protocol = protocol_of(candidate.strategy)
    size = max(1, calibration.parameters)
    payload = None if protocol is None else protocol.step_payload(candidate.workers, size)
    if payload is not None and payload.between_workers:
        # Of what it sends to others it receives as much, and does what a server does with it.
        return calibration.exchange * payload.sent / size
    # Of an exchange, what the worker does beside the server; workers do it at the same time.
    return (calibration.exchange - calibration.service) / candidate.interval


def _service(candidate: Candidate, calibration: Calibration) -> float:
    """Seconds that a server is busy with an update of its shard.

    What was measured is an update of all parameters; it is in proportion to them.
    """
    needs = candidate.strategy.needs(candidate.workers)
    return calibration.service / (1 if needs.peer_servers else needs.shards)


def asked_of(
    job: Job,
    candidate: Candidate,
    cluster: Cluster,
    calibration: Calibration,
    slow: Sequence[Pace] = (),
) -> Asked:
    """A virtual run of a candidate, by calibrated times."""
    workers, among = candidate.workers, candidate.on(cluster)
    per_host = among.most_on_a_host(workers)
    computing, overhead = seconds_of(job, candidate, cluster, calibration)
    seconds = computing + overhead
    # A slow worker computes more slowly; what collectives take is stretched with it here.
    share = computing / seconds
    paces = tuple(
        replace(pace, factor=1 + share * (pace.factor - 1))
        for pace in paces_on(cluster, candidate.hosts, slow)
    )
    needs = candidate.strategy.needs(workers)
    through_servers = needs.leases and workers > 1
    # Workers that do not wait for each other do not stay in step either, as they would here.
    least = LEAST_SPREAD if through_servers and not needs.lockstep else 0.0
    return Asked(
        strategy=candidate.strategy,
        workers=workers,
        cluster=_with_room(among) if through_servers else among,
        times=calibration.spread(seconds, job.batch_sizes.at(0) / workers, least),
        slow=tuple(pace for pace in paces if pace.worker is None or pace.worker < workers),
        service=_service(candidate, calibration) * calibration.crowding(per_host)
        if through_servers
        else None,
        coding=_coding_speed(candidate, calibration),
    )


def _coding_speed(candidate: Candidate, calibration: Calibration) -> float | None:
    """The measured speed of its codecs, the slowest; None if one of them was not measured."""
    speeds = [calibration.coding_speed(one) for one in set(codecs_within(candidate.strategy))]
    known = [one for one in speeds if one is not None]
    return min(known) if known and len(known) == len(speeds) else None


def _rate(job: Job, candidate: Candidate, pieces: tuple[PieceTime, ...], asked: Asked) -> float:
    """Samples per second of a virtual run."""
    placement = placement_of(candidate.strategy)
    if candidate.deals_by_speed and asked.slow:
        return _rate_when_divided(job, candidate, pieces, asked)
    if placement is not None and candidate.interval > 1:
        return _rate_of_copies(job, placement, candidate.interval, pieces, asked)
    return _rate_of_run(job, pieces, asked)


def _rate_when_divided(
    job: Job, candidate: Candidate, pieces: tuple[PieceTime, ...], asked: Asked
) -> float:
    """Samples per second of a strategy that divides batches by speed, once it knows the speeds.

    Batches are divided evenly until the workers were measured, which takes a short run to its end.
    """
    interval = candidate.interval
    learnt = interval * math.ceil(DECISIONS * EVERY / interval) * job.batch_sizes.at(0)
    samples = asked.samples or 0

    def seconds(more: int) -> float:
        number = learnt + more
        return number / _rate_of_run(job, pieces, replace(asked, samples=number))

    return samples / max(1e-9, seconds(samples) - seconds(0))


def _rate_of_copies(
    job: Job, placement: Placement, interval: int, pieces: tuple[PieceTime, ...], asked: Asked
) -> float:
    """Samples per second of a placement whose replicas synchronise every so many steps.

    All steps but the last of an interval are alike, so a few are simulated, with a synchronisation
    after them and without.
    """
    batch = job.batch_sizes.at(0)

    def seconds(every: int) -> float:
        samples = LOCKSTEP_STEPS * batch
        often = replace(asked, strategy=placement.with_interval(every), samples=samples)
        return samples / _rate_of_run(job, pieces, often)

    steps = seconds(LOCKSTEP_STEPS + 1)
    synchronisation = max(0.0, seconds(LOCKSTEP_STEPS) - steps)
    return interval * batch / (interval / LOCKSTEP_STEPS * steps + synchronisation)


def uneven(
    job: Job,
    candidate: Candidate,
    cluster: Cluster,
    calibration: Calibration,
    slow: Sequence[Pace] = (),
) -> str:
    """The worker that does most of the work, in words; empty if none does."""
    if candidate.workers == 1 or candidate.strategy.needs(candidate.workers).lockstep:
        return ""
    asked = asked_of(job, candidate, cluster, calibration, slow)
    asked = replace(asked, samples=STEPS * job.batch_sizes.at(0), time_only=True, seed=job.seed)
    return figure_of_run(job, calibration.pieces, asked, uneven_share)


def _rate_of_run(job: Job, pieces: tuple[PieceTime, ...], asked: Asked) -> float:
    """Samples per second of one virtual run."""
    return figure_of_run(job, pieces, asked, lambda trace: throughput(trace).rate)


def figure_of_run(
    job: Job,
    pieces: tuple[PieceTime, ...],
    asked: Asked,
    figure: Callable[[Trace], T],
    *,
    starts_free: bool = True,
) -> T:
    """A figure of one virtual run.

    Args:
        job: the job.
        pieces: what the pieces of the model took.
        asked: the run.
        figure: takes the figure from the run's trace.
        starts_free: whether what workers receive before their first batch takes no time.
    """
    quiet = for_times(job, asked.samples)
    with tempfile.TemporaryDirectory(prefix="manyhands-plan-") as folder:
        asked = replace(asked, output=Path(folder) / "run")
        planned = plan_run(quiet, asked, "plan")
        conditions = replace(planned.conditions, starts_free=starts_free, pieces=pieces)
        run = replace(planned, conditions=conditions).carry_out(lambda _: None)
        return figure(run.trace)


def _with_room(cluster: Cluster) -> Cluster:
    """The same hosts with a further core each.

    Processes of a virtual host queue for its cores, so a server would wait for a worker's whole
    batch; an operating system lets it through at once.
    """
    return replace(
        cluster, hosts=tuple(replace(host, cores=host.cores + 1) for host in cluster.hosts)
    )


def _without_network(given: str | Cluster | None) -> Cluster:
    """The same hosts, with links that take next to no time."""
    cluster = Cluster.local() if given is None else Cluster.parse(given)
    return with_links(cluster, lambda _: _FAST)


def for_payload(cluster: Cluster) -> Cluster:
    """The same hosts, with the bandwidth that TCP's headers leave of that of each link."""
    return with_links(cluster, lambda link: replace(link, bandwidth=PAYLOAD_SHARE * link.bandwidth))


def with_links(cluster: Cluster, change: Callable[[Link], Link]) -> Cluster:
    """The same hosts with other links."""

    def changed(link: Link | None) -> Link | None:
        return None if link is None else change(link)

    sites = tuple(
        replace(site, link=changed(site.link), uplink=changed(site.uplink))
        for site in cluster.sites
    )
    links = tuple((first, second, change(link)) for first, second, link in cluster.links)
    return replace(cluster, link=changed(cluster.link), links=links, sites=sites)
