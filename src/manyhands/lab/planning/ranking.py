"""A plan: strategies ranked for a job and a cluster, with the reason and the command."""

from __future__ import annotations

import math
import sys
import time
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final, Literal

from msgspec import structs

from manyhands.cluster import Cluster
from manyhands.lab.calibration import Calibration, read_calibration
from manyhands.lab.calibration.calibration import ALL_CODECS
from manyhands.lab.calibration.measure_script import measure_here
from manyhands.lab.planning.candidates import (
    Candidate,
    LeftOut,
    candidates,
    numbers_of_workers,
    simplicity,
)
from manyhands.lab.planning.cautions import ending_cautions, learning_cautions
from manyhands.lab.planning.learning import Learning, TimedCandidate, TimeToTarget
from manyhands.lab.planning.objective import Extras
from manyhands.lab.planning.planned import PlannedStrategy
from manyhands.lab.planning.rules import Rule, Rules, larger_batch
from manyhands.lab.planning.sensitivity import unmeasured_codecs, with_consequences
from manyhands.lab.planning.timing import expected_range, for_payload, predict, uneven
from manyhands.pacing import Pace
from manyhands.script import loading as scripts
from manyhands.units import bandwidth as read_bandwidth
from manyhands.units import counted

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from manyhands.assumptions import Assumption
    from manyhands.intervals import Every
    from manyhands.job import Job
    from manyhands.lab.planning.failures import Failures
    from manyhands.lab.planning.objective import Objective

BUDGET: Final = 120.0
"""Seconds for virtual runs with real gradients."""
_FIRST: Final = 5
"""How many of the fastest are looked at for a worker that does most of the work."""


@dataclass(frozen=True)
class Plan:
    """Strategies ranked by predicted speed, or time to a target, as `mh.plan` returns it.

    Example:
        >>> import manyhands as mh
        >>> def fastest(job: mh.Job, calibration: mh.Calibration) -> str:
        ...     return mh.plan(job, "4 hosts of 1 worker, 1gbit", calibration).ranking[0].strategy
    """

    ranking: tuple[PlannedStrategy, ...]
    """The fastest first; with a target, those that reach it soonest."""
    left_out: tuple[LeftOut, ...]
    cluster: str
    calibration: Calibration
    seconds: float
    """How long the plan took."""
    target: str | None = None
    notes: tuple[str, ...] = ()
    """What did not reach the target, or was not trained."""
    rules: tuple[Rule, ...] = ()
    """Rules of thumb, each confirmed or refuted for this job."""
    assumptions: tuple[Assumption, ...] = ()
    """Values that nothing gave or measured, and what is the best at half and at twice each."""
    where: Cluster | None = None
    """The cluster, with its links as they were declared; None if it is not known."""
    slow: tuple[Pace, ...] = ()
    """The workers that were asked to be slower than the others."""
    by: Literal["time", "cost"] = "time"
    """What it is ranked by: the time (speed, or time to the target), or the cost."""
    samples: int | None = None
    """The samples that prices are of, without a target: the job's, or a million if it does not say
    how many."""
    failures: Failures | None = None
    """How often a worker is lost, if that was given."""
    checkpoint: str | None = None
    """How often checkpoints are stored, if that was given to the plan or assumed by it."""
    advice: str = ""
    """What twice the global batch would change; empty if it is not clearly faster."""

    @property
    def best(self) -> tuple[PlannedStrategy, ...]:
        """The fastest, and those that cannot be told apart from it."""
        if not self.ranking:
            return ()
        first = self.ranking[0]
        return tuple(one for one in self.ranking if one is first or one.resembles(first, self.by))

    @property
    def cautions(self) -> tuple[str, ...]:
        """What the ranking depends on, and what it does not know."""
        said = [f"calibration: {words}" for words in self.calibration.doubts]
        said += [one.consequence for one in self.assumptions if one.decides]
        if self.target is None and self.ranking:
            said += learning_cautions(self.best)
        said += ending_cautions(self.best, self.samples if self.target is None else None)
        return tuple(said)

    @property
    def choice(self) -> PlannedStrategy | None:
        """What to use: of those that cannot be told apart from the fastest, the simplest."""
        return min(self.best, key=lambda one: simplicity(one.strategy, one.workers), default=None)

    @property
    def verdict(self) -> str:
        """The answer in a sentence."""
        if not self.ranking:
            return "no strategy can train this job on this cluster"
        best, than = self.best, "cheaper" if self.by == "cost" else "faster"
        alone = next((one for one in self.ranking if one.workers == 1), None)
        if alone in best:
            return (
                f"do not distribute: one worker reaches {self._measure(alone)}, and no strategy "
                f"is clearly {than}"
            )
        first = self.choice or best[0]
        words = f"{first.strategy} on {counted(first.workers, 'worker')}: {self._measure(first)}"
        words += "" if alone is None else self._times(first, alone)
        if len(best) > 1:
            others = ", ".join([one.strategy for one in best if one is not first][:3])
            more = f" and {len(best) - 4} more" if len(best) > 4 else ""
            words += f"; cannot be told apart from {others}{more}"
        return words

    def _times(self, first: PlannedStrategy, alone: PlannedStrategy) -> str:
        """How many times better than one worker it is."""
        if self.by == "cost":
            if first.price is None or alone.price is None:
                return ""
            return f", {first.price / alone.price:.2f} times the price of one worker"
        if first.counting_seconds is None:
            return f", {first.counting_rate / alone.counting_rate:.1f} times one worker"
        if alone.counting_seconds is None:
            return ""
        times = alone.counting_seconds / first.counting_seconds
        return f", {times:.1f} times as fast as one worker"

    def _measure(self, one: PlannedStrategy) -> str:
        found = f"{one.counting_rate:,.0f} samples/s"
        if one.counting_seconds is not None:
            found = f"{self.target} in {one.counting_seconds:,.3g} s"
        if one.goodput is not None:
            found += " with failures"
        if self.by == "time" or one.price is None:
            return found
        return f"{found}, for {one.price:.3g}"


def plan(
    job: Job | Callable[..., Job],
    cluster: str | Cluster | None = None,
    calibration: Calibration | str | Path | None = None,
    *,
    strategies: Sequence[str] | None = None,
    workers: Sequence[int] | None = None,
    slow: Sequence[str | Pace] = (),
    coding: str | float | None = None,
    target: str | None = None,
    budget: float = BUDGET,
    failures: str | Failures | None = None,
    checkpoint: str | Every | None = None,
    price: float | None = None,
    start_up: str | float | None = None,
    by: Literal["time", "cost"] = "time",
    rules: bool = False,
    tell: Callable[[str], None] = lambda _: None,
) -> Plan:
    """Rank strategies for a job on a cluster by predicted speed, time to a target, or price.

    Each strategy runs on a virtual clock without numbers: batches take the times of the
    calibration, messages those of the cluster's links. With a target, the fastest of each kind are
    then trained virtually with real gradients.

    Args:
        job: the job, or a function without arguments that returns it.
        cluster: the cluster, as text or as a value. Default: the hosts that the calibration has
            measured, with their links and speeds; if it has one only, this machine.
        calibration: what a batch takes, as `mh.calibrate` returns or stores it. Default: it is
            measured, which takes about a minute.
        strategies: what to consider. Default: some twenty, with usual options.
        workers: numbers of workers. Default: all, half and a quarter of the cluster's.
        slow: workers that are slower than the others: `["3:4x"]`.
        coding: bytes of vectors per second at which codecs encode and decode that the calibration
            has not measured: "2GB/s". Default: as was measured of each on another machine.
        target: rank by the time until this is measured: "accuracy >= 0.97".
        budget: seconds that virtual runs with real gradients may take here.
        failures: how often a worker is lost, and how long until it is back: "every 6h", "every 6h,
            back after 2min". The ranking is then by the speed that is left, the goodput.
        checkpoint: how often checkpoints are stored, to which some strategies go back after a
            failure: "1min", "10min, 10s in memory". Default: the job's, or else 10 min.
        price: of a worker for an hour. A host is paid for with all of its workers, whether they
            compute or not; one of servers alone costs as much as the host with the most workers.
        start_up: seconds that are paid for before a run trains, or "3min" for a machine that has to
            be rented first. Default: 3.2, as was measured of processes.
        by: "time", for the speed or with a target the time to it; or "cost", for the price.
        rules: whether to try the field's rules of thumb on this job.
        tell: receives what is timed at the moment.

    Returns:
        The ranking, with what limits each strategy, and what was left out for which reason.

    Raises:
        ValueError: the cluster, the calibration, the failures or another option cannot be read, or
            would have no effect.

    Example:
        >>> import manyhands as mh
        >>> def advice(job: mh.Job) -> str:
        ...     return mh.plan(job, "4 hosts of 1 worker, 1gbit", "calibration.json").verdict
    """
    begun = time.monotonic()
    made = scripts.made(job)
    paces = tuple(map(Pace.read, slow))
    given = None if cluster is None else Cluster.parse(cluster)
    asked = Extras.read(
        failures=failures, checkpoint=checkpoint, price=price, start_up=start_up, by=by
    )
    if calibration is None:
        calibration = measure_here(made, job, sys._getframe(1), tell=tell)
    known = calibration if isinstance(calibration, Calibration) else read_calibration(calibration)
    if coding is not None:
        known = structs.replace(known, coding={**known.coding, ALL_CODECS: read_bandwidth(coding)})
    where, name = _place_of(given, known)
    if given is None and not paces:
        paces = known.paces
    counts = list(workers or numbers_of_workers(where))
    found: list[TimedCandidate] = []
    left: list[LeftOut] = []
    for one in candidates(made, where, counts, strategies, unequal=bool(paces)):
        if isinstance(one, LeftOut):
            left.append(one)
            continue
        tell(f"{one} on {counted(one.workers, 'worker')}")
        try:
            found.append(TimedCandidate(one, predict(made, one, where, known, paces)))
        except (ValueError, TypeError) as error:
            left.append(LeftOut(f"{one} on {counted(one.workers, 'worker')}", str(error)))
    reached: dict[Candidate, TimeToTarget] = {}
    notes: list[str] = []
    if target is not None:
        learning = Learning(made, where, known, paces, target=target, budget=budget, tell=tell)
        reached, notes = learning.train(found)
    if given is None and known.step and made.batch_sizes.at(0) == known.batch:
        notes += _checked(found, known)
    for timed in sorted(found, key=lambda one: -one.speed.rate)[:_FIRST]:
        words = uneven(made, timed.candidate, where, known, paces)
        if words:
            notes.append(
                f"{timed.candidate} on {counted(timed.candidate.workers, 'worker')}: {words}"
            )
    about = (made, where, known, paces)
    objective = asked.objective(
        made, found, about, reached, has_target=target is not None, tell=tell
    )
    found_again = with_consequences(found, objective, about, given=given, tell=tell)
    values = objective.values(found)
    found.sort(key=lambda one: (values.get(one.candidate, math.inf), -one.speed.rate))
    ranking = [_planned(one, objective, known) for one in found]
    tried = tuple(Rules(made, where, known, tell).all()) if rules else ()
    made_plan = Plan(
        tuple(ranking),
        tuple(left),
        name,
        known,
        time.monotonic() - begun,
        target=target,
        notes=tuple(notes),
        rules=tried,
        assumptions=found_again,
        where=given or known.cluster or Cluster.local(),
        slow=tuple(map(Pace.read, slow)),
        by=by,
        samples=objective.samples,
        failures=asked.failures,
        checkpoint=objective.added_checkpoint,
    )
    if made_plan.choice is None:
        return made_plan
    chosen = found[ranking.index(made_plan.choice)]
    advice = larger_batch(made, chosen.candidate, (where, known, paces), chosen.speed.rate)
    return replace(made_plan, advice=advice, seconds=time.monotonic() - begun)


def _place_of(given: Cluster | None, known: Calibration) -> tuple[Cluster, str]:
    """The cluster of a plan, and its name in texts.

    Links of a calibration were measured by their payload; those of a text are what they are called.
    """
    if given is not None:
        return for_payload(given), str(given)
    if known.cluster is not None:
        return known.cluster, f"the {len(known.hosts)} hosts of the calibration"
    return Cluster.local(), "this machine"


def _checked(found: Sequence[TimedCandidate], known: Calibration) -> list[str]:
    """What was measured on the hosts of the calibration, beside its prediction."""
    for one in found:
        if str(one.candidate) == "allreduce()" and one.candidate.workers == known.workers:
            words = (
                f"allreduce() on all {known.workers} workers: {one.speed.rate:,.0f} samples/s are "
                f"predicted, {known.batch / known.step:,.0f} were measured by the calibration"
            )
            return [words]
    return []


def _planned(timed: TimedCandidate, objective: Objective, known: Calibration) -> PlannedStrategy:
    one, speed = timed.candidate, timed.speed
    to_target, price = objective.reached.get(one), objective.prices.get(one)
    if to_target is None:
        predicted = (speed.rate, speed.low, speed.high)
        # A machine that was busy made batches longer, never shorter.
        least, most = expected_range(*predicted, known.deviation, most=known.slowdown)
    else:
        predicted = (to_target.seconds, to_target.low, to_target.high)
        least, most = expected_range(*predicted, known.deviation, least=1 / known.slowdown)
    unmeasured = unmeasured_codecs(one, known)
    return PlannedStrategy(
        str(one),
        one.workers,
        speed.rate,
        speed.low,
        speed.high,
        speed.limit,
        to_target,
        objective.price(timed),
        least,
        most,
        tuple(f"speed of {codec}" for codec in unmeasured),
        objective.goodput(timed),
        None if price is None else price.paid,
        one.hosts,
    )
