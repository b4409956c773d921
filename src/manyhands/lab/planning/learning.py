"""Time to a target: the best of each kind trained virtually with real gradients, within a budget.

Strategies that take the same steps as one worker with the same global batch share one run: the
samples that it needs are divided by the speed that is predicted for each of them. So are those of
replicas on several workers that synchronise now and then: they learn as so many workers do. Every
other strategy trains for itself, on the virtual clock, by the calibrated times.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from manyhands.lab.planning.timing import asked_of
from manyhands.reports.comparison.measure import measure
from manyhands.strategies import placement_of
from manyhands.strategies import strategy as read_strategy
from manyhands.verbs.simulate import Asked
from manyhands.verbs.simulate import plan as plan_run

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from manyhands.cluster import Cluster
    from manyhands.job import Job
    from manyhands.lab.calibration import Calibration
    from manyhands.lab.planning.candidates import Candidate
    from manyhands.lab.planning.timing import PredictedSpeed
    from manyhands.pacing import Pace

REPEATS: Final = 3
KINDS: Final = 6
"""How many kinds of strategies are trained at most, the fastest first."""
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
    """The mean over the runs that reached it."""
    low: float
    high: float
    samples: float
    """Samples until then, the mean."""
    runs: int
    """Virtual runs with different seeds."""


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
        """Train the fastest of each kind, the fastest kinds first.

        Returns:
            The times of those that reached the target, and what is to be said of the others.
        """
        alike = [one for one in timed if is_like_one(one.candidate)]
        others: dict[str, TimedCandidate] = {}
        for one in sorted(timed, key=lambda one: -one.speed.rate):
            if not is_like_one(one.candidate):
                others.setdefault(one.candidate.strategy.name, one)
        kinds = list(others.values())[:KINDS]
        samples: list[float] = []
        times: dict[Candidate, list[tuple[float, float]]] = {}
        missed: dict[str, None] = {}
        left: dict[str, None] = {}
        for seed in range(REPEATS):
            if alike:
                steps = self._run(_ALONE, self._alone(seed), left, must=seed == 0)
                if steps is not None and steps[0] is not None:
                    samples.append(steps[1])
                elif steps is not None:
                    missed[_ALONE] = None
            for one in kinds:
                words = f"{one.candidate} on {one.candidate.workers} workers"
                copies = self._copies(one.candidate, seed)
                found = self._run(words, copies or self._asked(one.candidate, seed), left)
                if found is not None and found[0] is not None:
                    seconds = found[1] / one.speed.rate if copies else found[0]
                    times.setdefault(one.candidate, []).append((seconds, found[1]))
                elif found is not None:
                    missed[words] = None
        reached = {one: _time(each) for one, each in times.items()}
        if samples:
            for one in alike:
                speed = one.speed
                each = [(number / speed.rate, number) for number in samples]
                between = (min(samples) / speed.high, max(samples) / speed.low)
                reached[one.candidate] = _time(each, between)
        said = [f"{words} did not reach {self._target} in the job's samples" for words in missed]
        done = {_ALONE, *(f"{one} on {one.workers} workers" for one in reached)}
        untrained = [words for words in left if words not in done and words not in missed]
        said += [f"{words} was not trained: the budget was spent" for words in untrained]
        return reached, said

    def _run(
        self, words: str, asked: Asked, left: dict[str, None], *, must: bool = False
    ) -> tuple[float | None, float] | None:
        """Seconds and samples to the target of one run; None if there is no time for it."""
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
        return found.time_to_target, found.samples_to_target or 0.0

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


def _time(
    each: Sequence[tuple[float, float]], between: tuple[float, float] | None = None
) -> TimeToTarget:
    seconds = [one for one, _ in each]
    low, high = between or (min(seconds), max(seconds))
    return TimeToTarget(
        seconds=statistics.mean(seconds),
        low=low,
        high=high,
        samples=statistics.mean(samples for _, samples in each),
        runs=len(each),
    )
