"""The largest numbers of every chunk, in a few bits each.

A payload is the bounds of all chunks (the smallest and the largest magnitude that is sent, as two
bfloat16 numbers), the positions, and planes of bits: signs first, then the magnitudes' levels.
"""

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from manyhands.codecs.codec import CodecError
from manyhands.codecs.kernels.arrays import Bytes, Floats, Positions, numbers
from manyhands.codecs.kernels.digits import pack_planes, unpack_planes
from manyhands.codecs.kernels.largest import (
    candidates_of_rows,
    largest_of_candidates,
    largest_of_rows,
    magnitudes,
)
from manyhands.codecs.kernels.positions import read_positions, write_positions
from manyhands.codecs.kernels.quantising import refuse
from manyhands.codecs.kernels.sizes import PIECE, plane_bytes, position_bytes

Counts = NDArray[np.int64]


def largest_of_chunks(values: Floats, chunk: int, counts: tuple[int, int]) -> Positions:
    """The positions of the largest numbers of every chunk, sorted.

    Args:
        values: the numbers.
        chunk: the length of a chunk; the last one may be shorter.
        counts: how many are chosen of a whole chunk, and of a shorter one at the end.
    """
    whole = values.size // chunk
    together = max(1, PIECE // chunk)
    room = magnitudes(values[: min(together, whole) * chunk])  # the memory of all pieces
    found, sizes = [np.empty(0, np.int64)], [room[:0]]
    for first in range(0, whole, together):
        start, stop = first * chunk, min(first + together, whole) * chunk
        ordered = magnitudes(values[start:stop], out=room[: stop - start]).reshape(-1, chunk)
        candidates = candidates_of_rows(ordered, counts[0])
        sizes.append(ordered.reshape(-1)[candidates])
        found.append(candidates + start)
    of_whole = largest_of_candidates(np.concatenate(found), np.concatenate(sizes), chunk, counts[0])
    if whole * chunk < values.size:
        start = whole * chunk
        tail = largest_of_rows(magnitudes(values[start:]).reshape(1, -1), counts[1])
        return np.concatenate([of_whole, tail + start])
    return of_whole


def owners(size: int, chunk: int, counts: tuple[int, int]) -> Counts:
    """The chunk of each number that is sent."""
    whole = size // chunk
    return np.concatenate([np.repeat(np.arange(whole), counts[0]), np.full(counts[1], whole)])


def encode(
    vector: torch.Tensor, positions: Positions, owners: Counts, bits: int
) -> tuple[torch.Tensor, Floats]:
    """The payload of chosen numbers, and the numbers that will be decoded.

    Args:
        vector: all numbers.
        positions: the positions of those that are sent.
        owners: the chunk of each.
        bits: the bits of each.
    """
    values: Floats = numbers(vector)[positions]
    with np.errstate(over="ignore"):
        sizes = np.abs(values).astype(np.float32)
    if not np.isfinite(sizes).all():
        raise refuse()
    starts = np.flatnonzero(np.diff(owners, prepend=-1))
    bounds = np.empty((starts.size, 2), np.float32)
    if starts.size:
        np.minimum.reduceat(sizes, starts, out=bounds[:, 0])
        np.maximum.reduceat(sizes, starts, out=bounds[:, 1])
    halves = (bounds.view(np.uint32) >> 16).astype(np.uint16)  # cut to bfloat16
    low, step = _steps(halves, bits)
    lows, steps = low[owners], step[owners]
    levels = np.divide(sizes - lows, steps, out=np.zeros_like(steps), where=steps > 0)
    np.minimum(levels, 2 ** (bits - 1) - 1, out=levels)
    codes = levels.astype(np.uint8) << 1 | (values < 0)
    parts = [
        halves.view(np.uint8).reshape(-1),
        write_positions(positions, vector.numel()),
        pack_planes(codes, bits),
    ]
    sent = _numbers(codes, lows, steps, values.dtype)
    return torch.from_numpy(np.concatenate(parts)), sent


def decode(
    data: Bytes, owners: Counts, size: int, bits: int, chunk: int
) -> tuple[Positions, Floats]:
    """The positions, and the numbers there."""
    count = owners.size
    chunks = -(-size // chunk)
    begin = 4 * chunks
    end = begin + position_bytes(count, size)
    halves = data[:begin].copy().view(np.uint16).reshape(-1, 2)
    if (halves >= 0x7F80).any() or (halves[:, 0] > halves[:, 1]).any():
        raise CodecError("a chunk's bounds are negative, not finite, or not in order")
    positions = read_positions(data[begin:end], count, size)
    firsts, lasts = owners * chunk, (owners + 1) * chunk
    if (positions < firsts).any() or (positions >= lasts).any():
        raise CodecError("a chunk has another number of positions")
    codes = unpack_planes(data[end : end + plane_bytes(count, bits)], bits, count)
    low, step = _steps(halves, bits)
    return positions, _numbers(codes, low[owners], step[owners], np.dtype(np.float32))


def _steps(halves: NDArray[np.uint16], bits: int) -> tuple[Floats, Floats]:
    """The lowest magnitude of each chunk and the distance of its levels."""
    bounds: Floats = (halves.astype(np.uint32) << 16).view(np.float32)
    return bounds[:, 0], (bounds[:, 1] - bounds[:, 0]) / np.float32(2 ** (bits - 1))


def _numbers(
    codes: NDArray[Any], low: Floats, step: Floats, dtype: np.dtype[np.floating]
) -> Floats:
    """Low + (level + ½) · step, with the sign."""
    sizes = (codes >> 1).astype(np.float32)
    sizes += np.float32(0.5)
    sizes *= step
    sizes += low
    np.negative(sizes, out=sizes, where=(codes & 1).astype(np.bool_))
    return sizes.astype(dtype, copy=False)
