"""Shares of the global batch by the speed of workers, measured while they train."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Final

import msgspec

from manyhands.sampling.division import by_weight

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

EVERY: Final = 5
"""Global batches between two decisions on shares."""
_WORTH: Final = 0.03
"""The least part of a step's computing time that other shares must save."""


class SpeedState(msgspec.Struct, frozen=True):
    """The state of `MeasuredShares`."""

    shares: tuple[float, ...]
    """By rank, with a sum of 1."""
    measured: tuple[tuple[float, float], ...]
    """By rank, samples and seconds since the last decision."""
    rates: tuple[float, ...]
    """By rank, samples per second at the last decision; 0 if it was not measured yet."""
    divided: int
    """Global batches that were divided since the last decision."""


class MeasuredShares:
    """Divides global batches by speeds, for a process that hears how long workers computed.

    Shares are in proportion to samples per second, so that all workers need equally long. They are
    decided anew after every `EVERY` global batches, when all workers were measured since the last
    time, and depend on nothing but what was noted: a successor that repeats the notes has the same
    shares.

    Args:
        workers: number of workers; their first shares are equal.

    >>> measured = MeasuredShares(2)
    >>> [measured.divide(12) for _ in range(EVERY)][-1]
    (6, 6)
    >>> measured.note(0, 30, 3.0), measured.note(1, 30, 1.0)
    (None, None)
    >>> measured.divide(12)
    (3, 9)
    """

    def __init__(self, workers: int) -> None:
        self.shares = (1 / workers,) * workers
        """The part of a global batch that each worker gets, by rank."""
        self._measured = [(0.0, 0.0)] * workers
        self._rates = [0.0] * workers
        self._divided = 0

    def note(self, rank: int, samples: int, seconds: float) -> None:
        """Note how long a worker computed."""
        if 0 <= rank < len(self._measured) and samples > 0 and 0 < seconds < math.inf:
            before = self._measured[rank]
            self._measured[rank] = (before[0] + samples, before[1] + seconds)

    def divide(self, total: int, absent: Collection[int] = ()) -> tuple[int, ...]:
        """The samples of each worker in the next global batch.

        Args:
            total: samples of the batch.
            absent: ranks of lost workers, which are not measured; their speed is taken to be that
                of the last time.
        """
        if self._divided >= EVERY:
            self._decide(absent)
        self._divided += 1
        return by_weight(total, self.shares)

    def _decide(self, absent: Collection[int]) -> None:
        rates = list(self._rates)
        for rank, (samples, seconds) in enumerate(self._measured):
            if seconds:
                rates[rank] = samples / seconds
            elif rank not in absent:
                return
        self._rates, self._divided = rates, 0
        self._measured = [(0.0, 0.0)] * len(rates)
        self.shares = better_shares(self.shares, [(rate, float(rate > 0)) for rate in rates])

    def state(self) -> SpeedState:
        """The state, from which `restore` continues."""
        return SpeedState(self.shares, tuple(self._measured), tuple(self._rates), self._divided)

    def restore(self, state: SpeedState) -> None:
        """Continue from a state; without effect if it is one of another number of workers."""
        if len(state.shares) == len(self.shares):
            self.shares, self._divided = state.shares, state.divided
            self._measured, self._rates = list(state.measured), list(state.rates)


def better_shares(now: tuple[float, ...], measured: Sequence[Sequence[float]]) -> tuple[float, ...]:
    """Shares in proportion to measured speeds, if they save enough time; otherwise those of now.

    Args:
        now: the shares of workers, with a sum of 1.
        measured: samples and seconds of each.

    >>> better_shares((0.5, 0.5), [(30, 3.0), (30, 1.0)])
    (0.25, 0.75)
    >>> better_shares((0.5, 0.5), [(30, 1.01), (30, 1.0)])
    (0.5, 0.5)
    """
    if any(samples <= 0 or seconds <= 0 for samples, seconds in measured):
        return now
    rates = [samples / seconds for samples, seconds in measured]
    slowest = max(share / rate for share, rate in zip(now, rates, strict=True))
    if slowest * sum(rates) < 1 / (1 - _WORTH):
        return now
    return tuple(rate / sum(rates) for rate in rates)
