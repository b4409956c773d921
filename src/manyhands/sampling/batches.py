"""Division of a run's samples into global batches.

Both data paths use it: lockstep workers, each by itself, and the leases of other strategies. So all
strategies see the same batches.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator


@dataclass(frozen=True)
class BatchSizes:
    """The size of a full global batch, which may change in the course of a run.

    >>> growing = BatchSizes(((0, 128), (50_000, 512)))
    >>> growing.at(49_999), growing.at(50_000)
    (128, 512)
    """

    changes: tuple[tuple[int, int], ...]
    """Pairs (samples of the run before, size), in order; the first one begins at 0."""

    @classmethod
    def of(cls, sizes: int | BatchSizes) -> BatchSizes:
        """Batch sizes from a constant size, or unchanged."""
        return cls(((0, sizes),)) if isinstance(sizes, int) else sizes

    def at(self, dealt: int) -> int:
        """The size of a global batch that begins after `dealt` samples."""
        if len(self.changes) == 1:
            return self.changes[0][1]
        in_force = (size for begin, size in reversed(self.changes) if dealt >= begin)
        return next(in_force, self.changes[0][1])


@dataclass(frozen=True)
class EvaluationPoints:
    """After which global batches of a run an evaluation follows.

    Batches are not cut: it follows the batch that completes so many samples.

    Example:
        >>> import manyhands as mh
        >>> mh.EvaluationPoints(every=100).after(128, 1000), mh.EvaluationPoints().after(128, 1000)
        (200, 1000)
    """

    every: int | None = None
    """Samples of the run; None for no such interval."""
    epochs: bool = True
    """Whether one follows every epoch."""

    def after(self, dealt: int, samples: int) -> int | None:
        """The number of samples at which the first evaluation after `dealt` samples is due.

        Args:
            dealt: samples of the run.
            samples: samples of the data.
        """
        steps = (samples if self.epochs else None, self.every)
        return min(((dealt // step + 1) * step for step in steps if step), default=None)


AFTER_EPOCHS = EvaluationPoints()
"""One evaluation after every epoch."""


@dataclass(frozen=True)
class GlobalBatch:
    """The samples of one step of all workers together."""

    epoch: int
    start: int
    """Its first position in the epoch's permutation."""
    total: int
    """Number of samples: fewer than in a full batch at the end of an epoch or of the run."""
    whole: int
    """Number of samples of a full batch."""
    dealt: int
    """Samples of the run before it."""
    ends_epoch: bool
    """Whether an epoch or the run ends with it."""
    evaluates: bool
    """Whether an evaluation follows."""


def steps_before(samples: int, sizes: int | BatchSizes, dealt: int) -> int:
    """The number of global batches before one that begins after `dealt` samples.

    The last of them may have been cut by the limit of a run that is continued.

    >>> steps_before(10, 4, 0), steps_before(10, 4, 10), steps_before(10, 4, 14)
    (0, 3, 4)
    """
    sizes = BatchSizes.of(sizes)
    if len(sizes.changes) == 1:
        size = sizes.at(0)
        epochs, rest = divmod(dealt, samples)
        return epochs * -(-samples // size) + -(-rest // size)
    return sum(1 for _ in deal(samples, sizes, dealt)) if dealt else 0


def deal(
    samples: int,
    sizes: int | BatchSizes,
    budget: int | None,
    points: EvaluationPoints = AFTER_EPOCHS,
    dealt: int = 0,
) -> Iterator[GlobalBatch]:
    """The global batches of a run, in order.

    Args:
        samples: number of samples of the data.
        sizes: size of a full batch.
        budget: samples until the run ends, which cuts the last batch; None for no limit.
        points: after which batches an evaluation follows; one follows the last in any case.
        dealt: samples of the run before the first of these batches; a batch ends there.
    """
    if samples < 1:
        raise ValueError("the data is empty: give Job(data=...) at least 1 sample")
    sizes = BatchSizes.of(sizes)
    while budget is None or dealt < budget:
        epoch, start = divmod(dealt, samples)
        whole = sizes.at(dealt)
        total = min(whole, samples - start)
        if budget is not None:
            total = min(total, budget - dealt)
        done = dealt + total
        ends_epoch = start + total == samples or done == budget
        due = points.after(dealt, samples)
        evaluates = done == budget or (due is not None and done >= due)
        yield GlobalBatch(epoch, start, total, whole, dealt, ends_epoch, evaluates)
        dealt = done
