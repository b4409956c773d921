"""Direct exchanges: every worker sends to all others at the same time, or one to another."""

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


def all_to_all(workers: int) -> ExchangeTable:
    """Every worker sends one of n parts to each other, all at the same time, as Gloo does.

    The received parts are other values than the sent ones, so this states times and bytes only.

    >>> [(one.sends.peer, one.receives.peer) for one in all_to_all(3).rounds(0)]
    [(1, 2), (2, 1)]
    """
    return _directly(workers, adds=False)


def direct_reduce_scatter(workers: int) -> ExchangeTable:
    """Every worker sends each other its part at the same time, and adds up what it receives.

    Without a collective of its own in Gloo, this is how workers on CPUs do it: as many bytes as
    around a ring, and two latencies.

    >>> [one.receives.start for one in direct_reduce_scatter(3).rounds(1)]
    [1, 1]
    """
    return _directly(workers, adds=True)


def _directly(workers: int, *, adds: bool) -> ExchangeTable:
    check_workers(workers)

    def rounds(rank: int) -> Iterator[ExchangeRound]:
        for step in range(1, workers):
            to, sender = (rank + step) % workers, (rank - step) % workers
            yield ExchangeRound(
                PartMessage(to, to, to + 1, adds), PartMessage(sender, rank, rank + 1, adds)
            )

    return ExchangeTable(workers, workers, rounds, at_once=True)


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
