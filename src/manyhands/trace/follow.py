"""A run's trace while it grows: settings, validation metrics and events, as they are written."""

from __future__ import annotations

from pathlib import Path

from manyhands.trace.merge import parse_record
from manyhands.trace.records import Event, Header, Point, Setting


class Following:
    """Reads what is new in the trace files of a run's folder.

    Args:
        folder: the run's folder, which need not exist yet.
    """

    def __init__(self, folder: Path | str) -> None:
        self._folder = Path(folder) / "trace"
        self._read: dict[Path, int] = {}
        """By file, the bytes that were read."""
        self._begun: dict[Path, float] = {}
        """By file, the time of its process's start on the clock of the file."""

    def new(self) -> list[tuple[float, Point | Event | Setting]]:
        """What is new since the last call, each with seconds since its process started."""
        found: list[tuple[float, Point | Event | Setting]] = []
        for path in sorted(self._folder.glob("*.jsonl")):
            with path.open("rb") as file:
                file.seek(self._read.get(path, 0))
                text = file.read()
            whole = text.rfind(b"\n") + 1
            self._read[path] = self._read.get(path, 0) + whole
            for line in text[:whole].splitlines():
                record = parse_record(line)
                if isinstance(record, Header):
                    self._begun[path] = record.clock
                elif isinstance(record, Setting):
                    found.append((0.0, record))
                elif isinstance(record, (Point, Event)):
                    found.append((record.at - self._begun.get(path, record.at), record))
        return found
