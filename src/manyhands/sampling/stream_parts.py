"""The parts of workers in the global batches of a stream, whose last batch may be short."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from manyhands.sampling.division import nested


@dataclass(frozen=True)
class StreamPart:
    """A worker's part of one global batch, before it is known whether the stream has all of it.

    Positions are samples since the beginning of the stream.

    Args:
        begin: the first position of the global batch.
        total: samples of the global batch.
        start: the first position of this worker.
        stop: the position after its last one.
        division: rank, workers and copies, if the samples that exist are divided evenly, as
            lockstep workers do; otherwise `start` and `stop` stay, as far as the stream reaches.

    >>> StreamPart(8, 8, 12, 16).settle(end=13)
    ((12, 13), 1, 5)
    >>> StreamPart(8, 8, 12, 16, division=(1, 2, 1)).settle(end=13)
    ((11, 13), 2, 5)
    """

    begin: int
    total: int
    start: int
    stop: int
    division: tuple[int, int, int] | None = None

    def settle(self, end: int | None) -> tuple[tuple[int, int], int, int]:
        """The positions to load, how many of them count, and the samples of the global batch.

        A lockstep worker without samples loads the first worker's, none of which count.

        Args:
            end: the number of samples of the stream, if that is at most the batch's end.
        """
        total = self.total if end is None else max(0, min(self.total, end - self.begin))
        if self.division is None:
            limit = self.begin + total
            start, stop = min(self.start, limit), min(self.stop, limit)
            return (start, stop), stop - start, total
        rank, workers, copies = self.division
        own = nested(total, rank, workers, copies)
        shown = own if own.stop > own.start else nested(total, 0, workers, copies)
        positions = self.begin + shown.start, self.begin + shown.stop
        return positions, own.stop - own.start, total


@dataclass(frozen=True)
class StreamedBatch:
    """What was loaded for a part."""

    batch: Any
    """None if there are no samples."""
    samples: int
    """How many of its samples count."""
    loaded: int
    """How many samples it was made of."""
    total: int
    """Samples of the global batch."""
    end: int | None
    """The number of samples of the stream, if it ends with this global batch or before it."""
    place: Any = None
    """The place in the stream after the global batch, if it has a state; see `StreamPlace`."""
    note: str = ""
    """Why a place to begin at was not used."""

    def is_void(self, *, lockstep: bool) -> bool:
        """Whether a lease of this part is given up, because the stream ends before it.

        Args:
            lockstep: whether workers wait for each other, so that each needs a part, even an empty
                one, of a global batch that has samples.
        """
        return not self.total or not (self.samples or lockstep)
