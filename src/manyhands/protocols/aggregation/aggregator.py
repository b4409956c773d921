"""The contract of an aggregator: several updates become one."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from manyhands.notation import Value

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import torch

_COLUMNS = 1 << 16
"""Elements that are sorted at a time, so that memory does not grow with the model."""


@dataclass(frozen=True, repr=False)
class Aggregator(Value, ABC):
    """Base class of aggregators. An aggregator is a value without state."""

    needs_whole: ClassVar[bool] = False
    """Whether it needs whole updates, and so one server."""

    @property
    def least(self) -> int:
        """The fewest updates for which it holds what it promises."""
        return 1

    @property
    def limiting(self) -> str:
        """The option because of which it needs so many."""
        return "f"

    @abstractmethod
    def combine(
        self, rows: Sequence[Sequence[torch.Tensor]], weights: Sequence[float], counted: int
    ) -> list[torch.Tensor]:
        """One update of several.

        Args:
            rows: the updates, each as vectors: its parameters by dtype, then its buffers.
            weights: by update, its number of samples, or what its loss counts instead.
            counted: how many vectors of a row are parameters. Distances and norms are over these.

        Returns:
            New vectors, in the order of those of a row.
        """


def by_columns(
    rows: Sequence[torch.Tensor], reduce: Callable[[torch.Tensor], torch.Tensor]
) -> torch.Tensor:
    """Reduce every element over the updates.

    Args:
        rows: a vector of each update.
        reduce: from a matrix with one row per update to a vector.
    """
    import torch  # noqa: PLC0415 - a description loads without torch

    result = torch.empty_like(rows[0])
    for start in range(0, result.numel(), _COLUMNS):
        part = slice(start, start + _COLUMNS)
        result[part] = reduce(torch.stack([row[part] for row in rows]))
    return result


def weighted_mean(rows: Sequence[torch.Tensor], weights: Sequence[float]) -> torch.Tensor:
    """The mean over updates, summed in their order as a server without an aggregator does."""
    import torch  # noqa: PLC0415

    total, over = torch.zeros_like(rows[0]), 0.0
    for row, weight in zip(rows, weights, strict=True):
        total.add_(row, alpha=weight)
        over += weight
    return total.mul_(1 / over)
