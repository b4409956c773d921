"""Batches from data, one at a time, in this process."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from torch.utils.data import TensorDataset, default_collate

if TYPE_CHECKING:
    from collections.abc import Callable

    import torch

    from manyhands.job import Job, SizedData


@runtime_checkable
class TakesBatches(Protocol):
    """Data that gives a whole batch at once."""

    def take(self, indices: torch.Tensor) -> Any:
        """The batch of these samples."""


def loader(job: Job, data: SizedData) -> Callable[[torch.Tensor], tuple[Any, Any]]:
    """What gives the inputs and targets of samples, the fastest way that the data offers."""
    if isinstance(data, TakesBatches) and job.collate is None:
        take: Callable[[torch.Tensor], Any] = data.take
    elif isinstance(data, TensorDataset) and job.collate is None:
        take = partial(_index, data.tensors)
    else:
        take = partial(_collate, data, job.collate or default_collate)
    return lambda indices: _pair(take(indices))


def _index(tensors: tuple[torch.Tensor, ...], indices: torch.Tensor) -> Any:
    return tuple(tensor[indices] for tensor in tensors)


def _collate(data: SizedData, collate: Callable[[list[Any]], Any], indices: torch.Tensor) -> Any:
    return collate([data[index] for index in indices.tolist()])


def _pair(batch: Any) -> tuple[Any, Any]:
    if isinstance(batch, (list, tuple)) and len(batch) == 2:
        return batch[0], batch[1]
    raise TypeError(
        "each sample of the data must be a pair (input, target); "
        f"a batch of it is a {type(batch).__name__}"
        + (f" of {len(batch)}" if isinstance(batch, (list, tuple)) else "")
    )


def prepare(job: Job) -> None:
    """What must happen before a run starts: the job's own preparation and its data's."""
    if job.prepare is not None:
        job.prepare()
    for data in (job.data, job.validation):
        own = getattr(data, "prepare", None)
        if callable(own):
            own()
