"""Ring: parts of the vector go around the ring of workers.

Worker r sends to worker r + 1 and receives from worker r − 1, in every round one of n parts.

Reduce-scatter, n − 1 rounds: in round t worker r sends its sum of part r − t so far and adds part
r − t − 1 to its own. Then worker r has the whole sum of part r + 1.

All-gather, n − 1 rounds: in round t worker r sends the sum of part r + 1 − t, and receives that of
part r − t.

2(n − 1) rounds, 2m(n − 1)/n bytes per worker, for any n. Gloo's allreduce is this ring, with
segments of a part under way at the same time.

Paper: Patarasuk, Yuan, Bandwidth Optimal All-reduce Algorithms for Clusters of Workstations, 2009.
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


def ring(workers: int) -> ExchangeTable:
    """Allreduce: reduce-scatter, then all-gather.

    >>> [(one.sends.start, one.receives.start) for one in ring(3).rounds(0)]
    [(0, 2), (2, 1), (1, 0), (0, 2)]
    """
    check_workers(workers)

    def rounds(rank: int) -> Iterator[ExchangeRound]:
        return chain(_scattering(rank, workers), _gathering(rank, workers))

    return ExchangeTable(workers, workers, rounds)


def ring_reduce_scatter(workers: int) -> ExchangeTable:
    """The first half: afterwards every worker has the whole sum of one part."""
    check_workers(workers)
    return ExchangeTable(workers, workers, lambda rank: _scattering(rank, workers))


def ring_all_gather(workers: int) -> ExchangeTable:
    """The second half: every worker sends one part, and afterwards has all parts."""
    check_workers(workers)
    return ExchangeTable(workers, workers, lambda rank: _gathering(rank, workers))


def _scattering(rank: int, workers: int) -> Iterator[ExchangeRound]:
    for step in range(workers - 1):
        yield _pass_on(rank, workers, rank - step, adds=True)


def _gathering(rank: int, workers: int) -> Iterator[ExchangeRound]:
    for step in range(workers - 1):
        yield _pass_on(rank, workers, rank + 1 - step, adds=False)


def _pass_on(rank: int, workers: int, number: int, *, adds: bool) -> ExchangeRound:
    """Send a part to the next worker, and receive the part before it from the previous one."""
    mine, theirs = number % workers, (number - 1) % workers
    return ExchangeRound(
        sends=PartMessage((rank + 1) % workers, mine, mine + 1, adds),
        receives=PartMessage((rank - 1) % workers, theirs, theirs + 1, adds),
    )
