"""Timeline of a run as one SVG: a row for every worker and server.

A worker that calls a server records one span from its call to the answer: a transfer and, if the
server waits for other workers, a wait. The trace does not distinguish them. The last worker does
not wait, so the shortest such span of any worker after a computation is taken as the transfer, and
the rest as waiting. In a collective the same is done step by step, as in `breakdown`.
"""

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Final
from xml.sax.saxutils import escape

from manyhands.reports.figures.breakdown import CATEGORY
from manyhands.reports.figures.fault_times import fault_times
from manyhands.reports.figures.outcome import settings
from manyhands.reports.figures.speed import started
from manyhands.trace import ProcessTrace, Span, Trace

MOST_WORKERS: Final = 16
MOST_SERVERS: Final = 4
MOST_SPANS: Final = 800
"""So that a picture stays below 60 kB; beyond, the time that is shown is cut."""

_COLOURS: Final = {
    "compute": "#0072B2",
    "wait": "#E69F00",
    "communication": "#009E73",
    "coding": "#D55E00",
    "data": "#56B4E9",
    "evaluation": "#CC79A7",
}
"""Okabe and Ito's, which the colour-blind can tell apart; waits are thinner, too."""

_GAP: Final = 1e-3
"""Seconds: answers that are not further apart belong to one exchange."""

_WIDTH, _LEFT, _RIGHT = 860, 92, 18
_TOP, _ROW, _BAR, _THIN = 62, 26, 18, 6
_PLOT: Final = _WIDTH - _LEFT - _RIGHT

_STYLE: Final = """
.paper{fill:#fff}.ink{fill:#24292f}.faint{fill:#57606a}.line{stroke:#d0d7de}.bar{stroke:#fff}
@media(prefers-color-scheme:dark){
.paper{fill:#0d1117}.ink{fill:#e6edf3}.faint{fill:#9da7b3}.line{stroke:#30363d}.bar{stroke:#0d1117}}
text{font:12px system-ui,-apple-system,"Segoe UI","DejaVu Sans",sans-serif}
.title{font-size:15px;font-weight:600}.bar{stroke-width:.6}
"""


@dataclass(frozen=True, slots=True)
class Bar:
    """A bar in a row: an activity from start to stop."""

    band: str
    start: float
    stop: float


@dataclass(frozen=True, slots=True)
class TimelineRow:
    """A process over all of its incarnations."""

    name: str
    is_server: bool
    bars: tuple[Bar, ...]
    marks: tuple[tuple[float, str], ...] = ()
    """Faults on purpose: when, and what in words."""


def timeline(trace: Trace) -> str:
    """The timeline of all processes as SVG; the same trace gives the same text.

    Time counts from the beginning of training. Servers that recorded nothing have no row. Of many
    workers, and of many spans, the first are shown, and a note says so.
    """
    workers, servers = rows_of(trace)
    notes = [
        note
        for note in (
            _more(len(workers) - MOST_WORKERS, "worker"),
            _more(len(servers) - MOST_SERVERS, "server"),
        )
        if note
    ]
    rows = [*workers[:MOST_WORKERS], *servers[:MOST_SERVERS]]
    end = max((one.stop for row in rows for one in row.bars), default=0.0)
    starts = sorted(one.start for row in rows for one in row.bars)
    if len(starts) > MOST_SPANS:
        shown = starts[MOST_SPANS]
        notes.append(f"the first {_seconds(shown)} of {_seconds(end)}")
        end = shown
    if not starts:
        notes.append("nothing was recorded")
    return "\n".join(_picture(_title(trace), rows, end, notes)) + "\n"


def rows_of(trace: Trace) -> tuple[list[TimelineRow], list[TimelineRow]]:
    """The rows of workers and of servers, from the moment at which a worker had started up."""
    begin = min(map(started, trace.workers), default=0.0)
    transfers = _transfers(trace.workers)
    by_name: dict[str, dict[str, list[Bar]]] = {"worker": {}, "server": {}}
    for process in trace.processes:
        if process.header.role in by_name:
            bars = by_name[process.header.role].setdefault(process.name, [])
            for one in _bars_of(process, transfers):
                start, stop = max(0.0, one.start - begin), one.stop - begin
                if stop > start:
                    bars.append(Bar(one.band, start, stop))
    marks = _marks(trace)
    workers, servers = (
        [
            TimelineRow(name, role == "server", tuple(bars), tuple(marks.get(name, ())))
            for name, bars in rows.items()
        ]
        for role, rows in by_name.items()
    )
    return workers, [row for row in servers if row.bars]


def _marks(trace: Trace) -> dict[str, list[tuple[float, str]]]:
    """The faults on purpose of each process, and those of a host of all processes on it."""
    on: dict[str, set[str]] = {}
    for process in trace.processes:
        on.setdefault(process.header.host, set()).add(process.name)
    marks: dict[str, list[tuple[float, str]]] = {}
    for one in fault_times(trace):
        names = one.fault.members() or on.get(getattr(one.fault, "host", ""), ())
        for name in names:
            marks.setdefault(name, []).append((one.at, one.words))
    return marks


def _bars_of(process: ProcessTrace, transfers: dict[int | None, float]) -> Iterator[Bar]:
    for exchange, _ in _exchanges(process):
        first, last = exchange[0], exchange[-1]
        if first.kind not in ("receive", "exchange"):
            band = CATEGORY.get(first.kind)
            if band is not None:
                yield Bar(band, first.start, first.start + first.seconds)
            continue
        stop = last.start + last.seconds
        transfer = transfers.get(_key(first), math.inf)
        turn = max(first.start, stop - transfer)
        yield Bar("wait", first.start, turn)
        yield Bar("communication", turn, stop)


def _transfers(workers: Iterable[ProcessTrace]) -> dict[int | None, float]:
    """The duration of an exchange without waiting."""
    shortest: dict[int | None, float] = {}
    for worker in workers:
        for exchange, before in _exchanges(worker):
            first, last = exchange[0], exchange[-1]
            if first.kind in ("receive", "exchange") and before == "compute":
                seconds = last.start + last.seconds - first.start
                key = _key(first)
                shortest[key] = min(seconds, shortest.get(key, seconds))
    return shortest


def _key(span: Span) -> int | None:
    """Collectives are compared step by step; workers that run free have steps of their own."""
    return span.step if span.kind == "exchange" else None


def _exchanges(process: ProcessTrace) -> Iterator[tuple[list[Span], str]]:
    """The spans in order, answers of several servers together; and of what kind was the one before.

    Posting happens within other spans and between answers, so it is passed over.
    """
    together: list[Span] = []
    before = kind = ""
    for span in sorted(process.spans, key=lambda span: (span.start, span.seconds)):
        if span.kind in ("send", "encode"):
            yield [span], ""
            continue
        if together and span.kind == kind == "receive":
            end = together[-1].start + together[-1].seconds
            if span.start - end <= _GAP:
                together.append(span)
                continue
        if together:
            yield together, before
            before = kind
        together, kind = [span], span.kind
    if together:
        yield together, before


def _picture(title: str, rows: list[TimelineRow], end: float, notes: list[str]) -> Iterator[str]:
    bottom = _TOP + _ROW * max(1, len(rows))
    height = bottom + 30 + (18 if notes else 0)
    yield (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{_WIDTH}" height="{height}" '
        f'viewBox="0 0 {_WIDTH} {height}" role="img">'
    )
    yield f"<title>{escape(title)}: a timeline</title>"
    yield f"<style>{_STYLE}</style>"
    yield f'<rect class="paper" width="{_WIDTH}" height="{height}" rx="6"/>'
    yield f'<text class="ink title" x="14" y="24">{escape(title)}</text>'
    bands = {one.band for row in rows for one in row.bars}
    yield from _legend([band for band in _COLOURS if band in bands])
    yield from _axis(end, bottom)
    for number, row in enumerate(rows):
        yield from _bars(row, _TOP + _ROW * number, end)
    if notes:
        words = escape("; ".join(notes))
        yield f'<text class="faint" x="14" y="{height - 10}">{words}</text>'
    yield "</svg>"


def _legend(bands: list[str]) -> Iterator[str]:
    x = _LEFT
    for band in bands:
        y, size = (43, _THIN) if band == "wait" else (40, 12)
        yield f'<rect x="{x}" y="{y}" width="18" height="{size}" fill="{_COLOURS[band]}"/>'
        yield f'<text class="ink" x="{x + 24}" y="50">{band}</text>'
        x += 24 + 8 * len(band) + 20


def _axis(end: float, bottom: int) -> Iterator[str]:
    step = _step(end)
    scale, unit = (1e3, "ms") if step < 1e-1 else (1.0, "s")
    for number in range(int(end / step * (1 + 1e-9)) + 1 if end else 0):
        at = number * step
        x = _number(_LEFT + at / end * _PLOT)
        yield f'<path class="line" d="M{x} {_TOP - 2}V{bottom + 2}"/>'
        yield (
            f'<text class="faint" x="{x}" y="{bottom + 17}" text-anchor="middle">'
            f"{_number(at * scale)} {unit}</text>"
        )


def _bars(row: TimelineRow, top: int, end: float) -> Iterator[str]:
    yield f'<text class="ink" x="14" y="{top + 17}">{escape(row.name)}</text>'
    for band, colour in _COLOURS.items():
        high = _THIN if band == "wait" else _BAR
        y = top + (_ROW - high) // 2
        bars = []
        for one in row.bars:
            stop = min(one.stop, end)
            if one.band == band and stop > one.start:
                x, width = one.start / end * _PLOT, (stop - one.start) / end * _PLOT
                bars.append(
                    f'<rect x="{_number(_LEFT + x)}" y="{y}" '
                    f'width="{_number(width)}" height="{high}"/>'
                )
        if bars:
            # A server's work is shorter than the line that tells two steps of a worker apart.
            edge = "" if row.is_server else "bar "
            yield f'<g class="{edge}{band}" fill="{colour}">'
            yield from bars
            yield "</g>"
    for at, words in row.marks:
        if end and at <= end:
            place = _number(_LEFT + at / end * _PLOT)
            line = f'd="M{place} {top + 2}V{top + _ROW - 2}"'
            yield f'<path class="fault" stroke="#cf222e" stroke-width="2" {line}>'
            yield f"<title>{escape(words)}</title></path>"


def _title(trace: Trace) -> str:
    told = {setting.name: setting.value for setting in settings(trace)}
    workers = told.get("workers") or str(len({worker.header.rank for worker in trace.workers}))
    kind = "virtual " if trace.kind == "virtual" else ""
    s = "" if workers == "1" else "s"
    return f"{told.get('strategy', 'a run')} on {workers} {kind}worker{s}"


def _more(count: int, what: str) -> str:
    return f"{count:,} more {what}{'s' if count > 1 else ''} not shown" if count > 0 else ""


def _step(end: float) -> float:
    """1, 2 or 5 times a power of ten, for at most ten ticks."""
    power = 1e-9
    while True:
        for factor in (1, 2, 5):
            if end <= 10 * factor * power:
                return factor * power
        power *= 10


def _seconds(value: float) -> str:
    return f"{value:,.3g} s" if value < 100 else f"{value:,.0f} s"


def _number(value: float) -> str:
    """To a hundredth, without superfluous zeros."""
    return f"{value:.2f}".rstrip("0").rstrip(".")
