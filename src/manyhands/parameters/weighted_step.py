"""Optimizer steps with a weight on the learning rate."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch


def weighted_step(optimizer: torch.optim.Optimizer, weight: float) -> None:
    """Take an optimizer step with the learning rates multiplied by `weight`.

    An update from b samples has the weight b / global batch, times the factor of the learning-rate
    schedule. Scaling the gradient instead would have no effect under Adam, which divides by the
    gradient's own magnitude.
    """
    if weight == 1:
        optimizer.step()
        return
    rates = [group["lr"] for group in optimizer.param_groups]
    for group in optimizer.param_groups:
        group["lr"] = group["lr"] * weight
    try:
        optimizer.step()
    finally:
        for group, rate in zip(optimizer.param_groups, rates, strict=True):
            group["lr"] = rate
