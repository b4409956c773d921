"""Progress line: shows how far a computation in this process is, after two seconds."""

from __future__ import annotations

import contextlib
import sys
import threading
import time
from typing import TYPE_CHECKING, TextIO

from manyhands.script.cell_line import cell_line

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

PATIENCE = 2.0
"""Seconds until something is shown."""
_TERMINAL_EVERY = 0.5
_PLAIN_EVERY = 10.0


@contextlib.contextmanager
def shown(
    words: Callable[[], str],
    tell: Callable[[str], None] | None = None,
    stream: TextIO | None = None,
) -> Iterator[None]:
    """Show `words()` periodically while the block runs, from another thread.

    Args:
        words: returns the progress in one line; called by the other thread. An empty line is not
            shown.
        tell: receives the line instead of `stream`, where another display shows it.
        stream: the stream to write to, stderr by default. On a terminal and below a notebook's
            cell the line is rewritten in place; elsewhere a line is written every ten seconds.
    """
    out = stream or sys.stderr
    if tell is None and stream is None and (cell := cell_line()) is not None:
        tell = cell.show
    line = _Line(words, tell, out, rewrites=tell is None and out.isatty())
    line.start()
    try:
        yield
    finally:
        line.stop()


class _Line(threading.Thread):
    def __init__(
        self,
        words: Callable[[], str],
        tell: Callable[[str], None] | None,
        stream: TextIO,
        *,
        rewrites: bool,
    ) -> None:
        super().__init__(name="manyhands-progress", daemon=True)
        self._words = words
        self._tell = tell
        self._stream = stream
        self._rewrites = rewrites
        self._begun = time.monotonic()
        self._ended = threading.Event()
        self._width = 0

    def run(self) -> None:
        often = self._rewrites or self._tell is not None
        pause = PATIENCE
        while not self._ended.wait(pause):
            pause = _TERMINAL_EVERY if often else _PLAIN_EVERY
            words = self._words()
            if words:
                self._write(f"{words} · {time.monotonic() - self._begun:.0f} s so far")

    def _write(self, text: str) -> None:
        if self._tell is not None:
            self._tell(text)
        elif self._rewrites:
            self._stream.write("\r" + text.ljust(self._width))
            self._width = len(text)
        else:
            self._stream.write(text + "\n")
        self._stream.flush()

    def stop(self) -> None:
        """Stop the thread and clear the line."""
        self._ended.set()
        self.join()
        if self._width:
            self._stream.write("\r" + " " * self._width + "\r")
            self._stream.flush()
