"""Traces: the records that every process of a run, live or virtual, writes while it works.

A run's folder has one file per process, `trace/worker-0.jsonl`, `trace/coordinator.jsonl` and
so on. A `Recorder` writes one; `read` converts all of them to one clock. Reports read nothing else.

    >>> Span(kind="compute", start=0.0, seconds=0.25, step=7).kind
    'compute'
"""

from manyhands.trace.clocks import estimate_offset
from manyhands.trace.digest import digest
from manyhands.trace.follow import Following
from manyhands.trace.merge import ProcessTrace, Trace, merge, read
from manyhands.trace.not_applied import NotApplied
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
from manyhands.trace.traffic import PHASES, SCOPES, Flow, Phase, Scope, TrafficCount, flow_key

__all__ = [
    "FORMAT",
    "KINDS",
    "PHASES",
    "SCOPES",
    "Event",
    "Flow",
    "Following",
    "Header",
    "Kind",
    "NotApplied",
    "Offset",
    "Phase",
    "Point",
    "ProcessTrace",
    "Record",
    "Recorder",
    "SampleCount",
    "Scope",
    "SenderStaleness",
    "Setting",
    "Span",
    "Staleness",
    "Totals",
    "Trace",
    "TrafficCount",
    "digest",
    "estimate_offset",
    "flow_key",
    "live_header",
    "merge",
    "read",
    "trace_file",
]
