"""Topologies: the neighbours of a worker in a round.

Topologies in `GRAPHS` are symmetric, and neighbours have equally many neighbours in a round:
averaging with equal weights preserves the mean of all replicas. Those in `ONE_WAY` are directed.
"""

from __future__ import annotations

from collections.abc import Callable

Graph = Callable[[int, int, int], tuple[int, ...]]
"""A function of a rank, the number of workers and a round: the ranks of the neighbours."""


def ring(rank: int, workers: int, number: int) -> tuple[int, ...]:
    """The previous and the next rank.

    >>> ring(0, 5, 0), ring(0, 2, 0), ring(0, 1, 0)
    ((1, 4), (1,), ())
    """
    del number
    return _others(rank, {(rank + 1) % workers, (rank - 1) % workers})


def exponential(rank: int, workers: int, number: int) -> tuple[int, ...]:
    """The ranks 1, 2, 4, … away on a ring, in both directions.

    >>> exponential(0, 8, 0)
    (1, 2, 4, 6, 7)
    """
    del number
    steps = [1 << power for power in range(workers.bit_length()) if 1 << power <= workers // 2]
    return _others(rank, {(rank + way * step) % workers for step in steps for way in (1, -1)})


def random_pairs(rank: int, workers: int, number: int) -> tuple[int, ...]:
    """One other rank, a different one in every round; with an odd number one worker has none.

    The pairs of a round are those of a round-robin tournament, so that all workers compute the
    same pairs without communication.

    >>> [random_pairs(0, 4, number) for number in range(4)]
    [(3,), (1,), (2,), (3,)]
    >>> [random_pairs(2, 3, number) for number in range(3)]
    [(1,), (), (0,)]
    """
    size = workers + workers % 2
    if size < 2:
        return ()
    turn = number % (size - 1)
    # Circle method: all but the last rotate; the one paired with itself is paired with the last.
    if rank == size - 1:
        other = _paired_with_itself(turn, size - 1)
    else:
        other = (turn - rank) % (size - 1)
        other = size - 1 if other == rank else other
    return (other,) if other < workers else ()


def _paired_with_itself(turn: int, circle: int) -> int:
    return next(place for place in range(circle) if (2 * place - turn) % circle == 0)


def _others(rank: int, ranks: set[int]) -> tuple[int, ...]:
    return tuple(sorted(ranks - {rank}))


def next_one(rank: int, workers: int, number: int) -> tuple[int, ...]:
    """The next rank on a ring.

    >>> next_one(3, 4, 0), next_one(0, 1, 0)
    ((0,), ())
    """
    del number
    return _others(rank, {(rank + 1) % workers})


def further(rank: int, workers: int, number: int) -> tuple[int, ...]:
    """The rank 1, 2, 4, … further on a ring, a different one in every round.

    >>> [further(0, 6, number) for number in range(4)]
    [(1,), (2,), (4,), (1,)]
    """
    powers = max(1, (workers - 1).bit_length())
    return _others(rank, {(rank + (1 << number % powers)) % workers})


ONE_WAY: dict[str, Graph] = {"ring": next_one, "exponential": further}
"""Directed topologies: the ranks that a rank sends to."""

GRAPHS: dict[str, Graph] = {
    "ring": ring,
    "exponential": exponential,
    "random_pairs": random_pairs,
}
