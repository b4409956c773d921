"""A run's trace while it grows: its records, as they are written."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from manyhands.trace.merge import parse_record
from manyhands.trace.records import Event, Header, Point, Setting

if TYPE_CHECKING:
    from collections.abc import Iterator

    from manyhands.trace.records import Record


class Following:
    """Reads what is new in the trace files of a run's folder.

    Args:
        folder: the run's folder, which need not exist yet.
    """

    def __init__(self, folder: Path | str) -> None:
        self._folder = Path(folder) / "trace"
        self._read: dict[Path, int] = {}
        """By file, the bytes that were read."""
        self._begun: dict[str, float] = {}
        """By process, the time of its start on its own clock."""

    def new(self) -> list[tuple[float, Point | Event | Setting]]:
        """What is new since the last call, each with seconds since its process started."""
        found: list[tuple[float, Point | Event | Setting]] = []
        for name, record in self.records():
            if isinstance(record, Header):
                self._begun[name] = record.clock
            elif isinstance(record, Setting):
                found.append((0.0, record))
            elif isinstance(record, (Point, Event)):
                found.append((record.at - self._begun.get(name, record.at), record))
        return found

    def records(self) -> Iterator[tuple[str, Record]]:
        """All records since the last call, each with the name of its process, as in `worker-0`."""
        for path in sorted(self._folder.glob("*.jsonl")):
            with path.open("rb") as file:
                file.seek(self._read.get(path, 0))
                text = file.read()
            whole = text.rfind(b"\n") + 1
            self._read[path] = self._read.get(path, 0) + whole
            for line in text[:whole].splitlines():
                record = parse_record(line)
                if record is not None:
                    yield path.stem, record
