"""Local SGD: averaging, after a beginning in which the workers stay together."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Literal

from manyhands.protocols.actions import Action, Move
from manyhands.protocols.averaging import Meeting

if TYPE_CHECKING:
    from manyhands.protocols.parts.rounds import Round


@dataclass(frozen=True, repr=False)
class LocalSgd(Meeting):
    """Take `every` steps alone, then average; in the beginning, average after every step.

    x_n ← x_n − λ·∇f(x_n), and after every H steps x_n ← mean of all. Early in training the
    gradients change fast, and replicas that go their own ways cost accuracy; with a warm-up
    the first steps are taken together (post-local SGD).

    Use it as `averaging`: on slow networks, with workers of equal speed.

    Example: `local_sgd(every=8, warmup=100)`

    Papers: Stich, Local SGD Converges Fast and Communicates Little, ICLR 2019; Lin et al., Don't
    Use Large Mini-Batches, Use Local SGD, ICLR 2020 (warm-up).
    """

    name: ClassVar[str] = "local_sgd"
    support: ClassVar[Literal["beta"]] = "beta"

    every: int = 8
    """H: steps of each worker between two averages."""
    warmup: int = 0
    """So many first steps of each worker are averaged one by one."""
    servers: int = 1
    """How many processes hold the parameters, an equal part each."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.warmup < 0:
            raise ValueError(f"warmup must be 0 or more steps, not {self.warmup}")

    def conclude(self, state: Round) -> list[Action]:
        """The mean takes the place of what was there."""
        return [Move(by=1.0, over=state.samples)] if state.samples else []

    def interval(self, steps: int) -> int:
        """1 while warming up, then H."""
        return 1 if steps <= self.warmup else self.every
