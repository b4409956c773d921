"""Where things are in the memory in which workers of one host sum tensors."""

from __future__ import annotations

import math
import mmap
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

LINE = 64
"""Bytes of a cache line: counters in one line would slow each other down."""
MOST_SETS = 3
"""Sets of slots, of which each has one for every worker."""
CHUNK = 1 << 20
"""Bytes of a worker's tensor that the workers of an axis of a mesh exchange at once."""
_ALIGNED = 16
"""Elements: parts begin at cache lines."""


def room(chunk: int, size: int) -> int:
    """Bytes of memory with which chunks of so many bytes are summed over `size` workers.

    >>> room(10_000, 2)
    53248
    """
    return first_slot(size) + 2 * size * _up(chunk, mmap.PAGESIZE)


def mesh_room(axes: Iterable[int]) -> int:
    """Bytes of memory in which all groups of a mesh exchange, if it is on one host.

    >>> mesh_room([2, 1, 2]) == 2 * 2 * room(CHUNK, 2)
    True
    """
    sizes = list(axes)
    return sum(math.prod(sizes) // size * room(CHUNK, size) for size in sizes if size > 1)


def first_slot(size: int) -> int:
    """Where the workers' parts begin: behind the token, the counters and the notes."""
    return _up(LINE * (1 + size) + 8 * size * MOST_SETS, mmap.PAGESIZE)


def bounds_of(length: int, size: int) -> list[int]:
    """Where the parts of a chunk begin, and its end.

    >>> bounds_of(100, 3)
    [0, 48, 96, 100]
    """
    part = _up(-(-length // size), _ALIGNED)
    return [min(length, place * part) for place in range(size + 1)]


def _up(number: int, step: int) -> int:
    return -(-number // step) * step
