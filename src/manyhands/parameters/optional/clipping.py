"""Norms of gradients: clipping, and their mean over batches."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch.nn.utils import get_total_norm

if TYPE_CHECKING:
    from collections.abc import Sequence


@torch.no_grad()
def clip_norm(gradients: Sequence[torch.Tensor], limit: float) -> None:
    """Scale all gradients by one factor such that their norm is at most `limit`.

    Bitwise equal to `torch.nn.utils.clip_grad_norm_`, for a list of gradient tensors.
    """
    factor = torch.clamp(limit / (get_total_norm(gradients) + 1e-6), max=1.0)
    for gradient in gradients:
        gradient.mul_(factor.to(gradient.device))


@torch.no_grad()
def norm(gradients: Sequence[torch.Tensor]) -> float:
    """The Euclidean norm of all gradients together."""
    return float(get_total_norm(gradients))


class MeanOf:
    """The mean of values since it was last taken."""

    def __init__(self) -> None:
        self._sum = 0.0
        self._count = 0

    def add(self, value: float) -> None:
        """Add a value."""
        self._sum += value
        self._count += 1

    def take(self) -> tuple[float, int] | None:
        """The mean and the number of values since the last call; None if there were none."""
        total, count = self._sum, self._count
        self._sum, self._count = 0.0, 0
        return (total / count, count) if count else None
