"""Batches from data: the fastest way that a dataset offers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from torch.utils.data import DataLoader, TensorDataset

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    import torch

    from manyhands.job import Job, SizedData


@runtime_checkable
class TakesBatches(Protocol):
    """Data that gives a whole batch at once."""

    def take(self, indices: torch.Tensor) -> Any:
        """The batch of these samples."""


def batches(job: Job, data: SizedData, wanted: Iterable[torch.Tensor]) -> Iterator[Any]:
    """The batches with the wanted samples, in order.

    Data with `take(indices)` and tensors are indexed as a whole; any other dataset, and any that
    the job collates itself, is read through a DataLoader, by `job.loaders` processes if there
    are any.
    """
    if isinstance(data, TakesBatches) and job.collate is None:
        return (data.take(indices) for indices in wanted)
    if isinstance(data, TensorDataset) and job.collate is None:
        return (tuple(tensor[indices] for tensor in data.tensors) for indices in wanted)
    loader: DataLoader[Any] = DataLoader(
        data,  # type: ignore[arg-type]  # a map-style dataset need not derive from Dataset
        batch_sampler=_IndexLists(wanted),
        num_workers=job.loaders,
        collate_fn=job.collate,
    )
    return iter(loader)


class _IndexLists:
    """Index tensors as the lists that a DataLoader expects."""

    def __init__(self, wanted: Iterable[torch.Tensor]) -> None:
        self._wanted = wanted

    def __iter__(self) -> Iterator[list[int]]:
        return (indices.tolist() for indices in self._wanted)


def move(value: Any, device: torch.device) -> Any:
    """A batch, with every tensor in it, on a device."""
    if device.type == "cpu":
        return value
    if isinstance(value, dict):
        return {key: move(item, device) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return type(value)(move(item, device) for item in value)
    return value.to(device, non_blocking=True) if hasattr(value, "to") else value


def as_pair(batch: Any) -> tuple[Any, Any]:
    """A batch's inputs and targets."""
    if isinstance(batch, (list, tuple)) and len(batch) == 2:
        return batch[0], batch[1]
    raise TypeError(
        "each sample of the data must be a pair (input, target); "
        f"a batch of it is a {type(batch).__name__}"
        + (f" of {len(batch)}" if isinstance(batch, (list, tuple)) else "")
    )


def prepare(job: Job) -> None:
    """What must happen once per host before workers start: the job's own and its data's."""
    if job.prepare is not None:
        job.prepare()
    for data in (job.data, job.validation):
        own = getattr(data, "prepare", None)
        if callable(own):
            own()
