"""Standard streams of a run's processes: what they print must not end them when a disk is full."""

from __future__ import annotations

import io
import sys
from typing import TYPE_CHECKING

from manyhands.files.disk_space import is_full

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer


class _Lossy(io.FileIO):
    """A file that loses what there is no space for."""

    def write(self, data: ReadableBuffer, /) -> int:
        """Write what fits; the rest counts as written."""
        try:
            return super().write(data)
        except OSError as error:
            if not is_full(error):
                raise
            return memoryview(data).nbytes


def outlast_full_disk() -> None:
    """Have `print` and tracebacks of this process lose what its log files have no space for."""
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
