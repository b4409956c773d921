"""The script of a live comparison on two sites, as `benchmarks.sites` starts it."""

import time

import torch
from torch import nn

from benchmarks import sites


def sleeping(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """A loss that takes its time."""
    time.sleep(sites.SECONDS)
    return nn.functional.mse_loss(outputs, targets)


job = sites.job(sleeping)
