"""Local SGD: averaging every H steps, after an optional warm-up with averages in every step."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Literal

from manyhands.protocols.actions import Action, Move
from manyhands.protocols.averaging import LocalSteps
from manyhands.sampling.rounds import RoundLength

if TYPE_CHECKING:
    from manyhands.protocols.parts.rounds import Round


@dataclass(frozen=True, repr=False)
class LocalSgd(LocalSteps):
    """Take `every` local steps, then average; during a warm-up, average after every step.

    x_n ← x_n − λ·∇f(x_n), and after every H steps x_n ← mean over all workers. Early in training
    gradients change fast, and replicas that diverge cost accuracy; with a warm-up the first steps
    are synchronised one by one (post-local SGD).

    Use it like `averaging`: on slow networks, with workers of equal speed.

    Example: `local_sgd(every=8, warmup=100)`

    Papers: Stich, Local SGD Converges Fast and Communicates Little, ICLR 2019; Lin et al., Don't
    Use Large Mini-Batches, Use Local SGD, ICLR 2020 (warm-up).
    """

    name: ClassVar[str] = "local_sgd"
    support: ClassVar[Literal["beta"]] = "beta"

    every: int = 8
    """H: steps of each worker between two averages."""
    warmup: int = 0
    """Number of first steps of each worker after each of which the parameters are averaged."""
    servers: int = 1
    """Number of server processes; each holds an equal shard of the parameters."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.warmup < 0:
            raise ValueError(f"warmup must be 0 or more steps, got {self.warmup}")

    def conclude(self, state: Round) -> list[Action]:
        """Replace the parameters with the mean."""
        return [Move(by=1.0, over=state.shares)] if state.samples else []

    @property
    def round_length(self) -> RoundLength:
        """1 during the warm-up, then H."""
        return RoundLength(self.every, self.warmup)
