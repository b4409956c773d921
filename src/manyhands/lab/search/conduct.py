"""Carries out a search: proposes trials, makes several at the same time, and stores results."""

from __future__ import annotations

import math
import time
from typing import TYPE_CHECKING

from manyhands.lab.search.trial import TrialResult
from manyhands.reports import Run

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from manyhands.lab.search.journal import SearchFolder
    from manyhands.lab.search.making import Attempt, Making, TrialSettings
    from manyhands.lab.search.methods import SearchMethod, SearchPlan
    from manyhands.lab.search.trial import Trial

ATTEMPTS = 3
"""How often a trial is started, if its processes are killed."""


class _Running:
    """A trial that is under way."""

    def __init__(self, trial: Trial, attempt: Attempt, begun: float) -> None:
        self.trial, self.attempt, self.begun = trial, attempt, begun
        self.attempts = 1


class Conduct:
    """One search, from its first trial, or from where it was interrupted, to its last.

    Args:
        plan: the search.
        method: proposes the trials.
        settings: what all trials have in common.
        making: makes them.
        folder: where they are stored.
        workers: workers of all trials that are under way together.
        metric: the name of the metric that is compared.
        tell: is called with the results so far, and the trials under way, when they change and
            from time to time.
    """

    def __init__(
        self,
        plan: SearchPlan,
        method: SearchMethod,
        settings: TrialSettings,
        making: Making,
        folder: SearchFolder,
        workers: int,
        metric: str,
        tell: Callable[[Sequence[TrialResult], Sequence[Trial]], None],
    ) -> None:
        self._plan, self._method, self._settings = plan, method, settings
        self._making, self._folder, self._workers = making, folder, workers
        self._metric, self._tell = metric, tell
        self._proposing = method.begin(plan)
        self._known = folder.results()
        self._prefix: list[TrialResult] = []
        """The results of the first trials, without a gap."""
        self._running: dict[int, _Running] = {}
        self._next = 0
        self._cleared = 0
        """Trials before this one have no checkpoints any more."""
        self._waiting: Trial | None = None
        """A trial that was proposed and finds no free workers."""

    def carry_out(self) -> list[TrialResult]:
        """All results, in the order of the trials; no process is left, whatever happens."""
        try:
            while self._next < self._plan.trials or self._running:
                self._advance()
                while self._begin_next():
                    self._advance()
                self._tell(self._results(), [one.trial for one in self._running.values()])
                if self._running:
                    self._making.wait([one.attempt for one in self._running.values()])
                    for number in [*self._running]:
                        self._look_at(number)
        finally:
            for one in self._running.values():
                one.attempt.end()
        self._advance()
        return self._prefix

    def _results(self) -> list[TrialResult]:
        return [self._known[number] for number in sorted(self._known) if number < self._next]

    def _advance(self) -> None:
        while len(self._prefix) in self._known and len(self._prefix) < self._next:
            self._prefix.append(self._known[len(self._prefix)])

    def _begin_next(self) -> bool:
        """Propose a trial and start it, if its method and the free workers allow it."""
        if self._next >= self._plan.trials:
            return False
        number = self._next
        if self._waiting is None:
            needed = self._method.needed(number, self._plan)
            if len(self._prefix) < needed or len(self._running) >= self._plan.at_once:
                return False
            self._waiting = self._proposing.propose(number, self._prefix[:needed])
        trial = self._waiting
        busy = sum(self._settings.workers_of(one.trial) for one in self._running.values())
        if self._running and busy + self._settings.workers_of(trial) > self._workers:
            return False
        self._waiting = None
        self._next += 1
        known = self._known.get(number)
        if known is not None:
            if known.trial != trial:
                raise ValueError(
                    f"{self._folder.path} has a trial {number} with {known.trial.words}, and this "
                    f"search proposes {trial.words}: it was made by another version; choose "
                    "another folder"
                )
            return True
        found = self._finished(trial, time.monotonic(), 1)
        if found is not None:
            # It had ended before its result was stored.
            self._note(found)
            return True
        self._running[number] = _Running(trial, self._begun(trial), time.monotonic())
        return True

    def _begun(self, trial: Trial) -> Attempt:
        """Start a trial, from its own last checkpoint if it has one."""
        folder = self._folder
        resume = folder.donor(trial)
        if self._making.can_repeat and folder.has_checkpoint(trial.number):
            resume = None
        else:
            folder.clear(trial.number)
        goes_on = self._method.is_continued(trial, self._plan)
        run = folder.run(trial.number)
        run.parent.mkdir(parents=True, exist_ok=True)
        return self._making.begin(trial, run, folder.log(trial.number), resume, goes_on=goes_on)

    def _look_at(self, number: int) -> None:
        one = self._running[number]
        if not one.attempt.is_over():
            return
        words, again = one.attempt.failure()
        if words and again and one.attempts < ATTEMPTS:
            one.attempts += 1
            one.attempt = self._begun(one.trial)
            return
        del self._running[number]
        found = None if words else self._finished(one.trial, one.begun, one.attempts)
        self._note(
            found
            or TrialResult(
                trial=one.trial,
                score=None,
                samples=0,
                seconds=0.0,
                wall=time.monotonic() - one.begun,
                failure=words or "it ended without a result",
                attempts=one.attempts,
            )
        )

    def _note(self, result: TrialResult) -> None:
        self._folder.note(result)
        self._known[result.trial.number] = result
        following = min([*self._running, self._next])
        while self._cleared in self._known:
            if self._method.may_be_continued(self._cleared, following, self._plan):
                break
            self._folder.clear_checkpoints(self._cleared)
            self._cleared += 1

    def _finished(self, trial: Trial, begun: float, attempts: int) -> TrialResult | None:
        """The result of a trial whose run has finished; None if it has not."""
        return result_of(
            trial, self._folder.run(trial.number), self._metric, time.monotonic() - begun, attempts
        )


def result_of(
    trial: Trial, folder: Path, metric: str, wall: float = 0.0, attempts: int = 1
) -> TrialResult | None:
    """The result of a run in a folder; None if it has not finished."""
    try:
        run = Run(folder)
        if run.status != "finished":
            return None
    except (OSError, ValueError):
        return None
    metrics = {name: value for name, value in run.metrics.items() if math.isfinite(value)}
    return TrialResult(
        trial=trial,
        score=metrics.get(metric),
        samples=trial.until or run.samples,
        seconds=run.seconds,
        wall=wall,
        metrics=metrics,
        failure="" if metric in metrics else f"it has no finite {metric}",
        attempts=attempts,
    )
