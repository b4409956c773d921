"""Division of items among workers: evenly, or in proportion to weights."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence


def part(total: int, rank: int, workers: int) -> slice:
    """The part of `total` items for `rank`: sizes differ by one at most.

    >>> [part(5, rank, 3) for rank in range(3)]
    [slice(0, 2, None), slice(2, 4, None), slice(4, 5, None)]
    """
    size, extra = divmod(total, workers)
    start = rank * size + min(rank, extra)
    return slice(start, start + size + (rank < extra))


def nested(total: int, rank: int, workers: int, copies: int) -> slice:
    """The part of a worker, if items are first divided among groups of consecutive ranks.

    >>> [nested(6, rank, 4, 2) for rank in range(4)]
    [slice(0, 2, None), slice(2, 3, None), slice(3, 5, None), slice(5, 6, None)]
    """
    copy, place = divmod(rank, workers // copies)
    whole = part(total, copy, copies)
    own = part(whole.stop - whole.start, place, workers // copies)
    return slice(whole.start + own.start, whole.start + own.stop)


def by_weight(total: int, weights: Sequence[float]) -> tuple[int, ...]:
    """Numbers of items in proportion to weights; at least 1 each, if there are enough items.

    >>> by_weight(10, [0.25, 0.75]), by_weight(10, [0.001, 0.999]), by_weight(2, [1, 1, 1])
    ((3, 7), (1, 9), (1, 1, 0))
    """
    least = 1 if total >= len(weights) else 0
    rest = total - least * len(weights)
    # Above the least, by the part of the exact share that is above it.
    exact = [max(0.0, weight / sum(weights) * total - least) for weight in weights]
    scale = rest / sum(exact) if sum(exact) else 0.0
    above = [one * scale for one in exact]
    counts = [least + int(one) for one in above]
    largest = sorted(range(len(weights)), key=lambda at: (int(above[at]) - above[at], at))
    for at in largest[: total - sum(counts)]:
        counts[at] += 1
    return tuple(counts)
