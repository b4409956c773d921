"""Batches from data, one at a time, in this process."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from torch.utils.data import default_collate

from manyhands.data.taking import as_pair, taker

if TYPE_CHECKING:
    from collections.abc import Callable

    import torch

    from manyhands.job import Job, SizedData


def loader(job: Job, data: SizedData) -> Callable[[torch.Tensor], tuple[Any, Any]]:
    """What gives the inputs and targets of samples, the fastest way that the data offers."""
    take = taker(data) if job.collate is None else None
    take = take or partial(_collate, data, job.collate or default_collate)
    return lambda indices: as_pair(take(indices))


def _collate(data: SizedData, collate: Callable[[list[Any]], Any], indices: torch.Tensor) -> Any:
    return collate([data[index] for index in indices.tolist()])
