"""The traces of workers and servers, which they send and the coordinator writes."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

    from manyhands.live.member.trace_files import TraceFiles

_LIMIT = 256 * 1024 * 1024
"""Bytes of one process's trace."""
_NAME = re.compile(r"(worker|server)-\d{1,6}")


def is_member(name: str) -> bool:
    """Whether this is the name of a worker or a server."""
    return _NAME.fullmatch(name) is not None


class MemberTraces:
    """The files of the members' traces, up to a limit for each process.

    Args:
        folder: the folder of the run's traces.
        files: writes them.
    """

    def __init__(self, folder: Path, files: TraceFiles) -> None:
        self._folder = folder
        self._files = files
        self._written: dict[str, int] = {}

    def append(self, name: str, lines: bytes) -> None:
        """Append lines to the trace of a member; others have none."""
        written = self._written.get(name, 0) + len(lines)
        if is_member(name) and written <= _LIMIT:
            self._written[name] = written
            self._files.append(self._folder / f"{name}.jsonl", lines)
