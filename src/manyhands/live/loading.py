"""Batches from data: the fastest way that a data set offers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from manyhands.data.taking import fetch, taker
from manyhands.live.loader import Loader

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    import torch

    from manyhands.job import Job, SizedData


class Loading:
    """A worker's batches, the fastest way that its data sets offer.

    Data with `take(indices)` and tensors are indexed as a whole; any other data, and any that the
    job collates itself, is loaded sample by sample, in `job.loaders` processes if there are any.
    The processes of a data set are kept until `close`.
    """

    def __init__(self, job: Job) -> None:
        self._job = job
        self._idle: list[tuple[SizedData, Loader]] = []

    def batches(self, data: SizedData, wanted: Iterable[torch.Tensor]) -> Iterator[Any]:
        """The batches with the wanted samples, in order; some are loaded ahead."""
        job = self._job
        take = whole(job, data)
        if take is not None:
            yield from map(take, wanted)
        elif not job.loaders:
            for indices in wanted:
                yield fetch(data, job.collate, indices.tolist())
        else:
            yield from self._ahead(data, wanted)

    def _ahead(self, data: SizedData, wanted: Iterable[torch.Tensor]) -> Iterator[Any]:
        loader = self._loader(data)
        try:
            for indices in wanted:
                loader.ask(indices)
                if loader.pending > 2 * self._job.loaders:
                    yield loader.take()
            while loader.pending:
                yield loader.take()
        except BaseException:
            # Batches that are not wanted any more are still under way in it.
            loader.close()
            raise
        self._idle.append((data, loader))

    def _loader(self, data: SizedData) -> Loader:
        for at, (known, loader) in enumerate(self._idle):
            if known is data:
                del self._idle[at]
                return loader
        return Loader(self._job, data)

    def close(self) -> None:
        """End the processes."""
        for _, loader in self._idle:
            loader.close()
        self._idle = []


def whole(job: Job, data: SizedData) -> Callable[[torch.Tensor], Any] | None:
    """What gives a batch at once; None if the samples are to be loaded one by one."""
    return taker(data) if job.collate is None else None


def move(value: Any, device: torch.device) -> Any:
    """A batch, with every tensor in it, on a device."""
    if device.type == "cpu":
        return value
    if isinstance(value, dict):
        return {key: move(item, device) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return type(value)(move(item, device) for item in value)
    return value.to(device, non_blocking=True) if hasattr(value, "to") else value
