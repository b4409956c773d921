"""What a pipeline does, written down: for every rank its actions in order.

A model is split into stages, a batch into microbatches. Stage s lies on rank s mod p of p ranks, so
a rank has one stage, or several that are p apart. A table says in which order each rank computes;
when it computes follows from who waits for whom, which `replay` works out. No table holds a wait:
an action begins when its rank is free and what it needs has arrived.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

Kind = Literal["forward", "input", "weight", "backward"]
"""What is computed for one microbatch in one stage.

`forward`; then either `backward`, the whole of it, or in halves: `input`, the gradient for the
stage before, and any time later `weight`, the gradients of this stage's own parameters.
"""

LETTERS: Final[dict[Kind, str]] = {"forward": "F", "input": "I", "weight": "W", "backward": "B"}
"""As papers and torch write them."""


@dataclass(frozen=True, slots=True)
class Action:
    """One computation of one stage on one microbatch; written `2F0`: stage, letter, microbatch."""

    kind: Kind
    stage: int
    microbatch: int

    def __str__(self) -> str:
        return f"{self.stage}{LETTERS[self.kind]}{self.microbatch}"


@dataclass(frozen=True)
class Table:
    """A schedule for so many stages and microbatches: the actions of each rank, in order."""

    stages: int
    microbatches: int
    ranks: tuple[tuple[Action, ...], ...]

    def rank_of(self, stage: int) -> int:
        """The rank that a stage lies on."""
        return stage % len(self.ranks)

    def in_flight(self, rank: int) -> int:
        """The most microbatches that a rank holds activations of at once.

        One is held from its forward to the end of its backward, in halves to the end of the
        second; a rank with several stages holds it once for each.
        """
        held = most = 0
        for action in self.ranks[rank]:
            if action.kind == "forward":
                held += 1
                most = max(most, held)
            elif action.kind != "input":
                held -= 1
        return most

    def __str__(self) -> str:
        return "\n".join(
            f"rank {rank}: {' '.join(map(str, actions))}" for rank, actions in enumerate(self.ranks)
        )
