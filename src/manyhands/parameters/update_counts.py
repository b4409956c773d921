"""How many updates each worker has written into parameters that all of them share."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch


class UpdateCounts:
    """A count for every worker, which it alone writes: so no lock is needed to tell staleness.

    Args:
        counts: one whole number of eight bytes per worker, wherever they lie.
    """

    def __init__(self, counts: torch.Tensor) -> None:
        self._counts = counts

    def by_others(self, rank: int) -> int:
        """How many updates all others than worker `rank` have written."""
        return int(self._counts.sum() - self._counts[rank])

    def add(self, rank: int) -> None:
        """Worker `rank` has written one more."""
        self._counts[rank] += 1
