"""Return of freed memory to the operating system.

A large tensor is allocated with alignment for vector instructions. glibc keeps memory that is freed
in the middle of its heap, and an aligned block of the same size does not fit into it again: a
process that creates and frees one layer after another grows as if it kept all of them.
"""

from __future__ import annotations

import ctypes


def trim() -> None:
    """Return free memory to the system; do nothing if the C library has no such function."""
    if _trim is not None:
        _trim(0)


def _find() -> ctypes._NamedFuncPointer | None:
    try:
        found = ctypes.CDLL(None).malloc_trim
    except (AttributeError, OSError, TypeError):
        return None
    found.argtypes, found.restype = [ctypes.c_size_t], ctypes.c_int
    return found


_trim = _find()
