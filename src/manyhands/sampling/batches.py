"""How the samples of a run become global batches, one after the other.

Both data paths deal by this: workers in lockstep each for itself, and the book of leases for those
that run free. So all strategies see the same batches.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator


@dataclass(frozen=True)
class BatchSizes:
    """How many samples a whole global batch has, which may change in the course of a run.

    >>> growing = BatchSizes(((0, 128), (50_000, 512)))
    >>> growing.at(49_999), growing.at(50_000)
    (128, 512)
    """

    changes: tuple[tuple[int, int], ...]
    """After so many samples, so large; in order, and the first one after none."""

    @classmethod
    def of(cls, sizes: int | BatchSizes) -> BatchSizes:
        """The same, of a size that never changes too."""
        return cls(((0, sizes),)) if isinstance(sizes, int) else sizes

    def at(self, dealt: int) -> int:
        """The size that is in force for a global batch that begins after so many samples."""
        in_force = (size for begin, size in reversed(self.changes) if dealt >= begin)
        return next(in_force, self.changes[0][1])


@dataclass(frozen=True)
class GlobalBatch:
    """The samples of one step of all workers together."""

    epoch: int
    start: int
    """Its first position in the order of the epoch."""
    total: int
    """How many they are: fewer than a whole one has at the end of an epoch or of the run."""
    whole: int
    """How many a whole one has here."""
    dealt: int
    """Samples of the run before it."""
    ends_epoch: bool
    """Whether an evaluation follows: the epoch ends with it, or the run."""


def deal(samples: int, sizes: int | BatchSizes, budget: int | None) -> Iterator[GlobalBatch]:
    """The global batches of a run, in order.

    Args:
        samples: how many the data has.
        sizes: how large a whole batch is.
        budget: samples until the run ends, which cuts the last batch; None for no limit.
    """
    if samples < 1:
        raise ValueError("the data is empty: there is nothing to train on")
    sizes, dealt = BatchSizes.of(sizes), 0
    while budget is None or dealt < budget:
        epoch, start = divmod(dealt, samples)
        whole = sizes.at(dealt)
        total = min(whole, samples - start)
        if budget is not None:
            total = min(total, budget - dealt)
        done = dealt + total
        ends_epoch = start + total == samples or done == budget
        yield GlobalBatch(epoch, start, total, whole, dealt, ends_epoch)
        dealt = done
