"""Krum: the one update that is nearest to most of the others."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from manyhands.protocols.aggregation.aggregator import Aggregator

if TYPE_CHECKING:
    from collections.abc import Sequence

    import torch


@dataclass(frozen=True, repr=False)
class Krum(Aggregator):
    """Step with the update of one worker: the one with the nearest neighbours.

    The score of update i is Σ‖g_i − g_j‖² over its n − f − 2 nearest others j; the update with the
    least score is taken, the first of equal ones. With n ≥ 2f + 3 updates, of which up to f are
    wrong, it points in the right direction on average. All updates count the same, however many
    samples they were computed from. If fewer updates arrive, because workers are lost or refused,
    f is lowered to ⌊(n − 3)/2⌋, and at least to 0.

    Use it if up to f workers may send anything. A step uses the samples of one worker instead of
    all, so it is as noisy as one with a batch n times smaller. A server computes n²/2 distances.

    Example: `synchronous(aggregate=krum(2))`

    Paper: Blanchard, El Mhamdi, Guerraoui, Stainer, Machine Learning with Adversaries: Byzantine
    Tolerant Gradient Descent, NIPS 2017.
    """

    name: ClassVar[str] = "krum"

    f: int = 1
    """The largest number of wrong workers."""

    def __post_init__(self) -> None:
        if self.f < 0:
            raise ValueError(f"f must be 0 or more, got {self.f}")

    @property
    def least(self) -> int:
        """2f + 3."""
        return 2 * self.f + 3

    def combine(
        self, rows: Sequence[Sequence[torch.Tensor]], weights: Sequence[float], counted: int
    ) -> list[torch.Tensor]:
        """The update with the least score."""
        del weights
        chosen = rows[self.choose([row[:counted] for row in rows])]
        return [vector.clone() for vector in chosen]

    def choose(self, rows: Sequence[Sequence[torch.Tensor]]) -> int:
        """The index of the update with the least score."""
        count = len(rows)
        wrong = max(0, min(self.f, (count - 3) // 2))
        near = max(0, count - wrong - 2)
        apart = [[0.0] * count for _ in rows]
        for one in range(count):
            for other in range(one):
                apart[one][other] = apart[other][one] = _squared_distance(rows[one], rows[other])
        scores = [
            sum(sorted(apart[one][other] for other in range(count) if other != one)[:near])
            for one in range(count)
        ]
        return scores.index(min(scores))


def _squared_distance(one: Sequence[torch.Tensor], other: Sequence[torch.Tensor]) -> float:
    import torch  # noqa: PLC0415 - a description loads without torch

    squares = ((a - b).square().sum(dtype=torch.float64) for a, b in zip(one, other, strict=True))
    return float(sum(squares))
