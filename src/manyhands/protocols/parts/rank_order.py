"""Rank order, in which sums are computed.

The last bits of a floating-point sum depend on the order of its terms. If a server waits for all
workers anyway, it handles their calls in rank order, so that the same seed gives the same bits
whichever worker is the fastest.
"""

from __future__ import annotations

from bisect import bisect_left
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable


def rank_of(name: str) -> int:
    """The rank in a worker's name.

    >>> rank_of("worker-12")
    12
    """
    return int(name.rpartition("-")[2])


def place(names: frozenset[str], name: str) -> int:
    """How many of `names` come before `name` in rank order.

    >>> place(frozenset({"worker-10", "worker-9", "worker-2"}), "worker-10")
    2
    """
    return bisect_left(sorted_ranks(names), rank_of(name))


def pot_of(number: int, workers: int, name: str) -> int:
    """Index of the sum for a worker's contribution to round `number`; 0 belongs to no worker."""
    return 1 + number * workers + rank_of(name)


def pots_of(number: int, workers: int, names: Iterable[str]) -> tuple[int, ...]:
    """Indices of the sums for several workers' contributions, in rank order."""
    return tuple(sorted({pot_of(number, workers, name) for name in names}))


_SORTED: dict[int, tuple[frozenset[str], tuple[int, ...]]] = {}
"""Keyed by identity, because comparing two equal sets is linear in their size."""


def sorted_ranks(names: frozenset[str]) -> tuple[int, ...]:
    """The ranks of `names` in order; the result is cached per set."""
    known = _SORTED.get(id(names))
    if known is None:
        if len(_SORTED) >= 64:
            _SORTED.clear()
        known = _SORTED[id(names)] = (names, tuple(sorted(map(rank_of, names))))
    return known[1]
