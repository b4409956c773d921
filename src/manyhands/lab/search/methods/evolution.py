"""Regularised evolution: the best of a few living trials has a child, and the oldest one dies."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from manyhands.lab.search.methods.method import SearchPlan, StatelessMethod
from manyhands.lab.search.trial import Trial

if TYPE_CHECKING:
    from collections.abc import Sequence

    from manyhands.lab.search.trial import TrialResult


@dataclass(frozen=True, repr=False)
class Evolution(StatelessMethod):
    """Regularised evolution: tournaments among the living, and the oldest dies, not the worst.

    A child has the values of its parent, and one of them changed: a number by a small step, a
    choice to another one, a sequence (the layers of a network) by an item more, less or other. It
    is trained from its start.

    Paper: Real et al., Regularized Evolution for Image Classifier Architecture Search, AAAI 2019.
    """

    name: ClassVar[str] = "evolution"

    size: int = 8
    """Living trials; those before are dead. The first of them are drawn."""
    tournament: int = 3
    """Living trials that are drawn; the best of them is the parent."""
    reach: float = 0.2
    """Standard deviation of a number's step, as a fraction of its range."""

    def __post_init__(self) -> None:
        if self.size < 2:
            raise ValueError(f"size must be at least 2, not {self.size}")
        if not 1 <= self.tournament <= self.size:
            raise ValueError(
                f"tournament must be from 1 to size={self.size}, not {self.tournament}"
            )
        if not 0 < self.reach <= 1:
            raise ValueError(f"reach must be above 0 and at most 1, not {self.reach}")

    def needed(self, number: int, plan: SearchPlan) -> int:
        """All but those that are made at the same time; none for the first, which are drawn."""
        return 0 if number < self.size else super().needed(number, plan)

    def propose(self, number: int, results: Sequence[TrialResult], plan: SearchPlan) -> Trial:
        """The trial of this number."""
        generator, until = plan.generator(number), plan.until(1, 1)
        living = [one for one in results[-self.size :] if one.is_finished]
        if number < self.size or not living:
            values = plan.draw(generator)
            return Trial(number=number, values=values, until=until, reason="drawn")
        count = min(self.tournament, len(living))
        rivals = [living[at] for at in generator.choice(len(living), count, replace=False)]
        parent = plan.order(rivals)[-1].trial
        name = [*plan.parameters][int(generator.integers(len(plan.parameters)))]
        changed = plan.parameters[name].near(parent.values[name], generator, self.reach)
        return Trial(
            number=number,
            values=parent.values | {name: changed},
            until=until,
            parent=parent.number,
            reason=f"child of {parent.number}, {name} changed",
        )
