"""Process titles: the command line that `ps` shows for a process."""

from __future__ import annotations

import ctypes
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

ROOM = 1024
"""Length of the last argument of a process that changes its title later, to make room for it."""


def show(command: Sequence[str]) -> None:
    """Set the title of this process to `command`.

    The kernel shows the memory of the original arguments, so the title is written there, truncated
    if it does not fit. Only for a process whose last argument has `ROOM` characters.
    """
    # The name in parentheses may contain spaces; the numbers after it are fields 3 and on.
    fields = Path("/proc/self/stat").read_text(encoding="utf-8", errors="replace")
    numbers = fields.rpartition(")")[2].split()
    begin, end = int(numbers[45]), int(numbers[46])
    if not 0 < ROOM <= end - begin:  # a kernel that does not report the addresses
        return
    title = b"".join(part.encode() + b"\0" for part in command)[: end - begin - 1]
    ctypes.memset(begin, 0, end - begin)
    ctypes.memmove(begin, title, len(title))
