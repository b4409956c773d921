"""Sample inputs of a job, for the inspection of its model."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch.utils.data import TensorDataset, default_collate

from manyhands.splitting import (
    Unsplittable,
)

if TYPE_CHECKING:
    from manyhands.job import Job


def example(job: Job, samples: int) -> torch.Tensor:
    """The inputs of the first samples of a job's data."""
    data: Any = job.data
    wanted = torch.arange(samples) % len(data)
    if hasattr(data, "take") and job.collate_fn is None:
        batch = data.take(wanted)
    elif isinstance(data, TensorDataset) and job.collate_fn is None:
        batch = [tensor[wanted] for tensor in data.tensors]
    else:
        batch = (job.collate_fn or default_collate)([data[index] for index in wanted.tolist()])
    inputs = batch[0]
    if not isinstance(inputs, torch.Tensor):
        raise Unsplittable(
            f"expected inputs in one tensor, got a {type(inputs).__name__}: pack them into one "
            "tensor, and unpack it in the model"
        )
    return inputs
