"""An optimizer step that counts for more or less than one."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch


def weighted_step(optimizer: torch.optim.Optimizer, weight: float) -> None:
    """An optimizer step that acts with `weight`, by its learning rate.

    An update made from b samples weighs b / the global batch, times what the job's `rate` says.
    Scaling the gradient instead would do nothing under Adam, which divides by the gradient's own
    size.
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
