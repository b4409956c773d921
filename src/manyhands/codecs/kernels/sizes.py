"""Sizes of payloads, and the pieces that vectors are cut into; integers only, without torch."""

from collections.abc import Iterator
from typing import Literal, NamedTuple

PIECE = 65536
"""Elements of a vector that are worked on at a time: small enough to stay in a core's cache."""


class Grid(NamedTuple):
    """The numbers that a block is rounded to: scale · (−levels, …, levels)."""

    levels: int
    block: int
    norm: Literal["largest", "euclidean"] = "largest"
    """What `levels` times the scale is: the largest magnitude of a block or its Euclidean norm."""

    @property
    def base(self) -> int:
        """The number of codes."""
        return 2 * self.levels + 1

    @property
    def per_byte(self) -> int:
        """Codes in one byte, as digits of the base."""
        count = 1
        while self.base ** (count + 1) <= 256:
            count += 1
        return count


class BlockRange(NamedTuple):
    """Consecutive elements of a vector, in blocks of equal length."""

    start: int
    stop: int
    width: int
    """The length of its blocks."""
    block: int
    """The index of its first block."""

    @property
    def length(self) -> int:
        """The number of its elements."""
        return self.stop - self.start

    @property
    def blocks(self) -> slice:
        """Its blocks among all of the vector."""
        return slice(self.block, self.block + self.length // self.width)


def block_ranges(size: int, block: int) -> Iterator[BlockRange]:
    """The vector in pieces of whole blocks; the last block may be shorter and is one of its own."""
    piece = block * max(1, PIECE // block)
    whole = size // block * block
    for start in range(0, whole, piece):
        yield BlockRange(start, min(start + piece, whole), block, start // block)
    if whole < size:
        yield BlockRange(whole, size, size - whole, size // block)


def code_bytes(size: int, block: int, per_byte: int) -> int:
    """Bytes of one code per element, packed range by range."""
    piece = block * max(1, PIECE // block)
    whole = size // block * block
    full, tail = divmod(whole, piece)
    lengths = (tail, size - whole)
    return full * -(-piece // per_byte) + sum(-(-length // per_byte) for length in lengths)


def block_bytes(size: int, block: int, per_byte: int, itemsize: int) -> int:
    """Bytes of one code per element and one scale per block."""
    return -(-size // block) * scale_bytes(itemsize) + code_bytes(size, block, per_byte)


def scale_bytes(itemsize: int) -> int:
    """Bytes of a scale: of a float64 for vectors of float64, else of a float32."""
    return 8 if itemsize == 8 else 4


def plane_bytes(count: int, bits: int) -> int:
    """Bytes of `count` integers as planes of bits."""
    return bits * -(-count // 8)


def low_bits(count: int, size: int) -> int:
    """The bits of a position that are written as they are: ⌊log₂(size / count)⌋."""
    return (size // count).bit_length() - 1


def position_bytes(count: int, size: int) -> int:
    """Bytes of `count` different positions among `size`, in order."""
    if count in {0, size}:
        return 0
    low = low_bits(count, size)
    if low <= 1:
        return -(-size // 8)
    return -(-(count + ((size - 1) >> low)) // 8) + plane_bytes(count, low)


def most_position_bytes(count: int, size: int, bits: int = 0) -> int:
    """The most that up to `count` positions take, each with further bits in planes."""
    most = 0
    for low in range(size.bit_length()):  # the size grows with the count while `low` is the same
        largest = min(count, size >> low)
        for number in {largest, min(largest, size - 1)}:
            most = max(most, position_bytes(number, size) + plane_bytes(number, bits))
    return most
