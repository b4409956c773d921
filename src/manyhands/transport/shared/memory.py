"""Shared memory between processes of one host, so that payloads need not be sent.

A caller keeps the tensors that it exchanges in one `Segment`, and sends the places of a payload and
of the answer's payload; a responder on the same host maps the segment. An exchange through sockets
spends most of its time on copies in the kernel (`docs/decisions/0016-exchange-in-memory.md`). The
segment is anonymous: it is opened through its owner's process id, which only the same user may do,
and is freed when the last process that uses it has ended, by whatever cause.
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
    """Whether this system supports sealed anonymous memory, as Linux does."""
    return hasattr(os, "memfd_create") and all(hasattr(fcntl, name) for name in _SEALS)


class Segment:
    """Memory of this process that other processes on this host can map.

    It is sealed: it cannot be shortened while others have it mapped.
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
        """The place of a view in this segment; None if it is not in it."""
        if view is None or view.readonly or not len(view):
            return None
        offset = _address(view) - self._first
        if not 0 <= offset <= self._size - view.nbytes:
            return None
        return SharedBytes(self._pid, self.descriptor, offset, view.nbytes)

    def close(self) -> None:
        """Close the descriptor; views of the memory stay valid."""
        os.close(self.descriptor)


class Foreign:
    """A segment of another process, mapped into this one.

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
            # Memory that its owner can shorten would end this process with SIGBUS when it reads
            # behind the new end.
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
            raise WireError(
                f"{place.size} bytes at offset {place.offset} are outside the shared memory of "
                f"{len(self._memory)} bytes"
            )
        return self._memory[place.offset : place.offset + place.size]


def reserve() -> int:
    """A descriptor of empty memory, which other processes map with `join`.

    Raises:
        OSError: this system does not support it.
    """
    if not can_share():
        raise OSError("sharing memory between processes needs Linux (memfd_create)")
    return os.memfd_create("manyhands", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)


def join(pid: int, descriptor: int, size: int, fill: Callable[[memoryview], object]) -> memoryview:
    """Map the memory that a process reserved; the first process to map it fills it.

    It is sealed when it is filled. The lock is held until then, and ends with its holder: if that
    process dies meanwhile, the next one fills the memory again.

    Raises:
        ValueError: another process has given it a different size.
    """
    opened = os.open(f"/proc/{pid}/fd/{descriptor}", os.O_RDWR | os.O_CLOEXEC)
    try:
        fcntl.flock(opened, fcntl.LOCK_EX)
        if not fcntl.fcntl(opened, fcntl.F_GET_SEALS) & fcntl.F_SEAL_SHRINK:
            os.ftruncate(opened, size)
            memory = memoryview(mmap.mmap(opened, size))
            fill(memory)
            seals = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL
            # After it is filled: the seal is the sign of that. A process that is killed before this
            # line leaves memory that the next one fills.
            fcntl.fcntl(opened, fcntl.F_ADD_SEALS, seals)
            return memory
        there = os.fstat(opened).st_size
        if there != size:
            raise ValueError(
                f"the shared memory has {there} bytes, but this process needs {size}: the "
                "processes of this run have created different models"
            )
        return memoryview(mmap.mmap(opened, size))
    finally:
        # A mapping keeps a duplicate of the descriptor open, and with it the lock.
        fcntl.flock(opened, fcntl.LOCK_UN)
        os.close(opened)


def _address(view: memoryview) -> int:
    return ctypes.addressof(ctypes.c_char.from_buffer(view))
