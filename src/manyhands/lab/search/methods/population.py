"""Population-based training: members copy better ones, and change their values, while they train.

The run of each member is divided into rounds. After a round, members of the lowest quarter are
replaced (*exploit*): each continues from the checkpoint of a member of the highest quarter, with
values that are changed a little (*explore*). The values that the winner has had in its rounds are a
schedule that no constant setting has.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from manyhands.free import Integer, Uniform
from manyhands.lab.search.methods.method import SearchPlan, StatelessMethod
from manyhands.lab.search.trial import Trial

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy as np

    from manyhands.free import FreeParameter
    from manyhands.lab.search.trial import TrialResult


@dataclass(frozen=True, repr=False)
class Population(StatelessMethod):
    """Population-based training with truncation selection.

    A trial is one round of one member: 24 trials of 8 members are 3 rounds, each a third of a run.
    Parameters that decide the shapes of the model are copied and not changed.

    Paper: Jaderberg et al., Population Based Training of Neural Networks, 2017.
    """

    name: ClassVar[str] = "population"

    size: int = 8
    """Members."""
    replaced: float = 0.25
    """The fraction of the members that is replaced after a round, by as many of the best."""
    resample: float = 0.25
    """The probability that a value is drawn anew; otherwise it is multiplied."""
    factors: tuple[float, ...] = (0.8, 1.2)
    """What numbers are multiplied by, each with the same probability."""

    def __post_init__(self) -> None:
        if self.size < 2:
            raise ValueError(f"size must be at least 2 members, not {self.size}")
        if not 0 < self.replaced <= 0.5:
            raise ValueError(f"replaced must be above 0 and at most 0.5, not {self.replaced}")
        if not 0 <= self.resample <= 1:
            raise ValueError(f"resample must be from 0 to 1, not {self.resample}")
        if not self.factors or not all(factor > 0 for factor in self.factors):
            raise ValueError(f"factors must be above 0, not {self.factors}")

    def check(self, plan: SearchPlan) -> None:
        """Rounds must be whole, and runs must have samples to divide."""
        if plan.trials % self.size:
            rounds = max(1, plan.trials // self.size)
            raise ValueError(
                f"the trials of population(size={self.size}) are rounds of {self.size} members: "
                f"use {rounds * self.size} or {(rounds + 1) * self.size} trials, not {plan.trials}"
            )
        if len(plan.cuts) < plan.trials // self.size:
            raise ValueError(
                "population divides runs into rounds of samples: give the job a limit of epochs or "
                f"samples with at least {plan.trials // self.size} global batches"
            )

    def needed(self, number: int, plan: SearchPlan) -> int:  # noqa: ARG002 - the contract
        """All results of the round before."""
        return number // self.size * self.size

    def is_continued(self, trial: Trial, plan: SearchPlan) -> bool:
        """All but those of the last round."""
        return trial.number < plan.trials - self.size

    def may_be_continued(self, number: int, following: int, plan: SearchPlan) -> bool:
        """The trials of the round before one that is not complete."""
        is_last = number >= plan.trials - self.size
        return not is_last and number >= (following // self.size - 1) * self.size

    def propose(self, number: int, results: Sequence[TrialResult], plan: SearchPlan) -> Trial:
        """The trial of this number."""
        round_ = number // self.size
        rounds = plan.trials // self.size
        until = plan.until(round_ + 1, rounds)
        generator = plan.generator(number)
        order = plan.order(results[-self.size :]) if round_ else []
        alive = [one for one in order if one.is_finished]
        if not alive:
            reason = "drawn" if not round_ else "drawn: no member of the round before is left"
            values = plan.draw(generator)
            # The first round of a run, however late it is.
            return Trial(number=number, values=values, until=until, reason=reason)
        own = next(one for one in order if one.trial.number == number - self.size)
        count = max(1, int(self.replaced * self.size))
        if own.is_finished and own not in order[:count]:
            return Trial(
                number=number,
                values=own.trial.values,
                until=until,
                parent=own.trial.number,
                continues=True,
                reason="continued",
            )
        best = alive[-count:]
        donor = best[int(generator.integers(len(best)))].trial
        values = self.explored(donor.values, plan, generator)
        changed = [name for name, value in values.items() if value != donor.values[name]]
        words = f", {' and '.join(changed)} changed" if changed else ""
        return Trial(
            number=number,
            values=values,
            until=until,
            parent=donor.number,
            continues=True,
            reason=f"copy of {donor.number}{words}",
        )

    def explored(
        self, values: dict[str, Any], plan: SearchPlan, generator: np.random.Generator
    ) -> dict[str, Any]:
        """Values that are changed a little, within their bounds."""
        found = {}
        for name, value in values.items():
            # Drawn in any case: what one parameter is does not depend on the others.
            anew = generator.random() < self.resample
            factor = self.factors[int(generator.integers(len(self.factors)))]
            own = spawned(generator)
            one = plan.parameters[name]
            if name in plan.fixed:
                found[name] = value
            elif anew:
                found[name] = one.draw(own)
            else:
                found[name] = multiplied(one, value, factor, own)
        return found


def spawned(generator: np.random.Generator) -> np.random.Generator:
    """A generator of its own for one parameter."""
    return generator.spawn(1)[0]


def multiplied(
    parameter: FreeParameter, value: Any, factor: float, generator: np.random.Generator
) -> Any:
    """A value times a factor, within its bounds; of choices another one."""
    if isinstance(parameter, Uniform) and value:
        return parameter.nearest(value * factor)
    if isinstance(parameter, Integer) and value:
        moved = round(value * factor)
        moved += (moved == value) * (1 if factor > 1 else -1)
        return min(max(moved, parameter.low), parameter.high)
    return parameter.near(value, generator)
