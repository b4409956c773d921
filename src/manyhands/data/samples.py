"""What every set of samples is: lazy, shared between processes, and quick to take a batch from."""

from __future__ import annotations

import operator
from abc import ABC, abstractmethod
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Literal, TypeAlias, get_args

import numpy as np
import torch
from torch.utils.data import Dataset

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from manyhands.data.decoded import Bytes, Decoded

Split: TypeAlias = Literal["train", "test"]
Pair: TypeAlias = tuple[torch.Tensor, torch.Tensor]


def check_split(name: str, split: str) -> None:
    """Raise unless `split` is one that every set has."""
    if split not in get_args(Split):
        raise ValueError(f"{name} has the splits 'train' and 'test', not {split!r}")


@dataclass(frozen=True, repr=False, eq=False)
class Samples(Dataset[Pair], ABC):
    """A map-style dataset of `(input, target)` that costs nothing until it is used.

    To construct it reads no file, and its length is known without one, so a script may name it at
    module level in every process. `prepare()`, or else the first sample asked for, finds or
    downloads the originals, verifies and decodes them; that happens once per host.
    """

    name: str
    split: Split
    decoded: Decoded

    @abstractmethod
    def __len__(self) -> int: ...

    @abstractmethod
    def _batch(self, rows: NDArray[np.int64]) -> Pair:
        """The samples of these rows, all of them within the length."""

    def prepare(self) -> None:
        """Have the decoded samples on this host.

        It may be called any number of times, by any number of processes at once: one of them does
        the work, the others wait for it.
        """
        self.decoded.arrays()

    def __getitem__(self, index: int) -> Pair:
        row = operator.index(index)
        if not -len(self) <= row < len(self):
            raise IndexError(f"{self!r} has {len(self):,} samples and none at {row}")
        inputs, targets = self._batch(np.array([row % len(self)]))
        return inputs[0], targets[0]

    def take(self, indices: torch.Tensor) -> Pair:
        """The samples at `indices` as one batch: inputs and targets, stacked in that order.

        Args:
            indices: one dimension of integers from 0 to the length; repeats are allowed.
        """
        if indices.dim() != 1 or indices.dtype not in _INTEGERS:
            raise ValueError(
                "indices must be integers in one dimension, "
                f"not {indices.dtype} of shape {list(indices.shape)}"
            )
        rows = indices.cpu().numpy().astype(np.int64, copy=False)
        outside = rows[(rows < 0) | (rows >= len(self))]
        if outside.size:
            raise IndexError(f"{self!r} has {len(self):,} samples and none at {outside[0]}")
        return self._batch(rows)

    @cached_property
    def _arrays(self) -> tuple[Bytes, ...]:
        return self.decoded.arrays()

    def __getstate__(self) -> dict[str, object]:
        # A loader process that is sent this object maps the files itself; a pickled map would be
        # a copy of the whole set.
        return {key: value for key, value in self.__dict__.items() if key != "_arrays"}

    def __repr__(self) -> str:
        return f"{self.name}({self.split!r})"


_INTEGERS = {torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64}
