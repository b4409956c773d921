"""Coordinate-wise median of the workers' updates."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from manyhands.protocols.aggregation.aggregator import Aggregator, by_columns

if TYPE_CHECKING:
    from collections.abc import Sequence

    import torch


@dataclass(frozen=True, repr=False)
class Median(Aggregator):
    """Take the median of every element over the workers.

    With n updates it is the middle one of n sorted numbers; the mean of the two middle ones if n is
    even. Fewer than half of the workers cannot move it beyond the numbers of the others. All
    updates count the same, however many samples they were computed from.

    Use it if nothing is known about how many workers are wrong. On skewed gradients the median
    differs from the mean, also without any wrong worker.

    Example: `synchronous(aggregate=median)`

    Paper: Yin, Chen, Ramchandran, Bartlett, Byzantine-Robust Distributed Learning: Towards Optimal
    Statistical Rates, ICML 2018.
    """

    name: ClassVar[str] = "median"

    def combine(
        self, rows: Sequence[Sequence[torch.Tensor]], weights: Sequence[float], counted: int
    ) -> list[torch.Tensor]:
        """The median of every element."""
        del weights, counted
        return [by_columns(vectors, _median) for vectors in zip(*rows, strict=True)]


def _median(matrix: torch.Tensor) -> torch.Tensor:
    ordered = matrix.sort(dim=0).values
    upper = len(ordered) // 2
    if len(ordered) % 2:
        return ordered[upper]
    return (ordered[upper - 1] + ordered[upper]) / 2
