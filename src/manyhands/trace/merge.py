"""Reads the traces of a run's processes and merges them on one clock.

The reference clock is the coordinator's, or worker 0's if there is none. Processes of one boot
share a clock, so their offset is exactly 0; others are shifted by the best estimate that any
process of their boot recorded. Incomplete lines (their process was killed) and lines that this
version does not know are skipped and counted.
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
"""A longer line is no record; it is skipped without being read into memory."""

_ROLES: Final = ("agent", "coordinator", "server", "worker")

_decoder: Final[msgspec.json.Decoder[Record]] = msgspec.json.Decoder(Record)


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessTrace:
    """The trace of one incarnation of a process, all times in seconds since the run's start."""

    name: str
    """Name of the process and its file, as in `worker-0`."""
    life: int
    """Incarnation of the process, from 0: each restart begins a new trace."""
    header: Header
    """The header as written, on the process's own clock."""
    began: float
    """The time of the header."""
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
    """Lines that were incomplete, too long or unknown."""
    staleness_by_sender: Mapping[str, Mapping[int, int]] = field(default_factory=dict)
    """By sender; if there are very many senders, only of the first ones."""
    history: tuple[tuple[float, int, int], ...] = ()
    """Each time that the totals were written: the time, the samples and the bytes sent so far."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Trace:
    """The merged trace of a run: agents, coordinator, servers, workers, each in order.

    Example:
        >>> import manyhands as mh
        >>> mh.Trace(processes=(), wall=0.0, kind="virtual").workers
        ()
    """

    processes: tuple[ProcessTrace, ...]
    wall: float
    """Unix time of the run's start, the earliest time in any of its traces."""
    kind: Literal["live", "virtual"]
    unplaced: int = 0
    """Lines before a readable header, which belong to no process."""
    folder: Path | None = None

    @property
    def workers(self) -> tuple[ProcessTrace, ...]:
        """The workers' traces, by rank and incarnation."""
        return tuple(process for process in self.processes if process.header.role == "worker")

    @property
    def skipped(self) -> int:
        """Lines that could not be read, in all files."""
        return self.unplaced + sum(process.skipped for process in self.processes)


@dataclass(slots=True)
class _Incarnation:
    """The records of one incarnation of a process, on its own clock."""

    name: str
    number: int
    header: Header
    spans: list[Span] = field(default_factory=list)
    totals: Totals | None = None
    history: list[tuple[float, int, int]] = field(default_factory=list)
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
                self.history.append((record.at, record.samples, sum(record.sent.values())))
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
        """This incarnation's trace, with times since `start` on the reference clock."""

        def place(at: float) -> float:
            # Rounded as `start` was, so that no time is negative.
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
            history=tuple((place(at), samples, sent) for at, samples, sent in self.history),
        )


def read(folder: Path | str) -> Trace:
    """Read the trace of the run in a folder."""
    folder = Path(folder)
    paths = sorted((folder / "trace").glob("*.jsonl"))
    if not paths:
        raise FileNotFoundError(
            f"{folder} holds no run: it has no file trace/*.jsonl. "
            "Give the folder that is printed in a run's summary"
        )
    return merge(_opened(paths), folder)


def merge(files: Iterable[tuple[str, BinaryIO]], folder: Path | None = None) -> Trace:
    """Merge the files of a run's processes, each with its name; their order does not matter."""
    incarnations: list[_Incarnation] = []
    unplaced = 0
    for name, file in files:
        found, orphans = _parse(name, file)
        incarnations += found
        unplaced += orphans
    if not incarnations:
        raise ValueError(
            f"no readable trace in {folder or 'these files'}: no file has a header "
            f"({unplaced} lines were skipped); the run ended before its processes started"
        )
    incarnations.sort(key=_order)
    reference = _reference(incarnations)
    estimates = _estimates(incarnations)
    offsets = [_offset(incarnation, reference, estimates) for incarnation in incarnations]
    start = min(
        incarnation.earliest() + offset.seconds
        for incarnation, offset in zip(incarnations, offsets, strict=True)
    )
    return Trace(
        processes=tuple(
            incarnation.moved(offset, start)
            for incarnation, offset in zip(incarnations, offsets, strict=True)
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


def _parse(name: str, file: BinaryIO) -> tuple[list[_Incarnation], int]:
    """The incarnations in one file, and the number of lines before the first header."""
    incarnations: list[_Incarnation] = []
    orphans = 0
    for line in _lines(file):
        record = parse_record(line)
        if isinstance(record, Header):
            if record.format > FORMAT:
                raise ValueError(
                    f"the trace of {name} has format {record.format}, but this version of "
                    f"Manyhands reads up to {FORMAT}: read it with the version that wrote it"
                )
            incarnations.append(_Incarnation(name, len(incarnations), record))
        elif not incarnations:
            orphans += 1
        elif record is None:
            incarnations[-1].skipped += 1
        else:
            incarnations[-1].add(record)
    return incarnations, orphans


def _lines(file: BinaryIO) -> Iterator[bytes]:
    """The non-blank lines; a line that is too long is replaced by an invalid record."""
    while line := file.readline(LONGEST_LINE + 1):
        if len(line) > LONGEST_LINE and not line.endswith(b"\n"):
            while line and not line.endswith(b"\n"):
                line = file.readline(LONGEST_LINE)
            yield b"?"
        elif line.strip():
            yield line


def parse_record(line: bytes) -> Record | None:
    """The record in a line; None if it is not a valid one."""
    try:
        return _decoder.decode(line)
    except (ValueError, RecursionError):
        # ValueError: incomplete, not JSON, not UTF-8, or a record this version does not know.
        # RecursionError: thousands of nested brackets.
        return None


def _order(incarnation: _Incarnation) -> tuple[int, str, int, str, int]:
    role = incarnation.header.role
    known = _ROLES.index(role) if role in _ROLES else len(_ROLES)
    return known, role, incarnation.header.rank, incarnation.name, incarnation.number


def _reference(incarnations: list[_Incarnation]) -> _Incarnation:
    """The coordinator, else the first worker, else the first process."""
    for role in ("coordinator", "worker"):
        for incarnation in incarnations:
            if incarnation.header.role == role:
                return incarnation
    return incarnations[0]


def _estimates(incarnations: list[_Incarnation]) -> dict[str, Offset]:
    """By boot, the best estimate of its clock's offset: processes of one boot share a clock."""
    best: dict[str, Offset] = {}
    for incarnation in incarnations:
        known = best.get(incarnation.header.boot)
        offsets = incarnation.offsets if known is None else [known, *incarnation.offsets]
        if offsets:
            best[incarnation.header.boot] = min(offsets, key=lambda o: (o.error, o.at, o.seconds))
    return best


def _offset(
    incarnation: _Incarnation, reference: _Incarnation, estimates: Mapping[str, Offset]
) -> Offset:
    if incarnation.header.boot == reference.header.boot:
        return Offset(0.0, 0.0, 0.0)
    best = estimates.get(incarnation.header.boot)
    if best is not None:
        return best
    # There was no estimate. Wall clocks usually agree within a second; the error is unbounded.
    here = incarnation.header.wall - incarnation.header.clock
    there = reference.header.wall - reference.header.clock
    return Offset(0.0, here - there, math.inf)
