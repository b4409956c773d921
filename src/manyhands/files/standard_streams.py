"""Standard streams that discard what cannot be written, instead of raising.

A full disk below a redirected stream, a pipe whose reader has ended (`| head`, a `tee` that died),
or a terminal that is gone must not end a run. Everything that a run's processes print goes through
`sys.stdout` and `sys.stderr`, so these are replaced, and nothing else needs to know.
"""

from __future__ import annotations

import contextlib
import io
import sys
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Iterator

    from _typeshed import ReadableBuffer

_STREAMS: Final = (("stdout", 1), ("stderr", 2))


class _Lossy(io.FileIO):
    """A file that discards data which it cannot write."""

    has_failed = False

    def write(self, data: ReadableBuffer, /) -> int:
        """Write all of the data; if it cannot be written, report it as written."""
        view = memoryview(data).cast("B")
        done = 0
        with contextlib.suppress(OSError):
            while done < len(view):
                done += super().write(view[done:]) or 0
        self.has_failed |= done < len(view)
        return len(view)


def outlast_unwritable() -> None:
    """Make standard output and error of this process discard what cannot be written."""
    for name, descriptor in _STREAMS:
        stream = _lossy(getattr(sys, name), descriptor)
        if stream is not None:
            setattr(sys, name, stream)


@contextlib.contextmanager
def unwritable_ignored() -> Iterator[None]:
    """Discard what cannot be written to standard output and error within this context.

    If anything could not be written, it stays so: the program that called would fail with its next
    line, after its run.
    """
    before = [(name, getattr(sys, name)) for name, _ in _STREAMS]
    outlast_unwritable()
    try:
        yield
    finally:
        for name, stream in before:
            raw = getattr(getattr(sys, name), "buffer", None)
            if not (isinstance(raw, _Lossy) and raw.has_failed):
                setattr(sys, name, stream)


def _lossy(before: Any, descriptor: int) -> io.TextIOWrapper | None:
    """Such a stream in place of one; None for one that is no file, as in a notebook."""
    try:
        if before.fileno() != descriptor or isinstance(before.buffer, _Lossy):
            return None
    except (OSError, ValueError, AttributeError):
        return None
    with contextlib.suppress(OSError):
        before.flush()
    return io.TextIOWrapper(
        _Lossy(descriptor, "w", closefd=False),  # as Python itself does under -u
        encoding=before.encoding,
        # A locale without the character shows another one.
        errors="backslashreplace" if before.errors == "strict" else before.errors,
        line_buffering=True,
        write_through=True,
    )
