"""The largest numbers of a vector by magnitude.

A threshold is estimated from a sample such that hardly fewer numbers than wanted are beyond it; one
pass finds these, and only they are compared with each other. The result is exact: with too few of
them, the whole vector is compared. Magnitudes are compared as integers, in whose order NaN and
infinity are the largest; of equal ones, those with the lowest positions are taken.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from manyhands.codecs.kernels.arrays import Floats, Positions
from manyhands.codecs.kernels.sizes import PIECE

SAMPLE = 65536
"""Numbers from which a threshold is estimated."""

GROUPS = 256
"""Groups of a row; there are candidates for its largest numbers only in those of large ones."""

_EIGHT = np.uint64(0x0101010101010101)
"""Eight times True."""


def largest(values: Floats, count: int) -> Positions:
    """The positions of the `count` largest numbers, sorted."""
    if count >= values.size:
        return np.arange(values.size)
    share = count / values.size
    if values.size >= 4 * SAMPLE and share <= 0.25:
        limit = estimate(values, share, spare=4.0)
        if limit > 0:
            found = beyond(values, limit)
            if found.size >= count:
                return found[_largest(values[found], count)]
        else:
            return _largest_of_sparse(values, count)
    return _largest(values, count)


def _largest_of_sparse(values: Floats, count: int) -> Positions:
    """The same for a vector of which most numbers are 0, as the difference after a sparse update.

    Of the zeros those with the lowest positions are taken. There are enough among the first
    `count` numbers, because all others of these are taken already.
    """
    found = np.flatnonzero(values)
    if found.size >= count:
        return found[_largest(values[found], count)]
    zeros = np.flatnonzero(values[:count] == 0)[: count - found.size]
    return np.sort(np.concatenate([found, zeros]))


def estimate(values: Floats, share: float, spare: float = 0.0) -> float:
    """The magnitude that a share of the numbers exceeds, from a sample.

    Args:
        values: the numbers.
        share: the share.
        spare: standard deviations of the sample's error by which it is too low.
    """
    sample = values[:: max(1, values.size // SAMPLE) | 1]
    expected = share * sample.size
    rank = min(sample.size, max(1, round(expected + spare * (expected**0.5 + 1))))
    kth = np.partition(magnitudes(sample), sample.size - rank)[sample.size - rank]
    return float(np.array(kth).view(values.dtype))


def beyond(values: Floats, limit: float) -> Positions:
    """The positions of the numbers that are not below a limit in magnitude; NaN is not."""
    room, below = np.empty(min(PIECE, values.size), values.dtype), np.empty(PIECE, np.bool_)
    bound, found = values.dtype.type(limit), [np.empty(0, np.int64)]
    for start in range(0, values.size, PIECE):
        own = values[start : start + PIECE]
        np.abs(own, out=room[: own.size])
        below[own.size :] = True
        np.less(room[: own.size], bound, out=below[: own.size])
        found.append(_unset(below) + start)
    return np.concatenate(found)


def magnitudes(values: Floats, out: NDArray[Any] | None = None) -> NDArray[Any]:
    """Unsigned integers in the order of the numbers' magnitudes; in `out`, if it is given."""
    kind = np.dtype(np.uint64 if values.dtype.itemsize == 8 else np.uint32)
    bits: NDArray[Any] = np.ascontiguousarray(values).view(kind)
    ordered: NDArray[Any] = np.bitwise_and(bits, kind.type(2 ** (8 * kind.itemsize - 1) - 1), out)
    return ordered


def largest_of_rows(ordered: NDArray[Any], count: int) -> Positions:
    """The positions of the `count` largest integers of each row, in the flattened array, sorted."""
    width = ordered.shape[1]
    kth = np.partition(ordered, width - count, axis=1)[:, width - count, None]
    chosen = np.flatnonzero(ordered >= kth)
    if chosen.size == count * ordered.shape[0]:
        return chosen
    above, equal = ordered > kth, ordered == kth
    wanted = count - np.count_nonzero(above, axis=1)
    equal &= np.cumsum(equal, axis=1) <= wanted[:, None]
    return np.flatnonzero(above | equal)


def candidates_of_rows(ordered: NDArray[Any], count: int) -> Positions:
    """Positions, sorted, among which are the `count` largest of each row; not many more.

    Of the largest numbers of groups, the `count`-th largest is not above that of the row: whatever
    is below it is none of the largest.
    """
    rows, width = ordered.shape
    if width % GROUPS or 2 * count > GROUPS:
        return largest_of_rows(ordered, count)
    groups = ordered.reshape(rows, -1, GROUPS).max(axis=1)
    least = np.partition(groups, GROUPS - count, axis=1)[:, GROUPS - count, None]
    return np.flatnonzero(ordered >= least)


def largest_of_candidates(
    found: Positions, ordered: NDArray[Any], width: int, count: int
) -> Positions:
    """Of sorted positions and the magnitudes there, those of the `count` largest of each row."""
    rows = found // width
    starts = np.flatnonzero(np.diff(rows, prepend=-1))
    if found.size == starts.size * count:
        return found
    if ordered.dtype == np.uint32:
        # One sort by row, and in each row from the largest on; a row is the upper half of a key.
        keys = np.sort((rows.astype(np.uint64) << np.uint64(32)) | ~ordered)
        kth = ~keys[starts + count - 1].astype(np.uint32)
        chosen = found[ordered >= np.repeat(kth, np.diff(starts, append=found.size))]
        if chosen.size == starts.size * count:
            return chosen
    # Of equal ones, the first comes first.
    order = np.lexsort((~ordered, rows))
    ranks = np.arange(found.size) - np.repeat(starts, np.diff(starts, append=found.size))
    return np.sort(found[order[ranks < count]])


def _largest(values: Floats, count: int) -> Positions:
    return largest_of_rows(magnitudes(values).reshape(1, -1), count)


def _unset(marks: NDArray[np.bool_]) -> Positions:
    """The positions of False among a multiple of eight marks, of which most are True."""
    mixed = np.flatnonzero(marks.view(np.uint64) != _EIGHT)
    places = np.flatnonzero(~marks.reshape(-1, 8)[mixed])
    positions: Positions = mixed[places >> 3] * 8 + (places & 7)
    return positions
