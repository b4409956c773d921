"""Counts of the updates that each worker has written into shared parameters."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch


class UpdateCounts:
    """A count per worker, written by that worker only, so that staleness needs no lock.

    Args:
        counts: one int64 per worker, for instance in shared memory.
    """

    def __init__(self, counts: torch.Tensor) -> None:
        self._counts = counts

    def by_others(self, rank: int) -> int:
        """Number of updates that all workers but `rank` have written."""
        return int(self._counts.sum() - self._counts[rank])

    def add(self, rank: int) -> None:
        """Count one more update of worker `rank`."""
        self._counts[rank] += 1
