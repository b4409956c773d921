"""Exchanges without a sum: all-to-all in pairs, and a message from one worker to another.

Paper: Thakur, Rabenseifner, Gropp, Optimization of Collective Communication Operations in MPICH,
2005 (pairwise exchange).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from manyhands.collectives.exchange import (
    ExchangeRound,
    ExchangeTable,
    PartMessage,
    check_workers,
)

if TYPE_CHECKING:
    from collections.abc import Iterator


def pairwise_all_to_all(workers: int) -> ExchangeTable:
    """Every worker sends one of n parts to each other: in round t to r + t, n − 1 rounds.

    The received parts are other values than the sent ones, so this states times and bytes only.

    >>> [(one.sends.peer, one.receives.peer) for one in pairwise_all_to_all(3).rounds(0)]
    [(1, 2), (2, 1)]
    """
    check_workers(workers)

    def rounds(rank: int) -> Iterator[ExchangeRound]:
        for step in range(1, workers):
            to, sender = (rank + step) % workers, (rank - step) % workers
            yield ExchangeRound(PartMessage(to, to, to + 1), PartMessage(sender, rank, rank + 1))

    return ExchangeTable(workers, workers, rounds)


def one_message(workers: int = 2) -> ExchangeTable:
    """The first of two workers sends its vector to the second.

    >>> [one.receives.peer for one in one_message().rounds(1)]
    [0]
    """
    if workers != 2:
        raise ValueError(f"a message is between 2 workers, got {workers}")

    def rounds(rank: int) -> Iterator[ExchangeRound]:
        message = PartMessage(1 - rank, 0, 1)
        yield ExchangeRound(receives=message) if rank else ExchangeRound(sends=message)

    return ExchangeTable(2, 1, rounds)
