"""Positions of chosen elements in as few bytes as their number needs (Elias–Fano codes).

Of m sorted positions among n, the lowest l = ⌊log₂(n / m)⌋ bits of each are written as they are.
The bits above grow slowly: the i-th position sets the bit (position >> l) + i of a row of bits.
That takes about 2 + log₂(n / m) bits per position, half a bit more than Golomb–Rice codes of the
gaps, and the number of bytes depends on m and n only. If more than a quarter of all elements is
chosen, there is one bit per element.
"""

import numpy as np

from manyhands.codecs.codec import CodecError
from manyhands.codecs.kernels.arrays import Bytes, Positions, check_length
from manyhands.codecs.kernels.digits import pack_planes, unpack_planes
from manyhands.codecs.kernels.sizes import low_bits, plane_bytes, position_bytes


def write_positions(positions: Positions, size: int) -> Bytes:
    """The bytes of sorted positions among `size` elements."""
    count = positions.size
    if count in {0, size}:
        return np.empty(0, np.uint8)
    low = low_bits(count, size)
    if low <= 1:
        chosen = np.zeros(size, np.bool_)
        chosen[positions] = True
        return np.packbits(chosen)
    upper = np.zeros(count + ((size - 1) >> low), np.bool_)
    upper[(positions >> low) + np.arange(count)] = True
    return np.concatenate([np.packbits(upper), pack_planes(positions, low)])


def read_positions(data: Bytes, count: int, size: int) -> Positions:
    """The positions, sorted and each of them once.

    Raises:
        CodecError: the bytes are none of `count` positions among `size`.
    """
    check_length(data, position_bytes(count, size))
    if count in {0, size}:
        return np.arange(count)
    low = low_bits(count, size)
    length = size if low <= 1 else count + ((size - 1) >> low)
    above = -(-length // 8)
    found = np.flatnonzero(np.unpackbits(data[:above], count=length))
    if found.size != count:
        raise CodecError(f"expected {count} positions, got {found.size}")
    if low <= 1:
        return found
    found -= np.arange(count)
    found <<= low
    found |= unpack_planes(data[above : above + plane_bytes(count, low)], low, count)
    if found[-1] >= size or (found[1:] <= found[:-1]).any():
        raise CodecError(f"positions are not in order, or beyond {size} elements")
    return found
