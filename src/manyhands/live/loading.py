"""Batches from data: the fastest way that a dataset offers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from torch.utils.data import DataLoader

from manyhands.data.taking import taker

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    import torch

    from manyhands.job import Job, SizedData


def batches(job: Job, data: SizedData, wanted: Iterable[torch.Tensor]) -> Iterator[Any]:
    """The batches with the wanted samples, in order.

    Data with `take(indices)` and tensors are indexed as a whole; any other dataset, and any that
    the job collates itself, is read through a DataLoader, by `job.loaders` processes if there
    are any.
    """
    take = taker(data) if job.collate is None else None
    if take is not None:
        return map(take, wanted)
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
