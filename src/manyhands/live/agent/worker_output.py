"""Worker output: shows in the terminal what worker 0 prints, and the warnings of all workers.

Workers write to log files, which the agent follows, so a worker never waits for a terminal. Of
identical warnings only the first is shown, with the rank of its worker.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

_LOOK_EVERY = 0.5
"""Seconds between two readings."""
_AT_ONCE = 1 << 16
"""The most bytes of a file that are read in one call."""
_HOLD = 5.0
"""Seconds for which a traceback is held back: if its worker fails, the failure contains it."""
_WARNING = re.compile(rb"^\S.*: \w*Warning: .*|^\[W\d{4} .*")
"""A line of a Python warning or of torch's C++ log."""
_TRACEBACK = b"Traceback (most recent call last)"


class WorkerOutput:
    """Follows the log files of this host's workers.

    Args:
        folder: folder of the log files.
        say: shows a line.
        clock: a source of seconds.
        quiet: show nothing.
    """

    def __init__(
        self,
        folder: Path,
        say: Callable[[str], None],
        clock: Callable[[], float],
        *,
        quiet: bool = False,
    ) -> None:
        self._folder = folder
        self._say = say
        self._clock = clock
        self._quiet = quiet
        self._files: list[_Followed] = []
        self._known: set[bytes] = set()
        self._held: list[str] = []
        self._held_since = 0.0
        self._looked = -_LOOK_EVERY

    def follow(self, rank: int, log: str) -> None:
        """Follow the files `log`.out and `log`.err of a worker."""
        if self._quiet:
            return
        if rank == 0:
            self._files.append(_Followed(self._folder / f"{log}.out", rank))
        self._files.append(_Followed(self._folder / f"{log}.err", rank, errors=True))

    def look(self) -> None:
        """Show new lines, at most every half second."""
        now = self._clock()
        if now - self._looked < _LOOK_EVERY:
            return
        self._looked = now
        for file in self._files:
            self._show(file, file.read())
        if self._held and now - self._held_since > _HOLD:
            self._release()

    def end(self, *, failed: bool) -> None:
        """Show the remaining lines; if the run has failed, its failure contains the traceback."""
        for file in self._files:
            while lines := file.read(last=True):
                self._show(file, lines)
        if not failed:
            self._release()
        self._held = []

    def _show(self, file: _Followed, lines: list[bytes]) -> None:
        for line in lines:
            warning = file.errors and _WARNING.match(line) is not None
            if warning and line in self._known:
                continue
            if warning:
                self._known.add(line)
            elif file.rank:
                continue
            words = f"[worker {file.rank}] {line.decode('utf-8', 'replace')}"
            if file.errors and (self._held or line.startswith(_TRACEBACK)):
                self._held_since = self._held_since if self._held else self._clock()
                self._held.append(words)
            else:
                self._say(words)

    def _release(self) -> None:
        for words in self._held:
            self._say(words)
        self._held = []


class _Followed:
    """A log file, read from where the last call stopped."""

    def __init__(self, path: Path, rank: int, *, errors: bool = False) -> None:
        self.rank = rank
        self.errors = errors
        self._path = path
        self._read = 0

    def read(self, *, last: bool = False) -> list[bytes]:
        """Complete lines since the last call; with `last`, also a line without a newline."""
        try:
            if self._path.stat().st_size <= self._read:
                return []
            with self._path.open("rb") as file:
                file.seek(self._read)
                text = file.read(_AT_ONCE)
        except OSError:  # it does not exist yet
            return []
        cut = text.rfind(b"\n") + 1
        if not cut and not last and len(text) < _AT_ONCE:
            return []
        text = text[: cut or len(text)]
        self._read += len(text)
        return text.splitlines()
