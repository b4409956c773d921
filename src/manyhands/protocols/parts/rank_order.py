"""The order of ranks, in which sums are taken.

A sum of floating-point numbers depends on their order in its last bits. Where a server waits for
all workers anyway, it hears them in the order of their ranks, so that the same seed gives the same
bits whoever is the fastest.
"""

from __future__ import annotations

from bisect import bisect_left
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable


def rank_of(name: str) -> int:
    """The number in a name.

    >>> rank_of("worker-12")
    12
    """
    return int(name.rpartition("-")[2])


def place(names: frozenset[str], name: str) -> int:
    """How many of some come before one, in the order of ranks.

    >>> place(frozenset({"worker-10", "worker-9", "worker-2"}), "worker-10")
    2
    """
    return bisect_left(sorted_ranks(names), rank_of(name))


def pot_of(number: int, workers: int, name: str) -> int:
    """Where what one of so many gave to a round is gathered; 0 is for what belongs to none."""
    return 1 + number * workers + rank_of(name)


def pots_of(number: int, workers: int, names: Iterable[str]) -> tuple[int, ...]:
    """Where some of them are, in the order of ranks, in which they are added up."""
    return tuple(sorted({pot_of(number, workers, name) for name in names}))


_SORTED: dict[int, tuple[frozenset[str], tuple[int, ...]]] = {}
"""By identity, because comparing two equal sets costs as much as there is in them."""


def sorted_ranks(names: frozenset[str]) -> tuple[int, ...]:
    """The ranks of some, in order; the same set is not sorted twice."""
    known = _SORTED.get(id(names))
    if known is None:
        if len(_SORTED) >= 64:
            _SORTED.clear()
        known = _SORTED[id(names)] = (names, tuple(sorted(map(rank_of, names))))
    return known[1]
