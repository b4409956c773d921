"""Who did what when, for every strategy on one scale of time."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from manyhands.reports.formatting import duration, plural
from manyhands.reports.page.markup import Markup, element
from manyhands.reports.page.palette import PARTS, Look
from manyhands.reports.page.swatch import bands, named
from manyhands.reports.render.timeline import TimelineRow, rows_of
from manyhands.trace import Trace

MOST_WORKERS: Final = 8
MOST_SERVERS: Final = 2
MOST_STRETCHES: Final = 100
"""In a row: as many as can be seen, and so that a page stays small at any size of run."""

_HEIGHT: Final = {"wait": (6, 4)}
"""Offset and height of a band in a row of 16; waits are thin, all else is full."""
_FULL: Final = (1, 14)
_WIDTH: Final = 1000


@dataclass(frozen=True, slots=True)
class _Lane:
    strategy: str
    rows: tuple[TimelineRow, ...]
    hidden: int


def timelines(traces: Mapping[str, Trace], looks: Mapping[str, Look]) -> Markup:
    """One run of each strategy, from the beginning of training; as long as can be seen of all."""
    lanes = [_lane(strategy, trace) for strategy, trace in traces.items()]
    lanes = [lane for lane in lanes if any(row.bars for row in lane.rows)]
    if not lanes:
        return Markup("")
    end = min(_seen(lane.rows) for lane in lanes)
    shown = {one.band for lane in lanes for row in lane.rows for one in row.bars}
    drawn = [
        element(
            "figure",
            element("figcaption", named(lane.strategy, looks), _more(lane.hidden)),
            *(_row(row, end) for row in lane.rows),
            class_="lane",
        )
        for lane in lanes
    ]
    return element("div", bands(shown), *drawn, _axis(end), class_="timelines")


def _lane(strategy: str, trace: Trace) -> _Lane:
    workers, servers = rows_of(trace)
    shown = (*workers[:MOST_WORKERS], *servers[:MOST_SERVERS])
    return _Lane(strategy, shown, len(workers) + len(servers) - len(shown))


def _seen(rows: Iterable[TimelineRow]) -> float:
    """Until when no row has more than can be seen."""
    ends = []
    for row in rows:
        starts = sorted(one.start for one in row.bars if one.band in PARTS)
        if len(starts) > MOST_STRETCHES and not row.is_server:
            ends.append(starts[MOST_STRETCHES])
        elif row.bars:
            ends.append(max(one.stop for one in row.bars))
    return min(ends)


def _row(row: TimelineRow, end: float) -> Markup:
    paths = []
    for band, colour in PARTS.items():
        top, height = _HEIGHT.get(band, _FULL)
        shown = sorted(
            (one.start, min(one.stop, end))
            for one in row.bars
            if one.band == band and one.start < end
        )
        # A server's rows are not thinned by what a worker's can show.
        data = "".join(
            f"M{_place(start, end)} {top}H{_place(stop, end)}V{top + height}H{_place(start, end)}z"
            for start, stop in shown[: 4 * MOST_STRETCHES]
        )
        if data:
            paths.append(element("path", d=data, fill=colour))
    for at, words in row.marks[:MOST_STRETCHES]:
        if end and at <= end:
            line = f"M{_place(at, end)} 0V16"
            mark = element("title", f"fault: {words}")
            paths.append(element("path", mark, d=line, stroke="#cf222e", stroke_width="3"))
    return element(
        "div",
        element("span", row.name.replace("-", " "), class_="who"),
        element(
            "svg",
            *paths,
            viewBox=f"0 0 {_WIDTH} 16",
            preserveAspectRatio="none",
            role="img",
            aria_label=f"timeline of {row.name.replace('-', ' ')}",
        ),
        class_="row",
    )


def _axis(end: float) -> Markup:
    ticks = [
        element("span", duration(end * part / 4) if part else "0 s", style=f"left:{25 * part}%")
        for part in range(5)
    ]
    return element("div", element("span", class_="who"), element("div", *ticks), class_="row axis")


def _place(at: float, end: float) -> str:
    return f"{at / end * _WIDTH:.1f}".removesuffix(".0")


def _more(hidden: int) -> Markup:
    words = f"{hidden:,} more process{'es' if plural(hidden) else ''} not shown"
    return element("small", words) if hidden else Markup("")
