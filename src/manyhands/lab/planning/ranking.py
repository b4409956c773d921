"""A plan: strategies ranked for a job and a cluster, with the reason and the command."""

from __future__ import annotations

import sys
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

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
from manyhands.lab.planning.cautions import learning_cautions
from manyhands.lab.planning.learning import Learning, TimedCandidate, TimeToTarget
from manyhands.lab.planning.rules import Rule, Rules
from manyhands.lab.planning.sensitivity import unmeasured_codecs, with_consequences
from manyhands.lab.planning.timing import expected_range, for_payload, predict, uneven
from manyhands.pacing import Pace
from manyhands.script import loading as scripts
from manyhands.units import bandwidth as read_bandwidth

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    from manyhands.assumptions import Assumption
    from manyhands.job import Job

MARGIN: Final = 0.05
"""Predictions that differ by less than this cannot be told apart, whatever their spread."""
BUDGET: Final = 120.0
"""Seconds for virtual runs with real gradients."""
_FIRST: Final = 5
"""How many of the fastest are looked at for a worker that does most of the work."""
_MILLION: Final = 1e6


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
    to_target: TimeToTarget | None = None
    """How long until the target, if one was given and the strategy reached it in virtual runs."""
    price: float | None = None
    """Of the training until the target, or else of a million samples."""
    least: float = 0.0
    """Within `least` and `most` nine of ten real runs are expected: the range over repeats with the
    measured error of predictions. Of what the plan is ranked by: samples per second, or seconds to
    the target."""
    most: float = 0.0
    assumed: tuple[str, ...] = ()
    """What its prediction takes from elsewhere: speeds of codecs that were not measured here."""

    def resembles(self, other: PlannedStrategy) -> bool:
        """Whether the predictions of two cannot be told apart.

        Args:
            other: the other one.
        """
        mine, its = self.to_target, other.to_target
        if (mine is None) != (its is None):
            return False
        if mine is not None and its is not None:
            if mine.share != its.share:
                return False
            overlap = mine.low <= its.high and its.low <= mine.high
            return overlap or abs(mine.seconds / its.seconds - 1) < MARGIN
        overlap = self.low <= other.high and other.low <= self.high
        return overlap or abs(self.rate / other.rate - 1) < MARGIN


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

    @property
    def best(self) -> tuple[PlannedStrategy, ...]:
        """The fastest, and those that cannot be told apart from it."""
        if not self.ranking:
            return ()
        first = self.ranking[0]
        return tuple(one for one in self.ranking if one is first or one.resembles(first))

    @property
    def cautions(self) -> tuple[str, ...]:
        """What the ranking depends on, and what it does not know."""
        said = [one.consequence for one in self.assumptions if one.decides]
        if self.target is None and self.ranking:
            said += learning_cautions(self.best)
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
        best = self.best
        alone = next((one for one in self.ranking if one.workers == 1), None)
        if alone in best:
            return (
                f"do not distribute: one worker reaches {self._measure(alone)}, and no strategy "
                "is clearly faster"
            )
        first = self.choice or best[0]
        words = f"{first.strategy} on {first.workers} workers: {self._measure(first)}"
        if alone is not None and first.to_target is None:
            words += f", {first.rate / alone.rate:.1f} times one worker"
        elif alone is not None and alone.to_target is not None and first.to_target is not None:
            times = alone.to_target.seconds / first.to_target.seconds
            words += f", {times:.1f} times as fast as one worker"
        if len(best) > 1:
            others = ", ".join([one.strategy for one in best if one is not first][:3])
            more = f" and {len(best) - 4} more" if len(best) > 4 else ""
            words += f"; cannot be told apart from {others}{more}"
        return words

    def _measure(self, one: PlannedStrategy) -> str:
        if one.to_target is None:
            return f"{one.rate:,.0f} samples/s"
        return f"{self.target} in {one.to_target.seconds:,.3g} s"


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
    price: float | None = None,
    rules: bool = False,
    tell: Callable[[str], None] = lambda _: None,
) -> Plan:
    """Rank strategies for a job on a cluster by predicted speed, or by predicted time to a target.

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
        price: of a worker for an hour.
        rules: whether to try the field's rules of thumb on this job.
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
    paces = tuple(map(Pace.read, slow))
    given = None if cluster is None else Cluster.parse(cluster)
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
        tell(f"{one} on {one.workers} workers")
        try:
            found.append(TimedCandidate(one, predict(made, one, where, known, paces)))
        except (ValueError, TypeError) as error:
            left.append(LeftOut(f"{one} on {one.workers} workers", str(error)))
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
            notes.append(f"{timed.candidate} on {timed.candidate.workers} workers: {words}")
    found_again = with_consequences(
        found, reached, (made, where, known, paces), given=given, tell=tell
    )
    ranking = sorted((_planned(one, reached, price, known) for one in found), key=_place)
    tried = tuple(Rules(made, where, known, tell).all()) if rules else ()
    return Plan(
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
    )


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


def _planned(
    timed: TimedCandidate,
    reached: Mapping[Candidate, TimeToTarget],
    price: float | None,
    known: Calibration,
) -> PlannedStrategy:
    one, speed = timed.candidate, timed.speed
    to_target = reached.get(one)
    seconds = _MILLION / speed.rate if to_target is None else to_target.seconds
    predicted = (speed.rate, speed.low, speed.high)
    if to_target is not None:
        predicted = (to_target.seconds, to_target.low, to_target.high)
    least, most = expected_range(*predicted, known.deviation)
    unmeasured = unmeasured_codecs(one, known)
    return PlannedStrategy(
        str(one),
        one.workers,
        speed.rate,
        speed.low,
        speed.high,
        speed.limit,
        to_target,
        None if price is None else price * one.workers * seconds / 3600,
        least,
        most,
        tuple(f"speed of {codec}" for codec in unmeasured),
    )


def _place(one: PlannedStrategy) -> tuple[float, float]:
    """Those with a time to the target first, then the fastest."""
    return (float("inf") if one.to_target is None else one.to_target.rank, -one.rate)
