"""Binomial tree: the sum goes up to worker 0, and from there down to all.

Reduce: in round k worker r, if r is an odd multiple of 2^k, sends its sum to worker r − 2^k, which
adds it, and is done. Broadcast: the same edges in the opposite direction and order.

2⌈log2 n⌉ rounds with the whole vector, for any n; 2(n − 1) messages.

Paper: Thakur, Rabenseifner, Gropp, Optimization of Collective Communication Operations in MPICH,
2005.
"""

from __future__ import annotations

from itertools import chain
from typing import TYPE_CHECKING

from manyhands.collectives.exchange import (
    ExchangeRound,
    ExchangeTable,
    PartMessage,
    check_workers,
)

if TYPE_CHECKING:
    from collections.abc import Iterator


def tree(workers: int) -> ExchangeTable:
    """Allreduce: reduce to worker 0, then broadcast.

    >>> [(one.receives or one.sends).peer for one in tree(4).rounds(0)]
    [1, 2, 2, 1]
    """
    check_workers(workers)

    def rounds(rank: int) -> Iterator[ExchangeRound]:
        return chain(_reducing(rank, workers), _broadcasting(rank, workers))

    return ExchangeTable(workers, 1, rounds)


def tree_broadcast(workers: int) -> ExchangeTable:
    """The second half: all workers get the vector of worker 0."""
    check_workers(workers)
    return ExchangeTable(workers, 1, lambda rank: _broadcasting(rank, workers))


def _reducing(rank: int, workers: int) -> Iterator[ExchangeRound]:
    distance = 1
    while distance < workers:
        if rank & distance:
            yield ExchangeRound(sends=PartMessage(rank - distance, 0, 1, adds=True))
            return
        if rank + distance < workers:
            yield ExchangeRound(receives=PartMessage(rank + distance, 0, 1, adds=True))
        distance *= 2


def _broadcasting(rank: int, workers: int) -> Iterator[ExchangeRound]:
    """The rounds of the reduction, reversed, with senders and receivers exchanged."""
    for one in reversed([*_reducing(rank, workers)]):
        if one.sends is not None:
            yield ExchangeRound(receives=PartMessage(one.sends.peer, 0, 1))
        if one.receives is not None:
            yield ExchangeRound(sends=PartMessage(one.receives.peer, 0, 1))
