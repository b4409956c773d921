"""Files that wait while the disk is full: a write without space is repeated for a while."""

from __future__ import annotations

import contextlib
import errno
import io
import os
import sys
import time
from typing import TYPE_CHECKING, BinaryIO

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from _typeshed import ReadableBuffer

PATIENCE = 120.0
"""Seconds for which a write waits for free space."""
_EVERY = 0.5


def is_full(error: OSError) -> bool:
    """Whether a write failed because the disk or the user's quota is full."""
    return error.errno in (errno.ENOSPC, errno.EDQUOT)


def _say(words: str) -> None:
    with contextlib.suppress(OSError):  # the log may be on the same disk
        sys.stderr.write(f"{words}\n")
        sys.stderr.flush()


class _Patient(io.FileIO):
    """A file whose writes wait while the disk is full."""

    def __init__(self, path: Path, patience: float, say: Callable[[str], None]) -> None:
        super().__init__(path, "wb")
        self._path = path
        self._patience = patience
        self._say = say

    def write(self, data: ReadableBuffer, /) -> int:
        """Write all of the data, waiting while the disk is full."""
        view = memoryview(data).cast("B")
        done, since = 0, 0.0
        while done < len(view):
            try:
                done += os.write(self.fileno(), view[done:])
                if since:
                    self._say(f"{self._path}: there is space again, and writing continues")
                since = 0.0
            except OSError as error:
                if not is_full(error):
                    raise
                now = time.monotonic()
                if not since:
                    since = now
                    self._say(
                        f"warning: {self._path} cannot be written: {error.strerror}. Free some "
                        f"space: writing is retried for {self._patience:.0f} s"
                    )
                if now - since > self._patience:
                    words = (
                        f"{error.strerror} for {now - since:.0f} s, with {len(view) - done} bytes "
                        "of a block still to be written; free space on that disk or choose "
                        "another folder"
                    )
                    raise OSError(error.errno, words, str(self._path)) from error
                time.sleep(min(_EVERY, self._patience))
        return done


@contextlib.contextmanager
def stored_patiently(
    path: Path, patience: float = PATIENCE, say: Callable[[str], None] = _say
) -> Iterator[BinaryIO]:
    """Create a file for writing; it is removed if it cannot be completed."""
    try:
        with io.BufferedWriter(_Patient(path, patience, say)) as file:
            yield file
    except BaseException:
        with contextlib.suppress(OSError):
            path.unlink(missing_ok=True)
        raise
