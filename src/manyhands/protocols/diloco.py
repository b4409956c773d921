"""DiLoCo: local steps, and an outer optimizer with Nesterov momentum on their mean."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Literal

from manyhands.protocols.actions import Action, Descend
from manyhands.protocols.averaging import LocalSteps

if TYPE_CHECKING:
    from manyhands.protocols.parts.rounds import Round


@dataclass(frozen=True, repr=False)
class DiLoCo(LocalSteps):
    """Take many local steps, then one outer step with Nesterov momentum on their mean change.

    Δ = θ − mean(θ_n), the mean change of the workers in `every` inner steps, is the gradient of an
    outer step: v ← μ·v + Δ, θ ← θ − η·(Δ + μ·v). The inner optimizer is the job's own, and every
    worker keeps its own optimizer state.

    Use it between sites or over the internet: with every=500 it moves 500 times fewer bytes than
    synchronous training. With every=1, outer_lr=1 and outer_momentum=0 it is `averaging(1)`. If a
    worker is lost, at most one round of its work is lost.

    Example: `diloco(every=500)`

    Paper: Douillard et al., DiLoCo: Distributed Low-Communication Training of Language Models,
    2023.
    """

    name: ClassVar[str] = "diloco"
    support: ClassVar[Literal["beta"]] = "beta"

    every: int = 50
    """Inner steps of each worker between two outer steps."""
    outer_lr: float = 0.7
    """η: the learning rate of the outer step."""
    outer_momentum: float = 0.9
    """μ: the momentum of the outer step."""
    servers: int = 1
    """Number of server processes; each holds an equal shard of the parameters."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.outer_lr <= 0 or not 0 <= self.outer_momentum < 1:
            raise ValueError(
                f"outer_lr must be above 0, and outer_momentum at least 0 and below 1, got "
                f"outer_lr={self.outer_lr}, outer_momentum={self.outer_momentum}"
            )

    def conclude(self, state: Round) -> list[Action]:
        """Take one outer step with the mean change."""
        if not state.samples:
            return []
        return [Descend(state.samples, self.outer_lr, self.outer_momentum)]
