"""Table of a pipeline schedule: for every rank its actions in order.

A model is split into stages, a batch into microbatches. Stage s is on rank s mod p of p ranks, so a
rank has one stage, or several that are p apart. A table defines the order of each rank's
computations; their times follow from dependencies and are computed by `replay`. A table has no
explicit waits: an action starts when its rank is free and its inputs have arrived.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

Kind = Literal["forward", "input", "weight", "backward"]
"""Kind of a computation for one microbatch in one stage.

`forward`; then either the whole `backward`, or two halves: `input`, the gradient for the previous
stage, and any time later `weight`, the gradients of this stage's parameters.
"""

LETTERS: Final[dict[Kind, str]] = {"forward": "F", "input": "I", "weight": "W", "backward": "B"}
"""Letters of the kinds, as in papers and in torch."""


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
    """A schedule: the actions of each rank, in order."""

    stages: int
    microbatches: int
    ranks: tuple[tuple[Action, ...], ...]

    def rank_of(self, stage: int) -> int:
        """The rank of a stage."""
        return stage % len(self.ranks)

    def in_flight(self, rank: int) -> int:
        """The largest number of microbatches whose activations a rank holds at the same time.

        A microbatch is held from its forward to the end of its backward (of the second half, if
        there are two); a rank with several stages holds it once for each.
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
