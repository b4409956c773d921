"""Batches from data: the fastest way that a dataset offers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch.utils.data import DataLoader

from manyhands.seeding import Seeded, epoch_seed

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from manyhands.job import Job, SizedData
    from manyhands.seeding import Draw

    Wanted = Iterable[tuple[int, torch.Tensor]]


def batches(job: Job, data: SizedData, wanted: Wanted) -> Iterator[Any]:
    """The batches with the wanted samples, in order; each is given as its epoch and indices.

    Data with `take(indices)` and tensors are indexed as a whole; any other dataset, and any that
    the job collates itself, is read through a DataLoader, by `job.loaders` processes if there
    are any. What the data draws depends on the job's seed, the epoch and the sample alone.
    """
    seeded = Seeded(data, job.collate)
    draws = ((epoch_seed(job.seed, epoch), indices) for epoch, indices in wanted)
    if seeded.take is not None:
        return _taken(seeded, draws)
    loader: DataLoader[Any] = DataLoader(
        seeded,  # type: ignore[arg-type]  # a map-style dataset need not derive from Dataset
        batch_sampler=_Draws(draws),  # type: ignore[arg-type]  # `Seeded` takes what it gives
        num_workers=job.loaders,
        collate_fn=job.collate,
        # Its own draws must not move the source that the model draws from.
        generator=torch.Generator().manual_seed(job.seed),
    )
    loaded = iter(loader)
    return loaded if job.loaders else _loaded_here(seeded, loaded)


def _taken(seeded: Seeded, draws: Iterable[tuple[int, torch.Tensor]]) -> Iterator[Any]:
    for seed, indices in draws:
        with seeded.drawing():
            batch = seeded.batch(seed, indices)
        yield batch


def _loaded_here(seeded: Seeded, loaded: Iterator[Any]) -> Iterator[Any]:
    while True:
        with seeded.drawing():
            try:
                batch = next(loaded)
            except StopIteration:
                return
        yield batch


class _Draws:
    """Seeds and index tensors as what a DataLoader passes on to `Seeded`."""

    def __init__(self, draws: Iterable[tuple[int, torch.Tensor]]) -> None:
        self._draws = draws

    def __iter__(self) -> Iterator[Draw]:
        return ((seed, indices.tolist()) for seed, indices in self._draws)


def move(value: Any, device: torch.device) -> Any:
    """A batch, with every tensor in it, on a device."""
    if device.type == "cpu":
        return value
    if isinstance(value, dict):
        return {key: move(item, device) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return type(value)(move(item, device) for item in value)
    return value.to(device, non_blocking=True) if hasattr(value, "to") else value
