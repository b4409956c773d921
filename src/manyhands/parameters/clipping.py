"""Clipping of gradients by their norm."""

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
