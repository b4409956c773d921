"""Traces: what every process of every run, live or virtual, writes down while it works.

A run's folder holds one file per process, `trace/worker-0.jsonl`, `trace/coordinator.jsonl` and
so on. A `Recorder` writes one; `read` puts all of them on one clock. Reports read nothing else.

    >>> Span(kind="compute", start=0.0, seconds=0.25, step=7).kind
    'compute'
"""

from manyhands.trace.clocks import estimate_offset
from manyhands.trace.digest import digest
from manyhands.trace.merge import ProcessTrace, Trace, merge, read
from manyhands.trace.recorder import Recorder
from manyhands.trace.records import (
    FORMAT,
    KINDS,
    Event,
    Header,
    Kind,
    Offset,
    Point,
    Record,
    SampleCount,
    SenderStaleness,
    Setting,
    Span,
    Staleness,
    Totals,
    live_header,
    trace_file,
)

__all__ = [
    "FORMAT",
    "KINDS",
    "Event",
    "Header",
    "Kind",
    "Offset",
    "Point",
    "ProcessTrace",
    "Record",
    "Recorder",
    "SampleCount",
    "SenderStaleness",
    "Setting",
    "Span",
    "Staleness",
    "Totals",
    "Trace",
    "digest",
    "estimate_offset",
    "live_header",
    "merge",
    "read",
    "trace_file",
]
