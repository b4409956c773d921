"""Seeding of a process's random generators: `random`, NumPy and torch together.

The random numbers that a dataset draws for a sample (augmentation) are a pure function of the job's
seed, the epoch and the sample's index. So workers that hold parts of one replica load the same
inputs, runs are repeatable, a sample that is leased again is the same, and it depends neither on
the number of workers, nor on loader processes, nor on whether the run is live or virtual.
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

    from manyhands.data.sized import SizedData

_SAMPLES: Final = 5
"""Purpose for `mix`: random numbers of the data."""
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


def epoch_seed(seed: int, epoch: int) -> int:
    """The seed from which the seeds of an epoch's samples are derived."""
    return mix(seed, _SAMPLES, epoch)


class Seeded:
    """A dataset whose samples are each loaded with their own seed.

    Data that returns whole batches (`take` or `__getitems__`) is called once per batch, with the
    seed of the first sample. Afterwards torch's random state is restored for the model, and the
    others are seeded again.

    Args:
        data: a map-style dataset.
        collate: the job's `collate_fn`; it may draw random numbers as well.
    """

    def __init__(self, data: SizedData, collate: Callable[[list[Any]], Any] | None) -> None:
        self.data = data
        self.take = taker(data) if collate is None else None
        """Returns a whole batch; None if samples have to be collated."""
        self.draws = collate is not None or type(data) not in (TensorDataset, list, tuple)
        """Whether loading may draw random numbers."""
        self._many = _many(data)
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
