"""Data loading of a worker, by the fastest access that a data set offers."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from torch.utils.data import default_collate

from manyhands.data.taking import rebuilt
from manyhands.live.worker.loader_processes import LoaderProcesses
from manyhands.live.worker.stream_position import StreamPosition
from manyhands.sampling.stream_parts import StreamPart
from manyhands.seeding import Seeded, epoch_seed

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterable

    import torch

    from manyhands.data.sized import SizedData
    from manyhands.data.stream import StreamedData, StreamPlace
    from manyhands.job import Job

    Data = SizedData | StreamedData
    Wanted = Iterable[tuple[int, torch.Tensor | StreamPart]]


class Loading:
    """Loads a worker's batches by the fastest access that its data sets offer.

    Data with `take(indices)` and tensors are indexed with whole batches; other data, and all data
    of a job with `collate_fn`, is loaded sample by sample, in `job.num_workers` processes if there
    are any. The processes of a data set are kept until `close`. Random draws of the data depend
    only on the job's seed, the epoch and the sample.

    Args:
        job: the job.
        mark: called for every batch that is loaded: the worker gets on.
    """

    def __init__(self, job: Job, mark: Callable[[], object] = lambda: None) -> None:
        self._job = job
        self._mark = mark
        self._idle: list[tuple[Data, LoaderProcesses]] = []
        self.position = StreamPosition()
        """Where the job's stream is to be continued."""

    def batches(self, data: Data, wanted: Wanted) -> Generator[Any, None, None]:
        """The batches of the wanted samples, in order; each item is an epoch and indices.

        Of a stream, each item is an epoch and a part, and the batch is a `StreamedBatch`.

        With loader processes, some batches are loaded ahead.
        """
        start = self.position.start if data is self._job.data else None
        places = self._job.checkpoint is not None
        seeded = Seeded(data, self._job.collate_fn, start, places=places)
        draws = ((epoch_seed(self._job.seed, epoch), indices) for epoch, indices in wanted)
        if seeded.take is None and self._job.num_workers:
            loaded = self._ahead(data, draws, start)
        else:
            loaded = (load_here(self._job, seeded, *draw) for draw in draws)
        with contextlib.closing(loaded):
            for batch in loaded:
                self._mark()
                yield batch

    def _ahead(
        self, data: Data, draws: Wanted, start: StreamPlace | None
    ) -> Generator[Any, None, None]:
        loader = self._loader(data, start)
        try:
            for seed, indices in draws:
                loader.ask(seed, indices)
                if loader.pending > 2 * self._job.num_workers:
                    yield loader.take()
            while loader.pending:
                yield loader.take()
        except BaseException:
            # Its processes still load batches that are no longer wanted.
            loader.close()
            raise
        self._idle.append((data, loader))

    def _loader(self, data: Data, start: StreamPlace | None) -> LoaderProcesses:
        for at, (known, loader) in enumerate(self._idle):
            if known is data:
                del self._idle[at]
                return loader
        return LoaderProcesses(self._job, data, start)

    def close(self) -> None:
        """End the loader processes."""
        for _, loader in self._idle:
            loader.close()
        self._idle = []


def load_here(job: Job, seeded: Seeded, seed: int, indices: torch.Tensor | StreamPart) -> Any:
    """Load a batch in this process; of a stream, a `StreamedBatch`."""
    if isinstance(indices, StreamPart):
        with seeded.drawing():
            return seeded.part(seed, indices)
    if seeded.take is not None and not seeded.draws:
        return seeded.take(indices)
    with seeded.drawing():
        if seeded.take is not None:
            return seeded.batch(seed, indices)
        samples = seeded.__getitems__((seed, indices.tolist()))
        return (job.collate_fn or default_collate)(samples)


def move(value: Any, device: torch.device) -> Any:
    """Move all tensors of a batch to a device."""
    if device.type == "cpu":
        return value
    if isinstance(value, Mapping):
        return rebuilt(value, {key: move(item, device) for key, item in value.items()})
    if isinstance(value, (list, tuple)):
        return rebuilt(value, [move(item, device) for item in value])
    return value.to(device, non_blocking=True) if hasattr(value, "to") else value
