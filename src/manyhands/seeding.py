"""Random sources of a process: `random`, NumPy and torch, seeded together.

What a dataset draws for a sample (augmentation) is a pure function of the job's seed, the epoch and
the sample's index. Workers that hold parts of one replica therefore load the same inputs, a run can
be repeated, a sample that is given again is the same sample, and neither the number of workers, nor
the loader processes, nor whether the run is live or virtual, changes it.
"""

from __future__ import annotations

import contextlib
import random
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import torch
from torch.utils.data import Subset, TensorDataset

from manyhands.data.taking import taker
from manyhands.sampling.permutation import mix

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from manyhands.job import SizedData

_SAMPLES: Final = 5
"""Distinguishes draws of the data from other uses of a seed."""
_AFTERWARDS: Final = 1
VALIDATION: Final = -1
"""The epoch of all validation data: it is the same in every evaluation."""

Draw = tuple[int, list[int]]
"""A seed for this epoch, and the indices of samples."""


def seed_all(seed: int) -> None:
    """Seed `random`, NumPy's global source and torch's on every device."""
    seed_python(seed)
    torch.manual_seed(seed)


def seed_host(seed: int) -> None:
    """The same without the sources of GPUs, which takes microseconds."""
    seed_python(seed)
    torch.default_generator.manual_seed(seed)


def seed_python(seed: int) -> None:
    """Seed `random` and NumPy's global source."""
    random.seed(seed)
    np.random.seed(seed & 0xFFFFFFFF)


RandomState = tuple[torch.Tensor, tuple[Any, ...], dict[str, Any] | tuple[Any, ...]]


def random_state() -> RandomState:
    """The states of torch's, Python's and NumPy's global sources on the host."""
    return torch.get_rng_state(), random.getstate(), np.random.get_state()


def restore_random_state(state: RandomState) -> None:
    """Have the sources continue where `random_state` was taken."""
    of_torch, of_python, of_numpy = state
    torch.set_rng_state(of_torch)
    random.setstate(of_python)
    np.random.set_state(of_numpy)


def epoch_seed(seed: int, epoch: int) -> int:
    """What the draws for all samples of an epoch derive from."""
    return mix(seed, _SAMPLES, epoch)


class Seeded:
    """Samples of a dataset, each drawn with a seed of its own.

    Data that gives whole batches (`take` or `__getitems__`) is called once per batch, with the seed
    of the first sample. The random state of the process is left to the model afterwards: torch's
    as it was, the others seeded anew.

    Args:
        data: a map-style dataset.
        collate: the job's own; it may draw as well.
    """

    def __init__(self, data: SizedData, collate: Callable[[list[Any]], Any] | None) -> None:
        self.data = data
        self.take = taker(data) if collate is None else None
        """Gives a batch at once; None where samples have to be collated."""
        self.draws = collate is not None or not isinstance(data, (TensorDataset, list, tuple))
        """Whether loading may draw random numbers."""
        self._many = _many(data)
        self._last = 0
        """What was seeded with last."""

    def __len__(self) -> int:
        return len(self.data)

    def __getitems__(self, wanted: Draw) -> list[Any]:
        """Some samples."""
        seed, indices = wanted
        if not self.draws:
            return [self.data[index] for index in indices]
        if self._many is not None:
            self._seed(mix(seed, indices[0]))
            return list(self._many(indices))
        samples = []
        for index in indices:
            self._seed(mix(seed, index))
            samples.append(self.data[index])
        return samples

    def batch(self, seed: int, indices: torch.Tensor) -> Any:
        """A batch of data that gives one at once."""
        if self.take is None:
            raise TypeError(f"{type(self.data).__name__} gives samples, not batches")
        if self.draws:
            self._seed(mix(seed, int(indices[0])))
        return self.take(indices)

    def _seed(self, seed: int) -> None:
        self._last = seed
        # The source of a GPU belongs to the model.
        seed_host(seed)

    @contextlib.contextmanager
    def drawing(self) -> Iterator[None]:
        """Load a batch in this process; the model draws as if it had come from another one."""
        if not self.draws:
            yield
            return
        kept = torch.default_generator.get_state()
        try:
            yield
        finally:
            torch.default_generator.set_state(kept)
            # Their states are large: seeding costs a tenth of keeping and restoring them.
            seed_python(mix(self._last, _AFTERWARDS))


def _many(data: object) -> Callable[[Sequence[int]], Sequence[Any]] | None:
    """What gives several samples at once, unless it only asks for one after the other."""
    inner: Any = data
    while isinstance(inner, Subset):
        inner = inner.dataset
    return getattr(data, "__getitems__", None) if hasattr(inner, "__getitems__") else None
