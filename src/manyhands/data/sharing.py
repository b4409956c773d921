"""Files that several processes of a host create and read concurrently.

One process writes, under a lock, while the others wait. A file appears under its name complete or
not at all, so a reader needs no lock.
"""

from __future__ import annotations

import fcntl
import os
import platform
from contextlib import contextmanager
from typing import IO, TYPE_CHECKING

from manyhands.data.folders import CACHE

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Context that one process at a time can enter.

    The kernel releases the lock when its process ends in any way. The lock file is not deleted:
    otherwise a third process could lock a new file while a second waits for the old one.
    """
    _make(path.parent)
    with path.open("a") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


@contextmanager
def replacing(path: Path) -> Iterator[IO[bytes]]:
    """A file for writing that gets the name `path` at the end, and is deleted after an error.

    Callers hold a lock. The name of the unfinished file contains the host, because locks may not
    work across hosts that share the folder; and nothing else, so that the file of a killed process
    is overwritten by the next one.
    """
    _make(path.parent)
    unfinished = path.with_name(f"{path.name}.{platform.node()}.unfinished")
    try:
        with unfinished.open("w+b") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        unfinished.replace(path)
    finally:
        unfinished.unlink(missing_ok=True)


def _make(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise OSError(
            f"the cache folder {folder} cannot be created ({error.strerror}): "
            f"set {CACHE} to a writable folder"
        ) from error
