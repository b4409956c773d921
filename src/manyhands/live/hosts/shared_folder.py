"""The marker in the folder of a run: other hosts see by it that they share it, and that it goes on.

The first host writes a new number into it every second. So a host that no longer hears from the
first one can tell a host that is lost from one that is cut off, if both see the folder; and a
command that would continue the run sees that it is still going on.
"""

from __future__ import annotations

import contextlib
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

INTERVAL = 1.0
"""Seconds between two numbers."""
_LOOK = 3.0
"""Seconds in which the number of a run that is going on changes, with some to spare."""
_PREFIX = ".run-"


def marker_in(folder: Path, attempt: str) -> Path:
    """The marker: a file that the first host has in the folder while the run is going on.

    Args:
        folder: the first host's folder of the run.
        attempt: distinguishes the run from earlier ones in the folder.
    """
    return folder / f"{_PREFIX}{attempt}"


def number_in(marker: Path) -> bytes:
    """What the marker says now; nothing if it cannot be read."""
    with contextlib.suppress(OSError):
        return marker.read_bytes()
    return b""


def is_going_on(folder: Path) -> bool:
    """Whether a run on several hosts is going on in a folder; takes seconds if one ever was."""
    markers = [*folder.glob(f"{_PREFIX}*")]
    before = [number_in(marker) for marker in markers]
    deadline = time.monotonic() + _LOOK
    while markers and time.monotonic() < deadline:
        if any(number_in(marker) != was for marker, was in zip(markers, before, strict=True)):
            return True
        time.sleep(0.1)
    return False


def check_over(folder: Path) -> None:
    """Raise ValueError, naming the fix, if the run in a folder is going on."""
    if is_going_on(folder):
        raise ValueError(
            f"the run in {folder} is still going on, on another host or in another terminal: wait "
            "for its end, or choose another folder with --output"
        )


class Marker:
    """The first host's marker of a run.

    Args:
        folder: the run's folder.
        attempt: distinguishes the run from earlier ones in the folder.
    """

    def __init__(self, folder: Path, attempt: str) -> None:
        self.path = marker_in(folder, attempt)
        self._number = 0
        self._written = 0.0

    def create(self) -> None:
        """Create it, or create it again after the folder was cleared."""
        self.path.touch()
        self._written = 0.0

    def beat(self) -> bool:
        """Write the next number, if it is time, and return whether it was.

        A file that is gone is not created again.
        """
        now = time.monotonic()
        if now - self._written < INTERVAL:
            return False
        self._written = now
        self._number += 1
        # A full disk, or a server of files that does not answer, is no reason to end the run.
        with contextlib.suppress(OSError), self.path.open("rb+") as file:
            file.write(b"%020d" % self._number)
        return True

    def remove(self) -> None:
        """Remove it: the run is over."""
        self.path.unlink(missing_ok=True)
