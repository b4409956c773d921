"""Trimmed mean: of every element, the largest and smallest numbers are left out."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, ClassVar

from manyhands.protocols.aggregation.aggregator import Aggregator, by_columns, weighted_mean

if TYPE_CHECKING:
    from collections.abc import Sequence

    import torch


@dataclass(frozen=True, repr=False)
class Trimmed(Aggregator):
    """Leave out the f largest and f smallest numbers of every element, and average the rest.

    The mean of what is left is weighted by samples. Up to f wrong workers of n ≥ 2f + 1 cannot move
    an element beyond the numbers of the others. If fewer updates arrive, because workers are lost
    or refused, f is lowered to what they allow: ⌊(n − 1)/2⌋. With f = 0 it is the mean.

    Use it if at most f workers are wrong: with small f it is closer to the mean than the median.

    Example: `synchronous(aggregate=trimmed(2))`

    Paper: Yin, Chen, Ramchandran, Bartlett, Byzantine-Robust Distributed Learning: Towards Optimal
    Statistical Rates, ICML 2018.
    """

    name: ClassVar[str] = "trimmed"

    f: int = 1
    """Numbers that are left out at each end."""

    def __post_init__(self) -> None:
        if self.f < 0:
            raise ValueError(f"f must be 0 or more, got {self.f}")

    @property
    def least(self) -> int:
        """2f + 1: one number has to be left."""
        return 2 * self.f + 1

    def combine(
        self, rows: Sequence[Sequence[torch.Tensor]], weights: Sequence[float], counted: int
    ) -> list[torch.Tensor]:
        """The mean of the middle numbers of every element."""
        del counted
        off = min(self.f, (len(rows) - 1) // 2)
        if not off:
            return [weighted_mean(vectors, weights) for vectors in zip(*rows, strict=True)]
        reduce = partial(_middle, off, weights)
        return [by_columns(vectors, reduce) for vectors in zip(*rows, strict=True)]


def _middle(off: int, weights: Sequence[float], matrix: torch.Tensor) -> torch.Tensor:
    ordered, order = matrix.sort(dim=0)
    kept = slice(off, len(matrix) - off)
    shares = matrix.new_tensor(weights)[order[kept]]
    return (ordered[kept] * shares).sum(dim=0) / shares.sum(dim=0)
