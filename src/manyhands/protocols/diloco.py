"""DiLoCo: local steps, and an outer optimizer with momentum on what came of them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Literal

from manyhands.protocols.actions import Action, Descend
from manyhands.protocols.averaging import Meeting

if TYPE_CHECKING:
    from manyhands.protocols.parts.rounds import Round


@dataclass(frozen=True, repr=False)
class DiLoCo(Meeting):
    """Take many steps alone, then one outer step with Nesterov momentum along the mean way.

    Δ = θ − mean(θ_n), the way the workers went in `every` inner steps, is the gradient of an
    outer step: v ← μ·v + Δ, θ ← θ − η·(Δ + μ·v). The inner optimizer is the job's own, and every
    worker keeps its state.

    Use it between sites or over the internet: with every=500 it moves five hundred times less than
    synchronous training. With every=1, outer_lr=1 and outer_momentum=0 it is `averaging(1)`. A
    worker that is lost takes at most one round of its own work along.

    Example: `diloco(every=500)`

    Paper: Douillard et al., DiLoCo: Distributed Low-Communication Training of Language Models,
    2023.
    """

    name: ClassVar[str] = "diloco"
    support: ClassVar[Literal["beta"]] = "beta"

    every: int = 50
    """Inner steps of each worker between two outer ones."""
    outer_lr: float = 0.7
    """η: the rate of the outer step."""
    outer_momentum: float = 0.9
    """μ: its momentum."""
    servers: int = 1
    """How many processes hold the parameters, an equal part each."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.outer_lr <= 0 or not 0 <= self.outer_momentum < 1:
            raise ValueError(
                f"outer_lr must be above 0, and outer_momentum at least 0 and below 1: "
                f"{self.outer_lr}, {self.outer_momentum}"
            )

    def conclude(self, state: Round) -> list[Action]:
        """One outer step along the mean way."""
        if not state.samples:
            return []
        return [Descend(state.samples, self.outer_lr, self.outer_momentum)]
