"""Trace files, written so that a full disk does not end the training.

Lines that cannot be written are kept in memory, up to a limit, and written later. Lines beyond the
limit are dropped and counted: sums in a trace are cumulative, so a gap loses spans and points, and
the totals are correct again with the next sums.
"""

from __future__ import annotations

import os
import sys
import time
from collections import deque
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

KEPT = 64 * 1024 * 1024
"""The most bytes that wait for space, of all files together."""
_EVERY = 0.5


class TraceFiles:
    """Appends lines to files, at once or when there is space.

    Args:
        say: receives a message when writing fails and when it works again.
        clock: a source of seconds.
        kept: the most bytes that may wait for space.
    """

    def __init__(
        self,
        say: Callable[[str], object],
        clock: Callable[[], float] = time.monotonic,
        kept: int = KEPT,
    ) -> None:
        self._say = say
        self._clock = clock
        self._room = kept
        self._waiting: dict[Path, deque[bytes]] = {}
        self._left_out: dict[str, int] = {}
        self._since: float | None = None
        """When writing first failed; None while it works."""
        self._tried = 0.0
        self._words = ""
        self._heads: dict[Path, bytes] = {}
        """By file, its first line, for a file that was deleted and is made again."""
        self.note: Callable[[Mapping[str, str]], None] = lambda _: None
        """Records that lines waited for space: for how many seconds, and what is missing."""

    def append(self, path: Path, lines: bytes) -> None:
        """Append complete lines to a file."""
        self._heads.setdefault(path, lines.lstrip(b"\n").partition(b"\n")[0] + b"\n")
        # What waits is older: lines of a file stay in their order.
        self.retry()
        if self._since is None and self._write(path, lines):
            return
        if len(lines) > self._room:
            self._left_out[path.name] = self._left_out.get(path.name, 0) + len(lines)
            return
        self._room -= len(lines)
        self._waiting.setdefault(path, deque()).append(lines)

    def retry(self, *, now: bool = False) -> None:
        """Write waiting lines, if there is space again; at most twice a second."""
        due = self._clock() - self._tried >= _EVERY
        if self._since is None or not (due or now):
            return
        for path, waiting in list(self._waiting.items()):
            while waiting:
                if not self._write(path, waiting[0]):
                    return
                self._room += len(waiting.popleft())
            del self._waiting[path]
        seconds, self._since = self._clock() - self._since, None
        self._say(f"trace: written again after {seconds:.0f} s; {self._missing()}")
        self.note({"seconds": f"{seconds:.3f}", "words": self._missing()})
        self._left_out.clear()

    def close(self) -> None:
        """Try a last time, and report what is missing."""
        self.retry(now=True)
        if self._since is not None:
            for path, waiting in self._waiting.items():
                left = self._left_out.get(path.name, 0)
                self._left_out[path.name] = left + sum(len(lines) for lines in waiting)
            self._say(f"trace: {self._missing()}: {self._words}")

    def _missing(self) -> str:
        if not self._left_out:
            return "nothing is missing"
        total = sum(self._left_out.values())
        return f"{total:,} bytes of {len(self._left_out)} files are missing"

    def _write(self, path: Path, lines: bytes) -> bool:
        """Append all of the lines or none of them; return whether they were appended."""
        self._tried = self._clock()
        try:
            file = _opened(path)
            try:
                before, done = os.fstat(file).st_size, 0
                if before == 0 and not lines.lstrip(b"\n").startswith(self._heads[path]):
                    lines = self._heads[path] + lines
                try:
                    while done < len(lines):
                        done += os.write(file, lines[done:])
                except OSError:
                    # A part of a line would make the next one unreadable, too.
                    os.ftruncate(file, before)
                    raise
            finally:
                os.close(file)
        except OSError as error:
            if self._since is None:
                self._since, self._words = self._clock(), error.strerror or str(error)
                self._say(
                    f"trace: {path.name} cannot be written: {self._words}. Training continues; the "
                    "trace is kept in memory until there is space"
                )
            return False
        return True


def _opened(path: Path) -> int:
    """A file to append to; its folder is made again if it was deleted."""
    how = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC
    try:
        return os.open(path, how, 0o666)
    except FileNotFoundError:
        path.parent.mkdir(parents=True, exist_ok=True)
        return os.open(path, how, 0o666)


def append_to(path: Path) -> Callable[[bytes], None]:
    """A sink that appends to a file, and reports problems on standard error."""
    files = TraceFiles(lambda words: print(words, file=sys.stderr))

    def sink(lines: bytes) -> None:
        files.append(path, lines)

    return sink
