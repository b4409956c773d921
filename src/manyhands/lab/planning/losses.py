"""What the loss of one worker costs under a strategy, by what a run does then.

Where the others continue and messages are exchanged, virtual runs without numbers say it: the same
samples without crashes, with crashes after which the worker is back, and with one after which it is
not. That gives what a loss costs for each second that the worker is away, and beside it. Where the
others continue in a group of collectives, which a virtual run does not take apart, they repeat a
step and are one fewer until it is back: the speed of one worker fewer is predicted. Otherwise all
go back to the last checkpoint. One long run with random losses would need days of virtual time to
have enough of them (`docs/decisions/0093-failures-in-plans.md`).
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from manyhands.faults import Crash, Faults
from manyhands.lab.planning.candidates import Candidate, paces_on
from manyhands.lab.planning.failures import NOTICED, STEPS, LossCost
from manyhands.lab.planning.timing import asked_of, figure_of_run, predict
from manyhands.live.agent.recovery.elasticity import is_taken_back, rigidity_of
from manyhands.reports.figures.speed import throughput
from manyhands.strategies import placement_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from manyhands.cluster import Cluster
    from manyhands.job import Job
    from manyhands.lab.calibration import Calibration
    from manyhands.pacing import Pace
    from manyhands.placements import Placement

_CRASHES: Final = 2
"""In a virtual run, at different moments of a step;"""
_IN_INTERVALS: Final = 4
"""of an interval, where workers synchronise every so many steps."""
_AWAY: Final = 24
"""Steps that a worker is away at most; more of them cost as much each."""
_BETWEEN: Final = 6
"""Steps before a crash, in which all workers are there."""


def loss_cost(
    candidate: Candidate,
    about: tuple[Job, Cluster, Calibration, Sequence[Pace]],
    rate: float,
    away: float,
) -> LossCost:
    """What the loss of a worker costs.

    Args:
        candidate: the strategy and the number of workers.
        about: the job, where it trains, how long a batch takes, and slower workers.
        rate: samples per second without failures.
        away: seconds until a worker is back, where the others go on.
    """
    job, cluster, *_ = about
    workers, placement = candidate.workers, placement_of(candidate.strategy)
    if workers == 1:
        return LossCost("goes back")
    among = candidate.on(cluster)
    if placement is not None:
        busy = [host for host in among.hosts if host.workers]
        on_cpus = not any(host.devices for host in busy)
        if rigidity_of(candidate.strategy, job, workers, on_cpus=on_cpus, hosts=len(busy)):
            return LossCost("goes back")
        return _fewer(candidate, placement, about, rate)
    if not is_taken_back(candidate.strategy, job, workers):
        return LossCost("is not replaced")
    return _crashed(candidate, about, rate, away)


def _fewer(
    candidate: Candidate,
    placement: Placement,
    about: tuple[Job, Cluster, Calibration, Sequence[Pace]],
    rate: float,
) -> LossCost:
    """The others go on in a new group, and are in another one when it is back."""
    job, cluster, calibration, slow = about
    row, workers = placement.row, candidate.workers
    strategy = candidate.strategy
    if placement.binds_again:
        strategy = placement.with_replicas(workers // row - 1)
    left, among = Candidate(strategy, workers - row), candidate.on(cluster)
    paces = paces_on(cluster, candidate.hosts, slow)
    try:
        fewer = predict(job, left, among, calibration, paces, repeats=1, reasons=False).rate
    except (ValueError, TypeError):
        fewer = rate * (workers - row) / workers
    # The step that was interrupted is made again: half of it was done, on average.
    fixed = 0.5 * job.batch_sizes.at(0) / rate + 2 * STEPS
    return LossCost("goes on", fixed, max(0.0, 1 - fewer / rate))


def _crashed(
    candidate: Candidate,
    about: tuple[Job, Cluster, Calibration, Sequence[Pace]],
    rate: float,
    away: float,
) -> LossCost:
    """Virtual runs with crashes and without, over the same samples."""
    job, cluster, calibration, slow = about
    batch, interval = job.batch_sizes.at(0), candidate.interval
    step, times = batch / rate, _CRASHES if interval == 1 else _IN_INTERVALS
    longest = min(away, max(_AWAY, interval) * step)
    spacing = _BETWEEN + interval + math.ceil(longest / step)
    steps = times * spacing + _BETWEEN + interval
    asked = asked_of(job, candidate, cluster, calibration, slow)
    asked = replace(asked, samples=steps * batch, time_only=True, seed=job.seed)
    # The last worker: a server may be beside the first one, and is not lost with it.
    rank = candidate.workers - 1

    def seconds(*crashes: Crash) -> float:
        """Seconds of the run with these crashes."""
        detection = min(NOTICED, longest / 2) if crashes else None
        crashed = replace(asked, faults=Faults(crashes), detection=detection)
        return figure_of_run(
            job, calibration.pieces, crashed, lambda trace: throughput(trace).seconds
        )

    whole, first = seconds(), _BETWEEN * step
    never = seconds(Crash(worker=rank, at=first))
    share = min(1.0, max(0.0, (never - whole) / (never - first)))
    moments = (
        first + (number * spacing + (number + 0.5) / times * interval) * step
        for number in range(times)
    )
    back = seconds(*(Crash(worker=rank, at=at, restart=longest) for at in moments))
    return LossCost("goes on", (back - whole) / times - share * longest, share)
