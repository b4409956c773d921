"""Who are neighbours, of those that mix with neighbours only.

Those of `GRAPHS` are symmetric, and in a round everybody has as many neighbours as they have:
mixing with equal weights keeps the mean of all. Those of `ONE_WAY` are not.
"""

from __future__ import annotations

from collections.abc import Callable

Graph = Callable[[int, int, int], tuple[int, ...]]
"""The neighbours of a rank, of so many workers, in a round."""


def ring(rank: int, workers: int, number: int) -> tuple[int, ...]:
    """The two beside it.

    >>> ring(0, 5, 0), ring(0, 2, 0), ring(0, 1, 0)
    ((1, 4), (1,), ())
    """
    del number
    return _others(rank, {(rank + 1) % workers, (rank - 1) % workers})


def exponential(rank: int, workers: int, number: int) -> tuple[int, ...]:
    """Those 1, 2, 4, … away on a ring, in both directions.

    >>> exponential(0, 8, 0)
    (1, 2, 4, 6, 7)
    """
    del number
    steps = [1 << power for power in range(workers.bit_length()) if 1 << power <= workers // 2]
    return _others(rank, {(rank + way * step) % workers for step in steps for way in (1, -1)})


def random_pairs(rank: int, workers: int, number: int) -> tuple[int, ...]:
    """One other, by lot and another in every round; with an odd number somebody has none.

    The lot is a rotation of the round-robin tournament, so that all of them agree without a word.

    >>> [random_pairs(0, 4, number) for number in range(4)]
    [(3,), (1,), (2,), (3,)]
    >>> [random_pairs(2, 3, number) for number in range(3)]
    [(1,), (), (0,)]
    """
    size = workers + workers % 2
    if size < 2:
        return ()
    turn = number % (size - 1)
    # All but the last sit on a circle that turns; whoever faces itself faces the last.
    if rank == size - 1:
        other = _facing_itself(turn, size - 1)
    else:
        other = (turn - rank) % (size - 1)
        other = size - 1 if other == rank else other
    return (other,) if other < workers else ()


def _facing_itself(turn: int, circle: int) -> int:
    return next(seat for seat in range(circle) if (2 * seat - turn) % circle == 0)


def _others(rank: int, ranks: set[int]) -> tuple[int, ...]:
    return tuple(sorted(ranks - {rank}))


def next_one(rank: int, workers: int, number: int) -> tuple[int, ...]:
    """The next one on a ring, one way.

    >>> next_one(3, 4, 0), next_one(0, 1, 0)
    ((0,), ())
    """
    del number
    return _others(rank, {(rank + 1) % workers})


def further(rank: int, workers: int, number: int) -> tuple[int, ...]:
    """The one 1, 2, 4, … further on a ring, another in every round.

    >>> [further(0, 6, number) for number in range(4)]
    [(1,), (2,), (4,), (1,)]
    """
    powers = max(1, (workers - 1).bit_length())
    return _others(rank, {(rank + (1 << number % powers)) % workers})


ONE_WAY: dict[str, Graph] = {"ring": next_one, "exponential": further}
"""To whom a rank sends, where nothing need come back."""

GRAPHS: dict[str, Graph] = {
    "ring": ring,
    "exponential": exponential,
    "random_pairs": random_pairs,
}
