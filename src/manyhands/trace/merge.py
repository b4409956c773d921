"""Reading a run's traces and putting all of its processes on one clock.

The reference clock is the coordinator's, or worker 0's where there is none. Processes of one boot
share a clock, so their offset is exactly 0; others are moved by the best estimate that any process
of their boot wrote down. A trace that ends in the middle of a line (its process was killed), or
has lines that this version does not know, is read for the rest, and those lines are counted.
"""

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO, Final, Literal

import msgspec

from manyhands.trace.records import (
    FORMAT,
    Event,
    Header,
    Offset,
    Point,
    Record,
    SampleCount,
    SenderStaleness,
    Setting,
    Span,
    Staleness,
    Totals,
)

LONGEST_LINE: Final = 1 << 20
"""A longer line is none of ours; it is skipped without being held in memory."""

_ROLES: Final = ("agent", "coordinator", "server", "worker")

_decoder: Final[msgspec.json.Decoder[Record]] = msgspec.json.Decoder(Record)


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessTrace:
    """What one process wrote, all times in seconds since the run's start."""

    name: str
    """The file's, as in `worker-0`."""
    life: int
    """0, and one more for every time the process was restarted: each life is its own trace."""
    header: Header
    """As written, on the process's own clock."""
    began: float
    """The header's moment."""
    offset: float
    """Reference clock minus own clock."""
    offset_error: float
    """Bound on the offset's error; infinite where only the hosts' wall clocks could be used."""
    spans: tuple[Span, ...]
    totals: Totals
    points: tuple[Point, ...]
    events: tuple[Event, ...]
    settings: tuple[Setting, ...]
    staleness: Mapping[int, int]
    samples: SampleCount | None
    skipped: int
    """Lines that were torn, too long or unknown."""
    staleness_by_sender: Mapping[str, Mapping[int, int]] = field(default_factory=dict)
    """Of the first senders only, where there are very many."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Trace:
    """A run as its processes saw it: agents, coordinator, servers, workers, each in order.

    Example:
        >>> import manyhands as mh
        >>> mh.Trace(processes=(), wall=0.0, kind="virtual").workers
        ()
    """

    processes: tuple[ProcessTrace, ...]
    wall: float
    """Unix time of the run's start, the earliest moment in any of its traces."""
    kind: Literal["live", "virtual"]
    unplaced: int = 0
    """Lines of files without a readable header, which belong to nobody."""
    folder: Path | None = None

    @property
    def workers(self) -> tuple[ProcessTrace, ...]:
        """The workers' traces, by rank and life."""
        return tuple(process for process in self.processes if process.header.role == "worker")

    @property
    def skipped(self) -> int:
        """Lines that could not be read, in all files."""
        return self.unplaced + sum(process.skipped for process in self.processes)


@dataclass(slots=True)
class _Life:
    """What was read of one process so far, on its own clock."""

    name: str
    number: int
    header: Header
    spans: list[Span] = field(default_factory=list)
    totals: Totals | None = None
    points: list[Point] = field(default_factory=list)
    events: list[Event] = field(default_factory=list)
    settings: list[Setting] = field(default_factory=list)
    offsets: list[Offset] = field(default_factory=list)
    staleness: Staleness | None = None
    by_sender: dict[str, Mapping[int, int]] = field(default_factory=dict)
    samples: SampleCount | None = None
    skipped: int = 0

    def add(self, record: Record) -> None:
        match record:
            case Span():
                self.spans.append(record)
            case Point():
                self.points.append(record)
            case Totals():
                self.totals = record
            case Event():
                self.events.append(record)
            case Setting():
                self.settings.append(record)
            case Staleness():
                self.staleness = record
            case SenderStaleness():
                self.by_sender[record.sender] = record.counts
            case SampleCount():
                self.samples = record
            case Offset():
                self.offsets.append(record)

    def earliest(self) -> float:
        times = [self.header.clock]
        times += (span.start for span in self.spans)
        times += (point.at for point in self.points)
        times += (event.at for event in self.events)
        return min(times)

    def moved(self, offset: Offset, start: float) -> ProcessTrace:
        """This life on the reference clock, from `start` on that clock."""

        def place(at: float) -> float:
            # Rounded as `start` was, so that nothing comes out before it.
            return (at + offset.seconds) - start

        totals = self.totals or Totals(self.header.clock, 0, 0, {}, {}, {})
        return ProcessTrace(
            name=self.name,
            life=self.number,
            header=self.header,
            began=place(self.header.clock),
            offset=offset.seconds,
            offset_error=offset.error,
            spans=tuple(Span(s.kind, place(s.start), s.seconds, s.step) for s in self.spans),
            totals=msgspec.structs.replace(totals, at=place(totals.at)),
            points=tuple(
                Point(place(p.at), p.name, p.value, p.samples, p.weight) for p in self.points
            ),
            events=tuple(Event(place(e.at), e.what, e.detail) for e in self.events),
            settings=tuple(self.settings),
            staleness=self.staleness.counts if self.staleness else {},
            samples=self.samples
            and msgspec.structs.replace(self.samples, at=place(self.samples.at)),
            skipped=self.skipped,
            staleness_by_sender=self.by_sender,
        )


def read(folder: Path | str) -> Trace:
    """The trace of the run in that folder."""
    folder = Path(folder)
    paths = sorted((folder / "trace").glob("*.jsonl"))
    if not paths:
        raise FileNotFoundError(
            f"{folder} holds no run: there is no file trace/*.jsonl in it. "
            "Give the folder that a run's summary names"
        )
    return merge(_opened(paths), folder)


def merge(files: Iterable[tuple[str, BinaryIO]], folder: Path | None = None) -> Trace:
    """One trace from the processes' files, each with its name; their order does not matter."""
    lives: list[_Life] = []
    unplaced = 0
    for name, file in files:
        found, orphans = _parse(name, file)
        lives += found
        unplaced += orphans
    if not lives:
        raise ValueError(
            f"no readable trace in {folder or 'these files'}: none has a header "
            f"({unplaced} lines were skipped); the run ended before its processes began"
        )
    lives.sort(key=_order)
    reference = _reference(lives)
    estimates = _estimates(lives)
    offsets = [_offset(life, reference, estimates) for life in lives]
    start = min(
        life.earliest() + offset.seconds for life, offset in zip(lives, offsets, strict=True)
    )
    return Trace(
        processes=tuple(
            life.moved(offset, start) for life, offset in zip(lives, offsets, strict=True)
        ),
        wall=reference.header.wall + (start - reference.header.clock),
        kind=reference.header.kind,
        unplaced=unplaced,
        folder=folder,
    )


def _opened(paths: Iterable[Path]) -> Iterator[tuple[str, BinaryIO]]:
    for path in paths:
        with path.open("rb") as file:
            yield path.stem, file


def _parse(name: str, file: BinaryIO) -> tuple[list[_Life], int]:
    """The lives in one file, and how many lines stand before the first header."""
    lives: list[_Life] = []
    orphans = 0
    for line in _lines(file):
        record = _record(line)
        if isinstance(record, Header):
            if record.format > FORMAT:
                raise ValueError(
                    f"the trace of {name} has format {record.format} and this version of "
                    f"Manyhands reads up to {FORMAT}: read it with the version that wrote it"
                )
            lives.append(_Life(name, len(lives), record))
        elif not lives:
            orphans += 1
        elif record is None:
            lives[-1].skipped += 1
        else:
            lives[-1].add(record)
    return lives, orphans


def _lines(file: BinaryIO) -> Iterator[bytes]:
    """The lines that are not blank; in place of one that is too long, a byte that is no record."""
    while line := file.readline(LONGEST_LINE + 1):
        if len(line) > LONGEST_LINE and not line.endswith(b"\n"):
            while line and not line.endswith(b"\n"):
                line = file.readline(LONGEST_LINE)
            yield b"?"
        elif line.strip():
            yield line


def _record(line: bytes) -> Record | None:
    try:
        return _decoder.decode(line)
    except (ValueError, RecursionError):
        # ValueError: torn, not JSON, not UTF-8, or a record this version does not know.
        # RecursionError: brackets, thousands deep.
        return None


def _order(life: _Life) -> tuple[int, str, int, str, int]:
    role = life.header.role
    known = _ROLES.index(role) if role in _ROLES else len(_ROLES)
    return known, role, life.header.rank, life.name, life.number


def _reference(lives: list[_Life]) -> _Life:
    """The coordinator, else the first worker, else whoever comes first."""
    for role in ("coordinator", "worker"):
        for life in lives:
            if life.header.role == role:
                return life
    return lives[0]


def _estimates(lives: list[_Life]) -> dict[str, Offset]:
    """By boot the best estimate of its clock's offset: processes of one boot share a clock."""
    best: dict[str, Offset] = {}
    for life in lives:
        known = best.get(life.header.boot)
        offsets = life.offsets if known is None else [known, *life.offsets]
        if offsets:
            best[life.header.boot] = min(offsets, key=lambda o: (o.error, o.at, o.seconds))
    return best


def _offset(life: _Life, reference: _Life, estimates: Mapping[str, Offset]) -> Offset:
    if life.header.boot == reference.header.boot:
        return Offset(0.0, 0.0, 0.0)
    best = estimates.get(life.header.boot)
    if best is not None:
        return best
    # Nobody asked. The hosts' wall clocks are usually right to a second; nothing bounds that.
    here = life.header.wall - life.header.clock
    there = reference.header.wall - reference.header.clock
    return Offset(0.0, here - there, math.inf)
