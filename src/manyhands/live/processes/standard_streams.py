"""Standard streams of a run's processes, which ignore a full disk instead of raising."""

from __future__ import annotations

import io
import sys
from typing import TYPE_CHECKING

from manyhands.files.disk_space import is_full

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer


class _Lossy(io.FileIO):
    """A file that discards data when the disk is full."""

    def write(self, data: ReadableBuffer, /) -> int:
        """Write the data; if the disk is full, report it as written."""
        try:
            return super().write(data)
        except OSError as error:
            if not is_full(error):
                raise
            return memoryview(data).nbytes


def outlast_full_disk() -> None:
    """Make standard output and error of this process discard data when the disk is full."""
    for name, descriptor in (("stdout", 1), ("stderr", 2)):
        before = getattr(sys, name)
        before.flush()
        stream = io.TextIOWrapper(
            _Lossy(descriptor, "w", closefd=False),  # as Python itself does under -u
            encoding=before.encoding,
            errors=before.errors,
            line_buffering=True,
            write_through=True,
        )
        setattr(sys, name, stream)
