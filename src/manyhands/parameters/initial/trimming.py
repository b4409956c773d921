"""Freed memory: returned to the operating system, or kept for the next step.

A large tensor is allocated with alignment for vector instructions. glibc keeps memory that is freed
in the middle of its heap, and an aligned block of the same size does not fit into it again: a
process that creates and frees one layer after another grows as if it kept all of them.

A worker allocates its gradients in every step, and frees them. glibc returns them to the system as
soon as 32 to 64 MB are free at the end of its heap, and the system then fills each page with zeros
again when it is first used, which takes up to a fifth of the time of a step.
"""

from __future__ import annotations

import ctypes
import os

_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3
"""The numbers of glibc's settings."""
_KEPT = 1 << 30
"""Bytes at the end of the heap that are kept."""
_LARGEST = 32 << 20
"""Bytes of the largest block that is part of the heap; glibc does not allow for more."""


def keep_freed() -> None:
    """Keep memory that is freed, instead of returning it; unless the user has decided on that.

    It does nothing if the C library has no such setting.
    """
    if any(name.startswith("MALLOC_") for name in os.environ):
        return
    try:
        setting = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError, TypeError):
        return
    setting(_MMAP_THRESHOLD, _LARGEST)
    setting(_TRIM_THRESHOLD, _KEPT)


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
