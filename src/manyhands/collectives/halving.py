"""Recursive halving and doubling (Rabenseifner): a reduce-scatter, then an all-gather.

For n = 2^k workers and n parts. Reduce-scatter by recursive halving: workers at the distance n/2
exchange halves of the vector, and each adds the half that it keeps; then at the distance n/4 they
exchange halves of that, and so on, until worker r has the whole sum of part r. All-gather by
recursive doubling: the same workers exchange the sums that they have, in the opposite order.

2·log2 n rounds and 2m(n − 1)/n bytes per worker. Other n: as in `manyhands.collectives.butterfly`.

Paper: Rabenseifner, Optimization of Collective Reduction Operations, 2004.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from manyhands.collectives.butterfly import power_of_two, with_remainder
from manyhands.collectives.exchange import (
    ExchangeRound,
    ExchangeTable,
    PartMessage,
    check_workers,
)

if TYPE_CHECKING:
    from collections.abc import Iterator


def halving(workers: int) -> ExchangeTable:
    """Allreduce by recursive halving and doubling.

    >>> [(one.sends.peer, one.sends.start, one.sends.stop) for one in halving(4).rounds(0)]
    [(2, 2, 4), (1, 1, 2), (1, 0, 1), (2, 0, 2)]
    """
    check_workers(workers)
    power = power_of_two(workers)

    def rounds(rank: int) -> Iterator[ExchangeRound]:
        start, stop = 0, power
        distance = power // 2
        while distance:
            middle = (start + stop) // 2
            lower, upper = (start, middle), (middle, stop)
            kept, given = (upper, lower) if rank & distance else (lower, upper)
            yield _exchange(rank ^ distance, given, kept, adds=True)
            start, stop = kept
            distance //= 2
        distance = 1
        while distance < power:
            own, size = (start, stop), stop - start
            other = (start - size, start) if rank & distance else (stop, stop + size)
            yield _exchange(rank ^ distance, own, other, adds=False)
            start, stop = min(start, other[0]), max(stop, other[1])
            distance *= 2

    return ExchangeTable(workers, power, with_remainder(rounds, workers, parts=power))


def _exchange(
    peer: int, sent: tuple[int, int], received: tuple[int, int], *, adds: bool
) -> ExchangeRound:
    return ExchangeRound(PartMessage(peer, *sent, adds), PartMessage(peer, *received, adds))
