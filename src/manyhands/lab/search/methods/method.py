"""What a method of search is: a function from the results so far to the next trial."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from manyhands.notation import Value

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from manyhands.free import FreeParameter
    from manyhands.lab.search.trial import Trial, TrialResult


@dataclass(frozen=True)
class SearchPlan:
    """What a method knows of the search."""

    parameters: Mapping[str, FreeParameter]
    """The job's free parameters, by name."""
    trials: int
    """Trials of the search."""
    seed: int = 0
    at_once: int = 1
    """Trials that are made at the same time."""
    less_is_better: bool = False
    cuts: tuple[int, ...] = ()
    """Samples at which a run can be divided: after a number of global batches. The last is its
    end. Empty if the job has no limit in samples or epochs."""
    fixed: frozenset[str] = field(default=frozenset())
    """Parameters that decide the shapes of the model: they cannot change in the middle of a run."""

    def generator(self, number: int) -> np.random.Generator:
        """The random numbers with which a trial is proposed."""
        return np.random.default_rng([self.seed, number])

    def draw(self, generator: np.random.Generator) -> dict[str, Any]:
        """Values of all parameters."""
        return {name: one.draw(generator) for name, one in self.parameters.items()}

    def until(self, part: int, parts: int) -> int | None:
        """Samples at the end of the first `part` of `parts` equal parts of a run."""
        if part == parts:
            return self.cuts[-1] if self.cuts else None
        return self.cuts[max(0, len(self.cuts) * part // parts - 1)]

    def order(self, results: Sequence[TrialResult]) -> list[TrialResult]:
        """Results from the worst to the best; of equal ones the earlier is better."""
        return sorted(results, key=self.rank)

    def rank(self, result: TrialResult) -> tuple[bool, float, int]:
        """A key that is larger for better results."""
        if result.score is None:
            return False, 0.0, -result.trial.number
        score = -result.score if self.less_is_better else result.score
        return True, score, -result.trial.number


class Proposing(ABC):
    """Proposes the trials of one search, in the order of their numbers."""

    @abstractmethod
    def propose(self, number: int, results: Sequence[TrialResult]) -> Trial:
        """The trial of this number.

        Args:
            number: its number.
            results: those of the first `needed(number)` trials, in the order of their numbers.
        """


@dataclass(frozen=True, repr=False)
class SearchMethod(Value, ABC):
    """A method of search: a frozen value, written like a strategy, as `population(size=8)`.

    A trial depends on the seed and on the results of the first `needed` trials alone, not on the
    order in which trials end. So a search that was interrupted, or whose trials were killed, goes
    on as it would have gone on.
    """

    def check(self, plan: SearchPlan) -> None:
        """Raise ValueError, with the fix, if the method cannot search this."""

    def needed(self, number: int, plan: SearchPlan) -> int:
        """How many results, of the first trials, are known when a trial is proposed."""
        return max(0, number - plan.at_once + 1)

    @abstractmethod
    def begin(self, plan: SearchPlan) -> Proposing:
        """What proposes the trials of one search."""

    def is_continued(self, trial: Trial, plan: SearchPlan) -> bool:  # noqa: ARG002 - a method may
        """Whether others may go on from a trial, so that it must store a checkpoint at its end."""
        return False

    def may_be_continued(self, number: int, following: int, plan: SearchPlan) -> bool:  # noqa: ARG002 - a method may
        """Whether a trial from `following` on may go on from this one's checkpoint."""
        return False

    def is_whole(self, result: TrialResult, plan: SearchPlan) -> bool:
        """Whether a result is of a run that was trained to its end."""
        return not plan.cuts or result.trial.until in (None, plan.cuts[-1])


@dataclass(frozen=True, repr=False)
class StatelessMethod(SearchMethod):
    """A method whose proposals are a function of the results alone."""

    @abstractmethod
    def propose(self, number: int, results: Sequence[TrialResult], plan: SearchPlan) -> Trial:
        """The trial of this number; arguments as of `Proposing.propose`."""

    def begin(self, plan: SearchPlan) -> Proposing:
        """What proposes the trials of one search."""
        return _OfValue(self, plan)


class _OfValue(Proposing):
    """Proposes by a method that has no state."""

    def __init__(self, method: StatelessMethod, plan: SearchPlan) -> None:
        self._method, self._plan = method, plan

    def propose(self, number: int, results: Sequence[TrialResult]) -> Trial:
        """The trial of this number."""
        return self._method.propose(number, results, self._plan)
