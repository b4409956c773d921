"""A trace in the Chrome trace format, to be opened in Perfetto (https://ui.perfetto.dev).

The format: https://docs.google.com/document/d/1CvAClvFfyA5R-PhYUmn5OOQtYMH4h6I0nSsKchNAySU
"""

from typing import Any, Final

import msgspec

from manyhands.trace import ProcessTrace, Trace

_LANES: Final = ("steps", "messages")
_MESSAGES: Final = frozenset(("send", "receive", "encode"))


def chrome(trace: Trace) -> bytes:
    """The trace as Chrome trace JSON; the same trace gives the same bytes.

    Every process has two lanes, because messages overlap with steps and slices of one lane must
    not; points are counters, events are instants.
    """
    names: list[dict[str, Any]] = []
    happenings: list[dict[str, Any]] = []
    for pid, process in enumerate(trace.processes, start=1):
        names += _names(pid, process)
        happenings += _happenings(pid, process)
    happenings.sort(key=lambda happening: happening["ts"])
    return msgspec.json.encode({"traceEvents": names + happenings, "displayTimeUnit": "ms"})


def _names(pid: int, process: ProcessTrace) -> list[dict[str, Any]]:
    life = f", life {process.life + 1}" if process.life else ""
    name = f"{process.name} on {process.header.host}{life}"
    common = {"ph": "M", "ts": 0, "pid": pid}
    return [
        {"name": "process_name", **common, "tid": 0, "args": {"name": name}},
        {"name": "process_sort_index", **common, "tid": 0, "args": {"sort_index": pid}},
        *(
            {"name": "thread_name", **common, "tid": tid, "args": {"name": lane}}
            for tid, lane in enumerate(_LANES)
        ),
    ]


def _happenings(pid: int, process: ProcessTrace) -> list[dict[str, Any]]:
    spans = [
        {
            "name": span.kind,
            "cat": "span",
            "ph": "X",
            "ts": _microseconds(span.start),
            "dur": _microseconds(span.seconds),
            "pid": pid,
            "tid": int(span.kind in _MESSAGES),
            "args": {"step": span.step},
        }
        for span in process.spans
    ]
    counters = [
        {
            "name": point.name,
            "ph": "C",
            "ts": _microseconds(point.at),
            "pid": pid,
            "tid": 0,
            "args": {"value": point.value},
        }
        for point in process.points
        if point.value is not None
    ]
    instants = [
        {
            "name": event.what,
            "cat": "event",
            "ph": "i",
            "s": "p",
            "ts": _microseconds(event.at),
            "pid": pid,
            "tid": 0,
            "args": event.detail,
        }
        for event in process.events
    ]
    return spans + counters + instants


def _microseconds(seconds: float) -> float:
    """To the nanosecond; a clock that went back must not make the file unreadable."""
    return max(0.0, round(seconds * 1e6, 3))
