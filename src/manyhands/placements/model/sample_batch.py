"""Sample inputs of a job, for the inspection of its model."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from manyhands.data.taking import preview
from manyhands.splitting import (
    Unsplittable,
)

if TYPE_CHECKING:
    from manyhands.job import Job


def example(job: Job, samples: int) -> torch.Tensor:
    """The inputs of the first samples of a job's data."""
    inputs = preview(job.data, job.collate_fn, samples)[0]
    if not isinstance(inputs, torch.Tensor):
        raise Unsplittable(
            f"expected inputs in one tensor, got a {type(inputs).__name__}: pack them into one "
            "tensor, and unpack it in the model"
        )
    return inputs[torch.arange(samples) % len(inputs)]
