"""Exchange: which worker sends which part of a vector to which other worker, in which round.

A vector is divided into parts of nearly equal size, numbered from 0. In a round a worker sends at
most one message and receives at most one; it begins the next round when both have arrived. What is
received is added to the worker's own values of the same parts, or replaces them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


@dataclass(frozen=True, slots=True)
class PartMessage:
    """Parts of a vector that one worker sends and another receives."""

    peer: int
    """The receiver of a message that is sent; the sender of one that is received."""
    start: int
    """Number of the first part."""
    stop: int
    """Number after that of the last part."""
    adds: bool = False
    """Whether the receiver adds them to its own values; otherwise they replace these."""


@dataclass(frozen=True, slots=True)
class ExchangeRound:
    """What a worker sends and receives in one round; None for nothing."""

    sends: PartMessage | None = None
    receives: PartMessage | None = None


@dataclass(frozen=True)
class ExchangeTable:
    """An algorithm for a number of workers: the rounds of each of them.

    >>> from manyhands.collectives import butterfly
    >>> [one.sends.peer for one in butterfly(4).rounds(0)]
    [1, 2]
    """

    workers: int
    parts: int
    """Number of parts that the vector is divided into."""
    rounds: Callable[[int], Iterator[ExchangeRound]]
    """The rounds of a worker, given its rank, in order."""
    at_once: bool = False
    """Whether a worker begins all of its rounds together; otherwise one after the other."""

    def together(self, rank: int) -> Iterator[tuple[ExchangeRound, ...]]:
        """The rounds of a worker that it begins together, in order."""
        rounds = self.rounds(rank)
        return iter([tuple(rounds)]) if self.at_once else ((one,) for one in rounds)

    def bounds(self, size: int, message: PartMessage) -> tuple[int, int]:
        """The begin and the end of a message's parts in a vector of `size` elements or bytes."""
        return size * message.start // self.parts, size * message.stop // self.parts


def check_workers(workers: int) -> None:
    """Raise ValueError if there is no worker."""
    if workers < 1:
        raise ValueError(f"workers must be at least 1, got {workers}")
