"""Batches from data, one at a time, in this process."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from manyhands.data.taking import as_pair, fetch, taker

if TYPE_CHECKING:
    from collections.abc import Callable

    import torch

    from manyhands.job import Job, SizedData


def loader(job: Job, data: SizedData) -> Callable[[torch.Tensor], tuple[Any, Any]]:
    """What gives the inputs and targets of samples, the fastest way that the data offers."""
    take = taker(data) if job.collate is None else None
    if take is not None:
        return lambda indices: as_pair(take(indices))
    return lambda indices: as_pair(fetch(data, job.collate, indices.tolist()))
