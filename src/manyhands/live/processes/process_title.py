"""The command line under which a process is listed, as `ps` shows it."""

from __future__ import annotations

import ctypes
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

ROOM = 1024
"""Characters of the last argument of a process that will want another title."""


def show(command: Sequence[str]) -> None:
    """List this process under `command`.

    The kernel shows the memory in which it once put the arguments, so the title goes there; what
    does not fit is cut off. Only a process that was started with `ROOM` to spare may call this.
    """
    # The name in parentheses may hold spaces; the numbers behind it are fields 3 and on.
    fields = Path("/proc/self/stat").read_text(encoding="utf-8", errors="replace")
    numbers = fields.rpartition(")")[2].split()
    begin, end = int(numbers[45]), int(numbers[46])
    if not 0 < ROOM <= end - begin:  # a kernel that does not say where it is
        return
    title = b"".join(part.encode() + b"\0" for part in command)[: end - begin - 1]
    ctypes.memset(begin, 0, end - begin)
    ctypes.memmove(begin, title, len(title))
