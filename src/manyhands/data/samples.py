"""Base class of datasets: lazy, shared between processes, with fast loading of batches."""

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
    """Raise ValueError unless `split` is "train" or "test"."""
    if split not in get_args(Split):
        raise ValueError(f"split of {name} must be 'train' or 'test', got {split!r}")


@dataclass(frozen=True, repr=False, eq=False)
class Samples(Dataset[Pair], ABC):
    """A map-style dataset of `(input, target)` that is loaded on first use.

    Its constructor and its length need no file, so a script may construct it at module level in
    every process. `prepare()`, or the first access to a sample, finds or downloads the originals,
    verifies and decodes them; that happens once per host.
    """

    name: str
    split: Split
    decoded: Decoded

    @abstractmethod
    def __len__(self) -> int: ...

    @abstractmethod
    def _batch(self, rows: NDArray[np.int64]) -> Pair:
        """The samples of these rows, which are valid indices."""

    def prepare(self) -> None:
        """Find or download, verify and decode the samples on this host.

        It may be called any number of times, by several processes at once: one of them does the
        work, the others wait for it.
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
                f"got {indices.dtype} of shape {list(indices.shape)}"
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
        # A loader process that receives this object maps the files itself; a pickled map would be
        # a copy of the whole dataset.
        return {key: value for key, value in self.__dict__.items() if key != "_arrays"}

    def __repr__(self) -> str:
        return f"{self.name}({self.split!r})"


_INTEGERS = {torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64}
