"""Butterfly (recursive doubling): in round k, workers at the distance 2^k exchange their sums.

For n = 2^k workers: log2 n rounds, in each of which a worker sends its whole sum to worker
r XOR 2^k and adds what it receives. So both have the same sum, and after the last round all have.

Other n: with p = 2^⌊log2 n⌋, each of the n − p workers beyond p first sends its vector to worker
r − p, which adds it, and gets the whole sum from it at the end. In between the first p workers
exchange as above.

Paper: Thakur, Rabenseifner, Gropp, Optimization of Collective Communication Operations in MPICH,
2005.
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
    from collections.abc import Callable, Iterator


def butterfly(workers: int) -> ExchangeTable:
    """Allreduce by recursive doubling.

    >>> [one.sends.peer for one in butterfly(8).rounds(3)]
    [2, 1, 7]
    """
    check_workers(workers)
    power = power_of_two(workers)

    def rounds(rank: int) -> Iterator[ExchangeRound]:
        distance = 1
        while distance < power:
            whole = PartMessage(rank ^ distance, 0, 1, adds=True)
            yield ExchangeRound(sends=whole, receives=whole)
            distance *= 2

    return ExchangeTable(workers, 1, with_remainder(rounds, workers, parts=1))


def power_of_two(workers: int) -> int:
    """The largest power of two that is not above the number of workers: p.

    >>> power_of_two(7), power_of_two(8)
    (4, 8)
    """
    return 1 << (workers.bit_length() - 1)


def with_remainder(
    rounds: Callable[[int], Iterator[ExchangeRound]], workers: int, parts: int
) -> Callable[[int], Iterator[ExchangeRound]]:
    """Rounds of the first p workers, with a message from and to each of the workers beyond p."""
    power = power_of_two(workers)

    def all_rounds(rank: int) -> Iterator[ExchangeRound]:
        if rank >= power:
            yield ExchangeRound(sends=PartMessage(rank - power, 0, parts, adds=True))
            yield ExchangeRound(receives=PartMessage(rank - power, 0, parts))
            return
        beyond = rank + power
        if beyond < workers:
            yield ExchangeRound(receives=PartMessage(beyond, 0, parts, adds=True))
        yield from rounds(rank)
        if beyond < workers:
            yield ExchangeRound(sends=PartMessage(beyond, 0, parts))

    return all_rounds
