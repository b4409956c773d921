"""Samples of each batch, for lockstep strategies.

The global batch is a pure function of (seed, epoch, step), split by rank, so workers need not
communicate about data, and a run with another number of workers sees the same batches.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import islice
from typing import TYPE_CHECKING, Any

import torch

from manyhands.sampling.batches import AFTER_EPOCHS, deal
from manyhands.sampling.division import nested
from manyhands.sampling.mixing import mix as mix  # noqa: PLC0414 - a part of this module
from manyhands.sampling.stream_parts import StreamPart

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from manyhands.sampling.batches import BatchSizes, EvaluationPoints
    from manyhands.sampling.stream_parts import StreamedBatch


@dataclass(frozen=True)
class Share:
    """One worker's part of one global batch.

    Example:
        >>> import manyhands as mh
        >>> share = next(shares(10, mh.BatchSizes.of(4), 0, rank=1, workers=2, budget=10))
        >>> share.step, share.total, share.samples
        (0, 4, 2)
    """

    epoch: int
    step: int
    """Steps since the run began."""
    total: int
    """Samples of this global batch: fewer than in a full one at the end of an epoch or the run."""
    whole: int
    """Samples of a full global batch at this point of the run."""
    dealt: int
    """Samples of the run before this global batch."""
    indices: torch.Tensor
    """The samples of this worker. Never empty: see `samples`."""
    samples: int
    """How many of them count. A worker without samples computes on the first worker's part with
    weight zero, because collectives need all workers."""
    ends_epoch: bool
    evaluates: bool
    """Whether an evaluation follows."""
    computed: int
    """How many it has to compute with: as `samples`, or the first worker's."""
    streamed: Any = None
    """In place of indices: the part of a stream, a `StreamPart`."""
    is_last: bool = False
    """Whether the data ends with it."""


def as_loaded(share: Share, loaded: StreamedBatch) -> Share:
    """A share of a stream, now that the stream is read up to its end."""
    ended = loaded.end is not None
    return replace(
        share,
        total=loaded.total,
        samples=loaded.samples,
        computed=loaded.loaded,
        ends_epoch=False,
        evaluates=share.evaluates or ended,
        is_last=ended,
    )


_NONE = torch.empty(0, dtype=torch.int64)


@lru_cache(maxsize=2)
def permutation(samples: int, seed: int, epoch: int) -> torch.Tensor:
    """The permutation of samples in one epoch."""
    generator = torch.Generator().manual_seed(mix(seed, epoch))
    return torch.randperm(samples, generator=generator)


def member_seed(seed: int, rank: int) -> int:
    """The seed of one member of an ensemble: that of the first one is the run's seed."""
    return seed if rank == 0 else mix(seed, 4, rank)


def shares(
    samples: int,
    sizes: int | BatchSizes,
    seed: int,
    rank: int,
    workers: int,
    budget: int,
    copies: int = 1,
    points: EvaluationPoints = AFTER_EPOCHS,
    order: Callable[[int], torch.Tensor] | None = None,
    *,
    streams: bool = False,
    since: tuple[int, int] = (0, 0),
    first: int = 0,
    divide: Callable[[int, int], slice] | None = None,
) -> Iterator[Share]:
    """The shares of one worker, in order, until `budget` samples of all workers.

    Args:
        samples: number of samples of the data.
        sizes: size of a full global batch.
        seed: the run's seed.
        rank: the worker's rank.
        workers: number of workers.
        budget: samples until the run ends; the last global batch is cut to fit it exactly.
        copies: number of groups that a global batch is divided among first; each group divides its
            part among its workers.
        points: after which batches an evaluation follows.
        order: returns the indices of an epoch; by default a permutation.
        streams: whether the data is a stream.
        since: samples and steps of the run that are over.
        first: the first step; those before it are left out.
        divide: the worker's part of a global batch, by step and samples; by default an even one.
    """
    batches = enumerate(deal(samples, sizes, budget, points, dealt=since[0]), since[1])
    for step, one in islice(batches, max(0, first - since[1]), None):
        own = divide(step, one.total) if divide else nested(one.total, rank, workers, copies)
        # A worker without samples computes on those of the first.
        part = own if own.start < own.stop else nested(one.total, 0, workers, copies)
        if streams:
            mine = _NONE
            bounds = one.dealt + own.start, one.dealt + own.stop
            streamed = StreamPart(one.dealt, one.total, *bounds, (rank, workers, copies))
        else:
            indices = order(one.epoch) if order else permutation(samples, seed, one.epoch)
            mine, streamed = indices[one.start + part.start : one.start + part.stop], None
        yield Share(
            epoch=one.epoch,
            step=step,
            total=one.total,
            whole=one.whole,
            dealt=one.dealt,
            indices=mine,
            samples=own.stop - own.start,
            computed=part.stop - part.start,
            ends_epoch=one.ends_epoch,
            evaluates=one.evaluates,
            streamed=streamed,
        )
