"""Memory that processes of one host share, so that a payload need not be sent at all.

A caller keeps what it exchanges in one `Segment` and says where in it a payload lies and where the
answer belongs; a responder on the same host looks there. The segment has no name in any folder: it
is found through its owner's process id, which only the same user may do, and is gone when the last
process that uses it has ended, however it ended.
"""

from __future__ import annotations

import ctypes
import fcntl
import mmap
import os
from typing import TYPE_CHECKING

from manyhands.wire.envelope import SharedBytes
from manyhands.wire.message import WireError

if TYPE_CHECKING:
    from collections.abc import Callable

_SEALS = ("F_ADD_SEALS", "F_GET_SEALS", "F_SEAL_SHRINK", "F_SEAL_SEAL")


def can_share() -> bool:
    """Whether this system has what it takes: Linux does."""
    return hasattr(os, "memfd_create") and all(hasattr(fcntl, name) for name in _SEALS)


class Segment:
    """Memory of this process that others on this host may use.

    It is sealed: nobody can make it shorter while others look at it.
    """

    def __init__(self, size: int) -> None:
        self.descriptor = os.memfd_create("manyhands", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        os.ftruncate(self.descriptor, size)
        fcntl.fcntl(self.descriptor, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_SEAL)
        self.memory = memoryview(mmap.mmap(self.descriptor, size))
        self._size = size
        self._first = _address(self.memory)
        self._pid = os.getpid()

    def place(self, view: memoryview | None) -> SharedBytes | None:
        """Where a view lies in this segment; None if it lies elsewhere."""
        if view is None or view.readonly or not len(view):
            return None
        offset = _address(view) - self._first
        if not 0 <= offset <= self._size - view.nbytes:
            return None
        return SharedBytes(self._pid, self.descriptor, offset, view.nbytes)

    def close(self) -> None:
        """Let go of it; views of it stay valid."""
        os.close(self.descriptor)


class Foreign:
    """Another process's segment, seen from here.

    Raises:
        WireError: there is no such segment, or it is not sealed.
    """

    def __init__(self, pid: int, descriptor: int) -> None:
        self.owner = (pid, descriptor)
        try:
            opened = os.open(f"/proc/{pid}/fd/{descriptor}", os.O_RDWR | os.O_CLOEXEC)
        except OSError as error:
            raise WireError(f"there is no memory {descriptor} of process {pid}: {error}") from None
        try:
            if not fcntl.fcntl(opened, fcntl.F_GET_SEALS) & fcntl.F_SEAL_SHRINK:
                raise WireError(f"memory {descriptor} of process {pid} is not sealed")
            self._memory = memoryview(mmap.mmap(opened, os.fstat(opened).st_size))
        except (OSError, ValueError) as error:
            words = f"memory {descriptor} of process {pid} cannot be shared: {error}"
            raise WireError(words) from None
        finally:
            os.close(opened)

    def view(self, place: SharedBytes) -> memoryview:
        """The bytes at a place."""
        if not 0 <= place.offset <= len(self._memory) - place.size or place.size < 0:
            raise WireError(f"{place.size} bytes at {place.offset} are not in that memory")
        return self._memory[place.offset : place.offset + place.size]


def reserve() -> int:
    """A descriptor of memory that is still empty, for others to `join`.

    Raises:
        OSError: this system has no such memory.
    """
    if not can_share():
        raise OSError("sharing memory between processes needs Linux (memfd_create)")
    return os.memfd_create("manyhands", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)


def join(pid: int, descriptor: int, size: int, fill: Callable[[memoryview], object]) -> memoryview:
    """The memory that a process reserved, filled once, by whoever comes first.

    It is sealed when it is filled. The lock is held only until then, and ends with its holder: if
    that dies over it, the next one fills the memory again.

    Raises:
        ValueError: others made it another size.
    """
    opened = os.open(f"/proc/{pid}/fd/{descriptor}", os.O_RDWR | os.O_CLOEXEC)
    try:
        fcntl.flock(opened, fcntl.LOCK_EX)
        if not fcntl.fcntl(opened, fcntl.F_GET_SEALS) & fcntl.F_SEAL_SHRINK:
            os.ftruncate(opened, size)
            memory = memoryview(mmap.mmap(opened, size))
            fill(memory)
            seals = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL
            fcntl.fcntl(opened, fcntl.F_ADD_SEALS, seals)
            return memory
        there = os.fstat(opened).st_size
        if there != size:
            raise ValueError(
                f"the memory that is shared has {there} bytes, and here {size} are needed: the "
                "processes of this run have built different models"
            )
        return memoryview(mmap.mmap(opened, size))
    finally:
        # A mapping keeps the descriptor's twin open, and with it the lock.
        fcntl.flock(opened, fcntl.LOCK_UN)
        os.close(opened)


def _address(view: memoryview) -> int:
    return ctypes.addressof(ctypes.c_char.from_buffer(view))
