"""Lossless compression by zlib: of numbers, place by place of their bytes, and of payloads."""

import zlib

import numpy as np

from manyhands.codecs.codec import CodecError
from manyhands.codecs.kernels.arrays import Bytes, check_length

_LENGTH = 8
"""Bytes of a length."""
_SAMPLE = 32768
"""Bytes of a plane that are tried before all of it is compressed."""


def deflate_numbers(data: Bytes, itemsize: int, level: int) -> Bytes:
    """The bytes of numbers of `itemsize` bytes each.

    The first byte says which planes are compressed; these have their length before them. A plane
    has the bytes of the same place of all numbers. Those of low places are nearly random.
    """
    marks, parts = 0, []
    for place, plane in enumerate(data.reshape(-1, itemsize).T):
        contiguous = np.ascontiguousarray(plane)
        packed = _deflated(contiguous, level, spare=_LENGTH)
        if packed is None:
            parts.append(contiguous)
        else:
            marks |= 1 << place
            parts += [np.array([packed.size], "<u8").view(np.uint8), packed]
    return np.concatenate([np.array([marks], np.uint8), *parts])


def inflate_numbers(data: Bytes, itemsize: int, count: int) -> Bytes:
    """The bytes of `count` numbers.

    Raises:
        CodecError: no such numbers were compressed to these bytes.
    """
    if not data.size:
        raise CodecError("expected at least 1 byte, got 0")
    marks, done = int(data[0]), 1
    if marks >> itemsize:
        raise CodecError(f"numbers of {itemsize} bytes do not have that many planes")
    found = np.empty((count, itemsize), np.uint8)
    for place in range(itemsize):
        length = count
        if marks >> place & 1:
            if data.size - done < _LENGTH:
                raise CodecError("the payload ends within a length")
            length = int(data[done : done + _LENGTH].copy().view("<u8")[0])
            done += _LENGTH
        if length > data.size - done:
            raise CodecError(f"expected {length} bytes, got {data.size - done}")
        plane = data[done : done + length]
        if marks >> place & 1:
            plane = _inflated(plane, count)
            check_length(plane, count)
        found[:, place] = plane
        done += length
    check_length(data, done)
    return found.reshape(-1)


def deflate_bytes(data: Bytes, level: int) -> Bytes:
    """A byte that says whether the others are compressed, and these."""
    packed = _deflated(data, level, spare=0)
    marks = np.array([packed is not None], np.uint8)
    return np.concatenate([marks, data if packed is None else packed])


def inflate_bytes(data: Bytes, most: int) -> Bytes:
    """The bytes that were compressed, at most `most` of them."""
    if not data.size or data[0] > 1:
        raise CodecError("the first byte must be 0 or 1")
    found = _inflated(data[1:], most) if data[0] else data[1:]
    if found.size > most:
        raise CodecError(f"expected at most {most} bytes, got {found.size}")
    return found


def _deflated(data: Bytes, level: int, spare: int) -> Bytes | None:
    """The compressed bytes, or None if these would not be fewer by more than `spare`."""
    if data.size > 4 * _SAMPLE:
        middle = data.size // 2
        tried = zlib.compress(data[middle : middle + _SAMPLE].data, level)
        if len(tried) > 0.97 * _SAMPLE:
            return None
    packed = np.frombuffer(zlib.compress(data.data, level), np.uint8)
    return packed if packed.size + spare < data.size else None


def _inflated(data: Bytes, most: int) -> Bytes:
    """What was compressed to these bytes; not more than `most` bytes are ever written."""
    stream = zlib.decompressobj()
    try:
        found = stream.decompress(data.data, most) if most else b""
        # The end of the stream may follow the last byte.
        if not stream.eof and stream.decompress(stream.unconsumed_tail, 1):
            raise CodecError(f"more than {most} bytes were compressed")
    except zlib.error as error:
        raise CodecError(f"no compressed bytes: {error}") from None
    if not stream.eof or stream.unused_data:
        raise CodecError("the compressed bytes end too early or too late")
    return np.frombuffer(found, np.uint8)
