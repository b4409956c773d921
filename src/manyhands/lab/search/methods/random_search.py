"""Random search: every trial has values of its own, drawn independently."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from manyhands.lab.search.methods.method import SearchPlan, StatelessMethod
from manyhands.lab.search.trial import Trial

if TYPE_CHECKING:
    from collections.abc import Sequence

    from manyhands.lab.search.trial import TrialResult


@dataclass(frozen=True, repr=False)
class RandomSearch(StatelessMethod):
    """Values that are drawn independently; every trial is trained to its end.

    Paper: Bergstra, Bengio, Random Search for Hyper-Parameter Optimization, JMLR 2012.
    """

    name: ClassVar[str] = "random"

    def needed(self, number: int, plan: SearchPlan) -> int:  # noqa: ARG002 - the contract
        """No result is needed."""
        return 0

    def propose(self, number: int, results: Sequence[TrialResult], plan: SearchPlan) -> Trial:  # noqa: ARG002 - the contract
        """The trial of this number."""
        values = plan.draw(plan.generator(number))
        return Trial(number=number, values=values, until=plan.until(1, 1), reason="drawn")
