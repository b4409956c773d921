"""Krum and Multi-Krum: the updates that are nearest to most of the others."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from manyhands.protocols.aggregation.aggregator import Aggregator, weighted_mean

if TYPE_CHECKING:
    from collections.abc import Sequence

    import torch


@dataclass(frozen=True, repr=False)
class Krum(Aggregator):
    """Step with the update that has the nearest neighbours, or with the mean of several such.

    The score of update i is Σ‖g_i − g_j‖² over its n − f − 2 nearest others j. Krum takes the
    update with the least score, the first of equal ones; Multi-Krum the mean of the `average` ones
    with the least scores, weighted by samples. With n ≥ 2f + 3 updates, of which up to f are wrong,
    Krum's points in the right direction on average. If fewer updates arrive, because workers are
    lost or refused, f is lowered to ⌊(n − 3)/2⌋, and at least to 0, and `average` to n − f.

    Use it if up to f workers may send anything. With `average=1` a step uses the samples of one
    worker instead of all, so it is as noisy as one with a batch n times smaller; with `average`
    = n − f it leaves out as many updates as may be wrong, and no more. A server computes n²/2
    distances.

    Example: `synchronous(aggregate=krum(2, average=8))`

    Paper: Blanchard, El Mhamdi, Guerraoui, Stainer, Machine Learning with Adversaries: Byzantine
    Tolerant Gradient Descent, NIPS 2017.
    """

    name: ClassVar[str] = "krum"

    f: int = 1
    """The largest number of wrong workers."""
    average: int = 1
    """Updates with the least scores of which the mean is taken, at most n − f: 1 is Krum, more
    Multi-Krum."""

    def __post_init__(self) -> None:
        if self.f < 0:
            raise ValueError(f"f must be 0 or more, got {self.f}")
        if self.average < 1:
            raise ValueError(f"average must be 1 or more, got {self.average}")

    @property
    def least(self) -> int:
        """2f + 3, and enough to leave out f."""
        return max(2 * self.f + 3, self.f + self.average)

    @property
    def limiting(self) -> str:
        """`average`, if more updates are averaged than f asks for."""
        return "average" if self.f + self.average > 2 * self.f + 3 else "f"

    def combine(
        self, rows: Sequence[Sequence[torch.Tensor]], weights: Sequence[float], counted: int
    ) -> list[torch.Tensor]:
        """The update with the least score, or the mean of several."""
        chosen = self.choose([row[:counted] for row in rows])
        if len(chosen) == 1:
            return [vector.clone() for vector in rows[chosen[0]]]
        kept = [weights[one] for one in chosen]
        return [
            weighted_mean(vectors, kept)
            for vectors in zip(*(rows[one] for one in chosen), strict=True)
        ]

    def choose(self, rows: Sequence[Sequence[torch.Tensor]]) -> list[int]:
        """The indices of the updates with the least scores, in the order of the updates."""
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
        best = sorted(range(count), key=scores.__getitem__)
        return sorted(best[: min(self.average, count - wrong)])


def _squared_distance(one: Sequence[torch.Tensor], other: Sequence[torch.Tensor]) -> float:
    import torch  # noqa: PLC0415 - a description loads without torch

    squares = ((a - b).square().sum(dtype=torch.float64) for a, b in zip(one, other, strict=True))
    return float(sum(squares))
