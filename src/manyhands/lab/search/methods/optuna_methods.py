"""Samplers and pruners of Optuna, behind its `ask` and `tell`: an extra."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from manyhands.failure import Refused
from manyhands.free import Choice, Integer, LogUniform, Uniform
from manyhands.free import Sequence as FreeSequence
from manyhands.lab.search.methods.method import Proposing, SearchMethod, SearchPlan
from manyhands.lab.search.trial import Trial

if TYPE_CHECKING:
    from collections.abc import Sequence

    from manyhands.free import FreeParameter
    from manyhands.lab.search.trial import TrialResult


@dataclass(frozen=True, repr=False)
class OptunaSearch(SearchMethod):
    """A sampler of Optuna, and a pruner: `pip install "manyhands[optuna]"`.

    With a pruner, each setting is trained in `rungs` parts, of which each is a trial; after a part
    the pruner decides whether the setting goes on, from its checkpoint, or ends.

    Paper: Akiba et al., Optuna: A Next-generation Hyperparameter Optimization Framework, KDD 2019.
    """

    name: ClassVar[str] = "optuna"

    sampler: Literal["tpe", "cmaes", "random", "gp", "qmc"] = "tpe"
    """Tree-structured Parzen estimator, CMA-ES, random, Gaussian process, quasi Monte Carlo."""
    pruner: Literal["none", "halving", "median", "hyperband"] = "none"
    """Successive halving, the median rule, or Hyperband."""
    rungs: int = 3
    """Parts into which a pruner divides runs."""

    def __post_init__(self) -> None:
        if self.rungs < 2:
            raise ValueError(f"rungs must be at least 2, not {self.rungs}")

    def check(self, plan: SearchPlan) -> None:
        """Optuna must be installed, and a pruner needs runs with samples to divide."""
        _optuna()
        if self.pruner != "none" and len(plan.cuts) < self.rungs:
            raise ValueError(
                f"a pruner divides runs into {self.rungs} parts: give the job a limit of epochs or "
                "samples with as many global batches"
            )

    def is_continued(self, trial: Trial, plan: SearchPlan) -> bool:
        """All but the last part of a setting."""
        return self.pruner != "none" and trial.until != plan.until(1, 1)

    def may_be_continued(self, number: int, following: int, plan: SearchPlan) -> bool:  # noqa: ARG002 - the contract
        """Any that a pruner has not ended."""
        return self.pruner != "none"

    def begin(self, plan: SearchPlan) -> Proposing:
        """What proposes the trials of one search."""
        return _Study(self, plan)


class _Study(Proposing):
    """A study of Optuna, which is asked for settings and told their results in order."""

    def __init__(self, method: OptunaSearch, plan: SearchPlan) -> None:
        optuna = _optuna()
        optuna.logging.set_verbosity(optuna.logging.WARNING)
        self._optuna, self._plan = optuna, plan
        self._parts = 1 if method.pruner == "none" else method.rungs
        self._study = optuna.create_study(
            direction="minimize" if plan.less_is_better else "maximize",
            sampler=_sampler(optuna, method.sampler, plan.seed),
            pruner=_pruner(optuna, method.pruner, method.rungs),
        )
        self._spaces = {
            name: one
            for parameter, free in plan.parameters.items()
            for name, one in _distributions(optuna, parameter, free).items()
        }
        self._asked: dict[int, tuple[Any, int]] = {}
        """By the number of a trial: the trial of Optuna, and which part of it this is."""
        self._going_on: deque[Trial] = deque()
        self._told = 0

    def propose(self, number: int, results: Sequence[TrialResult]) -> Trial:
        """The trial of this number."""
        for result in results[self._told :]:
            self._tell(result)
        self._told = len(results)
        if self._going_on:
            before = self._going_on.popleft()
            asked, part = self._asked[before.number]
            self._asked[number] = (asked, part + 1)
            return Trial(
                number=number,
                values=before.values,
                until=self._plan.until(part + 2, self._parts),
                parent=before.number,
                continues=True,
                reason=f"continued: part {part + 2} of {self._parts}",
            )
        asked = self._study.ask(self._spaces)
        self._asked[number] = (asked, 0)
        values = {
            name: _value(name, free, asked.params) for name, free in self._plan.parameters.items()
        }
        return Trial(
            number=number, values=values, until=self._plan.until(1, self._parts), reason="asked"
        )

    def _tell(self, result: TrialResult) -> None:
        asked, part = self._asked[result.trial.number]
        states = self._optuna.trial.TrialState
        if result.score is None:
            self._study.tell(asked, state=states.FAIL)
            return
        if self._parts > 1:
            asked.report(result.score, step=part + 1)
        if part + 1 == self._parts:
            self._study.tell(asked, result.score)
        elif asked.should_prune():
            self._study.tell(asked, state=states.PRUNED)
        else:
            self._going_on.append(result.trial)


def _optuna() -> Any:
    try:
        import optuna  # noqa: PLC0415 - an extra
    except ModuleNotFoundError:
        raise Refused(
            'optuna() needs the library of this name: pip install "manyhands[optuna]"; or use '
            "random(), population(), evolution() or swarm()"
        ) from None
    return optuna


def _sampler(optuna: Any, name: str, seed: int) -> Any:
    made = {
        "tpe": "TPESampler",
        "cmaes": "CmaEsSampler",
        "random": "RandomSampler",
        "gp": "GPSampler",
        "qmc": "QMCSampler",
    }
    try:
        return getattr(optuna.samplers, made[name])(seed=seed)
    except ImportError as error:
        raise Refused(f"Optuna's sampler {name} needs another library: {error}") from None


def _pruner(optuna: Any, name: str, rungs: int) -> Any:
    pruners = optuna.pruners
    match name:
        case "halving":
            return pruners.SuccessiveHalvingPruner(min_resource=1, reduction_factor=2)
        case "median":
            return pruners.MedianPruner(n_startup_trials=4)
        case "hyperband":
            return pruners.HyperbandPruner(1, rungs, reduction_factor=2)
    return pruners.NopPruner()


def _distributions(optuna: Any, name: str, free: FreeParameter) -> dict[str, Any]:
    kinds = optuna.distributions
    match free:
        case LogUniform(low=low, high=high):
            return {name: kinds.FloatDistribution(low, high, log=True)}
        case Uniform(low=low, high=high):
            return {name: kinds.FloatDistribution(low, high)}
        case Integer(low=low, high=high, scale=scale):
            return {name: kinds.IntDistribution(low, high, log=scale == "log")}
        case Choice(values=values):
            return {name: kinds.CategoricalDistribution(values)}
        case FreeSequence(of=of, shortest=shortest, longest=longest):
            items = kinds.CategoricalDistribution(of.values)
            length = {f"{name} length": kinds.IntDistribution(shortest, longest)}
            return length | {f"{name} {at}": items for at in range(longest)}
    raise TypeError(f"optuna() has no distribution for {free}")


def _value(name: str, free: FreeParameter, found: dict[str, Any]) -> Any:
    if isinstance(free, FreeSequence):
        return [found[f"{name} {at}"] for at in range(found[f"{name} length"])]
    return found[name]
