"""Private folders of runs: for sockets and the assignment, removed with the run.

If the run's processes are killed together, nobody removes the folder. So its owner holds a lock on
a file in it, which the system releases with the last of these processes, and the next run removes
the folders whose lock is free.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Final

from manyhands.failure import Refused

if TYPE_CHECKING:
    from collections.abc import Iterator

_PREFIX: Final = "manyhands-"
_OWNER: Final = "owner"
_SOCKET_PATH: Final = 107
"""Bytes that the path of a Unix socket may have."""
_IN_FOLDER: Final = len("/manyhands-12345678/server-12345")
_NEW: Final = 60.0
"""Seconds for which a folder may be without a lock."""


@contextlib.contextmanager
def private_folder() -> Iterator[Path]:
    """A folder that only this user can access, for sockets and the assignment.

    Raises:
        Refused: the folder for temporary files has so long a path that sockets cannot be in it.
    """
    place = tempfile.gettempdir()
    if len(os.fsencode(place)) + _IN_FOLDER > _SOCKET_PATH:
        raise Refused(
            f"the path of the folder for temporary files has {len(os.fsencode(place))} bytes "
            f"({place}), and sockets in it may have {_SOCKET_PATH - _IN_FOLDER} at most: set "
            "TMPDIR to a shorter one, such as /tmp"
        )
    sweep(Path(place))
    folder = Path(tempfile.mkdtemp(prefix=_PREFIX))
    try:
        with (folder / _OWNER).open("wb") as owner:
            with contextlib.suppress(OSError):  # a file system without locks: it is not swept
                fcntl.flock(owner, fcntl.LOCK_EX)
            yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def sweep(place: Path) -> None:
    """Remove the folders of runs whose processes have all ended."""
    for folder in place.glob(f"{_PREFIX}*"):
        with contextlib.suppress(OSError), (folder / _OWNER).open("rb") as owner:
            facts = folder.stat()
            # A folder without a lock may be a new one whose owner has not locked it yet.
            if facts.st_uid == os.getuid() and time.time() - facts.st_mtime > _NEW:
                fcntl.flock(owner, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(folder, ignore_errors=True)
