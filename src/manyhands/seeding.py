"""Seeding of a process's random generators: `random`, NumPy and torch together.

The random numbers that a dataset draws for a sample (augmentation) are a pure function of the job's
seed, the epoch and the sample's index. So workers that hold parts of one replica load the same
inputs, runs are repeatable, a sample that is leased again is the same, and it depends neither on
the number of workers, nor on loader processes, nor on whether the run is live or virtual.
"""

from __future__ import annotations

import contextlib
import random
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final, cast

import numpy as np
import torch
from torch.utils.data import Subset, TensorDataset, default_collate

from manyhands.data.stream import StreamReader, is_stream
from manyhands.data.taking import taker
from manyhands.sampling.permutation import mix, permutation
from manyhands.sampling.stream_parts import StreamedBatch, StreamPart

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from manyhands.data.sized import SizedData
    from manyhands.data.stream import StreamedData, StreamPlace
    from manyhands.job import Job

_SAMPLES: Final = 5
"""Purpose for `mix`: random numbers of the data."""
_SAMPLER: Final = 6
"""Purpose for `mix`: random numbers of a sampler."""
_AFTERWARDS: Final = 1
VALIDATION: Final = -1
"""The epoch of validation data, the same in every evaluation."""

Draw = tuple[int, list[int]]
"""A seed for this epoch, and the indices of samples."""


def seed_all(seed: int) -> None:
    """Seed `random`, NumPy's global generator, and torch's on every device."""
    seed_python(seed)
    torch.manual_seed(seed)


def seed_host(seed: int) -> None:
    """As `seed_all` without GPUs, which takes microseconds."""
    seed_python(seed)
    torch.default_generator.manual_seed(seed)


def seed_python(seed: int) -> None:
    """Seed `random` and NumPy's global generator."""
    random.seed(seed)
    np.random.seed(seed & 0xFFFFFFFF)


RandomState = tuple[torch.Tensor, tuple[Any, ...], dict[str, Any] | tuple[Any, ...]]


def random_state() -> RandomState:
    """The states of torch's, Python's and NumPy's global generators on the host."""
    return torch.get_rng_state(), random.getstate(), np.random.get_state()


def restore_random_state(state: RandomState) -> None:
    """Restore the states that `random_state` returned."""
    of_torch, of_python, of_numpy = state
    torch.set_rng_state(of_torch)
    random.setstate(of_python)
    np.random.set_state(of_numpy)


@lru_cache(maxsize=4)
def epoch_seed(seed: int, epoch: int) -> int:
    """The seed from which the seeds of an epoch's samples are derived."""
    return mix(seed, _SAMPLES, epoch)


class Seeded:
    """A dataset whose samples are each loaded with their own seed.

    Data that returns whole batches (`take` or `__getitems__`) is called once per batch, with the
    seed of the first sample. Afterwards torch's random state is restored for the model, and the
    others are seeded again.

    Args:
        data: a map-style dataset, or a stream, whose samples have positions as indices.
        collate: the job's `collate_fn`; it may draw random numbers as well.
        start: a place to begin at, if the data is a stream.
        places: whether to note places of a stream at which a later reader can begin.
    """

    def __init__(
        self,
        data: SizedData | StreamedData,
        collate: Callable[[list[Any]], Any] | None,
        start: StreamPlace | None = None,
        *,
        places: bool = False,
    ) -> None:
        self.data: Any = data
        self._stream: StreamReader | None = None
        if is_stream(data):
            self._stream = StreamReader(cast("StreamedData", data), start, places=places)
        self._collate = collate or default_collate
        self.take = taker(data) if collate is None else None
        """Returns a whole batch; None if samples have to be collated."""
        self.draws = collate is not None or type(data) not in (TensorDataset, list, tuple)
        """Whether loading may draw random numbers."""
        self._many = _many(data) if self._stream is None else None
        self._last = 0
        """The last seed."""

    def __len__(self) -> int:
        return len(self.data)

    def __getitems__(self, wanted: Draw) -> list[Any]:
        """The samples at some indices."""
        seed, indices = wanted
        if not self.draws:
            return [self.data[index] for index in indices]
        if self._many is not None:
            self._seed(mix(seed, indices[0]))
            return list(self._many(indices))
        if self._stream is not None:
            stream, read = self._stream, self._seeding(seed)
            return [stream.sample(index, read) for index in indices]
        samples = []
        for index in indices:
            self._seed(mix(seed, index))
            samples.append(self.data[index])
        return samples

    def batch(self, seed: int, indices: torch.Tensor) -> Any:
        """A whole batch, for data that returns one at once."""
        if self.take is None:
            raise TypeError(f"{type(self.data).__name__} returns samples, not whole batches")
        if self.draws:
            self._seed(mix(seed, int(indices[0])))
        return self.take(indices)

    def part(self, seed: int, wanted: StreamPart) -> StreamedBatch:
        """The batch of a part of a stream."""
        if self._stream is None:
            raise TypeError(f"{type(self.data).__name__} is no stream")
        begin = wanted.begin
        end = self._stream.end_by(begin, begin + wanted.total, self._seeding(seed))
        positions, counting, total = wanted.settle(end)
        samples = self.__getitems__((seed, list(range(*positions))))
        batch = self._collate(samples) if samples else None
        place, note = self._stream.place, self._stream.failed
        self._stream.place, self._stream.failed = None, ""
        return StreamedBatch(batch, counting, len(samples), total, end, place, note)

    def first(self, seed: int, samples: int) -> list[Any]:
        """The first samples, or all if there are fewer."""
        if self._stream is not None:
            samples = min(samples, self._stream.end_by(0, samples, self._seeding(seed)) or samples)
        else:
            samples = min(samples, len(self.data))
        return self.__getitems__((seed, list(range(samples))))

    def _seeding(self, seed: int) -> Callable[[int], None]:
        """A function that seeds the generators for the sample at a position."""
        return lambda position: self._seed(mix(seed, position))

    def _seed(self, seed: int) -> None:
        self._last = seed
        # The generator of a GPU belongs to the model.
        seed_host(seed)

    @contextlib.contextmanager
    def drawing(self) -> Iterator[None]:
        """Context for loading a batch in this process without changing the model's random state."""
        if not self.draws:
            yield
            return
        kept = torch.default_generator.get_state()
        try:
            yield
        finally:
            torch.default_generator.set_state(kept)
            # Their states are large: seeding takes a tenth of the time of saving and restoring.
            seed_python(mix(self._last, _AFTERWARDS))


def _many(data: object) -> Callable[[Sequence[int]], Sequence[Any]] | None:
    """The data's `__getitems__`; None if it only loads samples one by one."""
    inner: Any = data
    while isinstance(inner, Subset):
        inner = inner.dataset
    return getattr(data, "__getitems__", None) if hasattr(inner, "__getitems__") else None


class EpochOrder:
    """The indices of the samples of each epoch, in order; a permutation unless there is a sampler.

    A sampler is iterated once per epoch, with random numbers that depend only on the job's seed and
    the epoch, so all workers get the same indices.

    Args:
        job: the job with `data`, `seed` and `sampler`.
    """

    def __init__(self, job: Job) -> None:
        self._job = job
        self._known: dict[int, torch.Tensor] = {}

    def __call__(self, epoch: int) -> torch.Tensor:
        """The indices of an epoch.

        Raises:
            ValueError: the sampler returns another number of indices than its length.
        """
        if epoch not in self._known:
            # Leases of two epochs may alternate where one epoch ends.
            self._known = dict(list(self._known.items())[-1:])
            job = self._job
            permuted = job.sampler is None
            self._known[epoch] = (
                permutation(job.epoch_samples, job.seed, epoch) if permuted else self._draw(epoch)
            )
        return self._known[epoch]

    def _draw(self, epoch: int) -> torch.Tensor:
        sampler: Any = self._job.sampler
        seed = mix(self._job.seed, _SAMPLER, epoch)
        own = getattr(sampler, "generator", None)
        if isinstance(own, torch.Generator):
            own.manual_seed(seed)
        if hasattr(sampler, "set_epoch"):
            sampler.set_epoch(epoch)
        state = random_state()
        try:
            seed_host(seed)
            indices = [int(index) for index in sampler]
        finally:
            restore_random_state(state)
        if len(indices) != len(sampler):
            raise ValueError(
                f"the sampler has a length of {len(sampler)} and returned {len(indices)} indices "
                f"in epoch {epoch}: len(sampler) must be their number"
            )
        return torch.tensor(indices, dtype=torch.int64)
