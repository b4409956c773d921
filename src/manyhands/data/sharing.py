"""Files that several processes of a host make and read at once.

One process writes, under a lock, while the others wait; and what is written appears under its name
whole or not at all, so a reader needs no lock.
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
    """Let one process at a time into the block.

    The lock is the kernel's, so it ends with its holder, however that ends. The file stays: to
    delete it would let a third process lock a new file while a second waits for the old one.
    """
    _make(path.parent)
    with path.open("a") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


@contextmanager
def replacing(path: Path) -> Iterator[IO[bytes]]:
    """A file to write that takes the name `path` when the block ends, and vanishes if it raises.

    Callers hold a lock on what they write. Its unfinished form is named after the host, because a
    lock may not reach other hosts that share the folder; and after nothing else, so that what a
    killed process left behind is overwritten by the next one.
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
            f"the cache folder {folder} cannot be made ({error.strerror}); "
            f"set {CACHE} to a folder that can be written"
        ) from error
