"""Time to a target: the best of each kind trained virtually with real gradients, within a budget.

Strategies that take the same steps as one worker with the same global batch share one run: the
samples that it needs are divided by the speed that is predicted for each of them. So are those of
replicas on several workers that synchronise now and then: they learn as so many workers do. Every
other strategy trains for itself, on the virtual clock, by the calibrated times. Runs that miss the
target are censored times: `manyhands.reports.comparison.verdicts.reaching` says how they count.
"""

from __future__ import annotations

import tempfile
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from manyhands.lab.planning.timing import asked_of
from manyhands.reports.comparison.measure import measure
from manyhands.reports.comparison.verdicts.reaching import (
    PENALTY,
    TargetAttempt,
    penalised,
    typical,
)
from manyhands.strategies import placement_of
from manyhands.strategies import strategy as read_strategy
from manyhands.units import counted
from manyhands.verbs.asked import Asked
from manyhands.verbs.simulate import plan as plan_run

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from manyhands.cluster import Cluster
    from manyhands.job import Job
    from manyhands.lab.calibration import Calibration
    from manyhands.lab.planning.candidates import Candidate
    from manyhands.lab.planning.timing import PredictedSpeed
    from manyhands.pacing import Pace

REPEATS: Final = 3
KINDS: Final = 6
"""How many kinds of strategies are trained at most, the fastest first."""
VARIANTS: Final = 2
"""How many further variants of each of them, other options or numbers of workers."""
_NAMED: Final = 4
"""Strategies that were not trained and are named."""
_EVALUATE: Final = "0.2 epochs"
"""How often a run is evaluated, if the job does not say it: a run ends when the target is met."""
_ALONE: Final = "one worker, whose steps allreduce and its like take,"
_LIKE_ONE: Final = frozenset(
    ("single", "allreduce", "synchronous", "zero", "fully_sharded", "tensor", "pipeline", "context")
)
"""Strategies that take the same steps as one worker with the same global batch."""


@dataclass(frozen=True)
class TimeToTarget:
    """How long a strategy is predicted to train until the target is measured.

    Example:
        >>> import manyhands as mh
        >>> mh.TimeToTarget(seconds=40.0, low=38.0, high=43.0, samples=60_000, runs=3).seconds
        40.0
    """

    seconds: float
    """The geometric mean over the runs that reached it."""
    low: float
    high: float
    samples: float
    """Samples until then, likewise."""
    runs: int
    """Virtual runs with different seeds,"""
    missed: int = 0
    """of which so many did not reach it."""
    penalised: float | None = None
    """What it is ranked by: a run that missed the target counts as ten times the longest."""

    @property
    def rank(self) -> float:
        """Seconds by which strategies are ordered."""
        return self.seconds if self.penalised is None else self.penalised

    @property
    def share(self) -> str:
        """In how many runs it was reached, as in `2 of 3`."""
        return f"{self.runs - self.missed} of {self.runs}"


@dataclass(frozen=True)
class TimedCandidate:
    """A candidate with its predicted speed."""

    candidate: Candidate
    speed: PredictedSpeed


class Learning:
    """Virtual runs with real gradients, until a target or the end of the job.

    Args:
        job: the job, with its budget of samples.
        cluster: where.
        calibration: how long a batch takes.
        slow: workers that are slower than the others.
        target: the target: "accuracy >= 0.97".
        budget: seconds that all runs together may take here.
        tell: receives what is trained at the moment.
    """

    def __init__(
        self,
        job: Job,
        cluster: Cluster,
        calibration: Calibration,
        slow: Sequence[Pace],
        *,
        target: str,
        budget: float,
        tell: Callable[[str], None] = lambda _: None,
    ) -> None:
        self._job = job
        self._cluster = cluster
        self._calibration = calibration
        self._slow = slow
        self._target = target
        self._tell = tell
        self._ends = time.monotonic() + budget
        self._longest = 0.0
        """Seconds of the longest run until now."""

    def train(
        self, timed: Sequence[TimedCandidate]
    ) -> tuple[dict[Candidate, TimeToTarget], list[str]]:
        """Train the fastest of each kind, the fastest kinds first; then further variants of them.

        Returns:
            The times of those that reached the target in any run, and what is to be said of the
            others.
        """
        alike = [one for one in timed if is_like_one(one.candidate)]
        kinds, variants, untried = _in_order(timed)
        steps: dict[int, tuple[float, bool]] = {}
        runs: dict[Candidate, dict[int, _Run]] = {}
        left: dict[str, None] = {}
        for group in (kinds, variants):
            for seed in range(REPEATS):
                if alike and group is kinds:
                    found = self._run(_ALONE, self._alone(seed), left, must=seed == 0)
                    if found is not None:
                        steps[seed] = (found[1], found[0] is not None)
                for one in group:
                    made = self._attempt(one, seed, left)
                    if made is not None:
                        runs.setdefault(one.candidate, {})[seed] = made
        if steps:
            for one in alike:
                runs[one.candidate] = {
                    seed: _Run(TargetAttempt(samples / one.speed.rate, reached), samples)
                    for seed, (samples, reached) in steps.items()
                }
        reached = _ranked({one.candidate: one.speed for one in timed}, runs)
        return reached, self._said(runs, reached, left, [*left, *map(_words, untried)])

    def _attempt(self, one: TimedCandidate, seed: int, left: dict[str, None]) -> _Run | None:
        """One run of a strategy that is trained for itself; None if there is no time for it."""
        copies = self._copies(one.candidate, seed)
        found = self._run(_words(one), copies or self._asked(one.candidate, seed), left)
        if found is None:
            return None
        seconds, samples = found
        if copies or seconds is None:
            seconds = samples / one.speed.rate
        return _Run(TargetAttempt(seconds, reached=found[0] is not None), samples)

    def _said(
        self,
        runs: Mapping[Candidate, Mapping[int, _Run]],
        reached: Mapping[Candidate, TimeToTarget],
        left: Mapping[str, None],
        untrained: Sequence[str],
    ) -> list[str]:
        """Who missed the target, in all or in some runs, and who was not trained."""
        missed: dict[str, None] = {}
        some: list[str] = []
        for one in runs:
            words = _ALONE if is_like_one(one) else f"{one} on {counted(one.workers, 'worker')}"
            time_ = reached.get(one)
            if time_ is None:
                missed[words] = None
            elif time_.missed:
                some.append(f"{words} in {time_.missed} of {time_.runs} runs")
        said = [f"{words} did not reach {self._target} in the job's samples" for words in missed]
        if some:
            said.append(
                f"{self._target} was missed by {', '.join(dict.fromkeys(some))}: a run that missed "
                f"it counts as {PENALTY:g} times the longest"
            )
        done = {_ALONE} if any(map(is_like_one, runs)) else set[str]()
        done |= {f"{one} on {counted(one.workers, 'worker')}" for one in runs}
        names = [words for words in dict.fromkeys(untrained) if words not in done]
        for words in names[:_NAMED]:
            why = (
                "the budget was spent" if words in left else "it is slower than others of its kind"
            )
            said.append(f"{words} was not trained: {why}")
        if len(names) > _NAMED:
            said.append(f"{len(names) - _NAMED} more were not trained, and have no time")
        return said

    def _run(
        self, words: str, asked: Asked, left: dict[str, None], *, must: bool = False
    ) -> tuple[float | None, float] | None:
        """Seconds and samples to the target of one run; None if there is no time for it.

        A run that missed the target has no seconds, and all samples that it trained on.
        """
        begun = time.monotonic()
        if not must and begun + self._longest > self._ends:
            left[words] = None
            return None
        self._tell(f"{words}, with real gradients")
        with tempfile.TemporaryDirectory(prefix="manyhands-plan-") as folder:
            asked = replace(asked, output=Path(folder) / "run", target=self._target)
            if self._job.evaluate_every is None:
                asked = replace(asked, evaluate_every=_EVALUATE)
            job = replace(self._job, checkpoint=None)
            run = plan_run(job, asked, "plan").carry_out(lambda _: None)
            found = measure(run.trace, strategy=words, target=self._target)
        self._longest = max(self._longest, time.monotonic() - begun)
        return found.time_to_target, float(found.samples_to_target or found.samples)

    def _alone(self, seed: int) -> Asked:
        """One worker: its steps count, and not its times."""
        return Asked(strategy=read_strategy("single()"), workers=1, seed=self._job.seed + seed)

    def _copies(self, candidate: Candidate, seed: int) -> Asked | None:
        """Replicas of several workers that synchronise every so many steps learn as workers do.

        None for all other strategies. Steps count, and not times.
        """
        strategy: Any = candidate.strategy
        if placement_of(strategy) is None or candidate.interval == 1:
            return None
        return Asked(strategy=strategy.outer, workers=strategy.data, seed=self._job.seed + seed)

    def _asked(self, candidate: Candidate, seed: int) -> Asked:
        asked = asked_of(self._job, candidate, self._cluster, self._calibration, self._slow)
        return replace(asked, seed=self._job.seed + seed)


def is_like_one(candidate: Candidate) -> bool:
    """Whether a strategy takes the same steps as one worker with the same global batch."""
    strategy = candidate.strategy
    return strategy.name in _LIKE_ONE and getattr(strategy, "codec", None) is None


@dataclass(frozen=True)
class _Run:
    """A run with one seed."""

    attempt: TargetAttempt
    samples: float
    """Until the target, or in all."""


def _in_order(
    timed: Sequence[TimedCandidate],
) -> tuple[list[TimedCandidate], list[TimedCandidate], list[TimedCandidate]]:
    """The fastest of each kind; further variants of these kinds; and all that are not trained."""
    by_kind: dict[str, list[TimedCandidate]] = {}
    for one in sorted(timed, key=lambda one: -one.speed.rate):
        if not is_like_one(one.candidate):
            by_kind.setdefault(one.candidate.strategy.name, []).append(one)
    each = list(by_kind.values())
    kinds = [of_kind[0] for of_kind in each[:KINDS]]
    variants = [one for of_kind in each[:KINDS] for one in of_kind[1 : 1 + VARIANTS]]
    rest = [one for of_kind in each[:KINDS] for one in of_kind[1 + VARIANTS :]]
    rest += [one for of_kind in each[KINDS:] for one in of_kind]
    return kinds, sorted(variants, key=lambda one: -one.speed.rate), rest


def _words(one: TimedCandidate) -> str:
    return f"{one.candidate} on {counted(one.candidate.workers, 'worker')}"


def _ranked(
    speeds: Mapping[Candidate, PredictedSpeed], runs: Mapping[Candidate, Mapping[int, _Run]]
) -> dict[Candidate, TimeToTarget]:
    """The times of those that reached the target in any run, with what they are ranked by."""
    seconds = penalised(
        {one: {seed: run.attempt for seed, run in of.items()} for one, of in runs.items()}
    )
    found = {}
    for one, of_one in runs.items():
        each = [run for run in of_one.values() if run.attempt.reached]
        if not each:
            continue
        took = [run.attempt.seconds for run in each]
        low, high = min(took), max(took)
        if is_like_one(one):
            # These runs were counted in samples: the spread of the speed comes on top.
            speed = speeds[one]
            low, high = low * speed.rate / speed.high, high * speed.rate / speed.low
        found[one] = TimeToTarget(
            seconds=typical(took),
            low=low,
            high=high,
            samples=typical(run.samples for run in each),
            runs=len(of_one),
            missed=len(of_one) - len(each),
            penalised=typical(seconds[one].values()),
        )
    return found
