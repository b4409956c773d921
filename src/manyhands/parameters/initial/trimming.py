"""Memory that was freed, given back to the system.

A large tensor lies in memory of its own, aligned for vector instructions. glibc keeps what is freed
in the middle of its heap, and an aligned piece of the same size does not fit into it again: a
process that makes and frees one layer after the other grows as if it kept all of them.
"""

from __future__ import annotations

import ctypes


def trim() -> None:
    """Give back what is free; nothing where the C library has no such function."""
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
