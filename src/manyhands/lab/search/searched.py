"""The results of a search."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from manyhands.lab.search.journal import SearchFolder
from manyhands.reports import Run

if TYPE_CHECKING:
    from pathlib import Path

    from manyhands.lab.search.trial import Trial, TrialResult


@dataclass(frozen=True)
class Searched:
    """What `search` returns: every trial's result, and the best one.

    Example:
        >>> import manyhands as mh
        >>> [name for name in ("best", "results", "schedule") if hasattr(mh.Searched, name)]
        ['best', 'schedule']
    """

    folder: Path
    """The folder of the search."""
    metric: str
    less_is_better: bool
    method: str
    results: tuple[TrialResult, ...]
    """In the order of the trials."""
    whole: tuple[int, ...]
    """The trials that were trained to the job's limit."""
    command: str = ""
    """The command that trains the job with the best values."""
    report: Path | None = None
    """The page about it."""

    @property
    def best(self) -> TrialResult | None:
        """The best of the trials that were trained to the end; None if none was."""
        ended = set(self.whole)
        return self.best_of([one for one in self.results if one.trial.number in ended])

    def best_of(self, results: list[TrialResult]) -> TrialResult | None:
        """The best of some results; of equal ones the first."""
        scored = [(one.score, one) for one in results if one.score is not None]
        if not scored:
            return None
        pick = min if self.less_is_better else max
        return pick(scored, key=lambda pair: pair[0])[1]

    @property
    def ranking(self) -> list[TrialResult]:
        """The results, the best first; those trained to the end before all others."""
        sign = 1 if self.less_is_better else -1

        def place(one: TrialResult) -> tuple[bool, bool, float, int]:
            partial = one.trial.number not in self.whole
            return one.score is None, partial, sign * (one.score or 0.0), one.trial.number

        return sorted(self.results, key=place)

    def lineage(self, number: int) -> tuple[TrialResult, ...]:
        """A trial, and before it those whose checkpoints it goes on from, the first one first."""
        by_number = {one.trial.number: one for one in self.results}
        line = [by_number[number]]
        while line[0].trial.continues and line[0].trial.parent is not None:
            line.insert(0, by_number[line[0].trial.parent])
        return tuple(line)

    @property
    def schedule(self) -> tuple[Trial, ...]:
        """The values of the winner over its rounds; of one trial, if it was trained in one go."""
        best = self.best
        return () if best is None else tuple(one.trial for one in self.lineage(best.trial.number))

    @property
    def run(self) -> Run:
        """The run of the best trial, with its trained parameters.

        Raises:
            ValueError: no trial was trained to the end.
        """
        if self.best is None:
            raise ValueError("no trial of the search was trained to the end")
        return Run(SearchFolder(self.folder).run(self.best.trial.number))
