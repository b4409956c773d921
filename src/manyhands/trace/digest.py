"""Digest of a trace: identifies what a run did, without process ids, hosts and times of day."""

import hashlib

import msgspec

from manyhands.trace.merge import Trace


def digest(trace: Trace) -> str:
    """SHA-256 of a trace's content, in hex.

    Process ids, host names, boot ids, clock offsets, the wall clock and the folder are excluded;
    times count from the run's start. Two virtual runs of one job and seed have the same digest.
    """
    content = [
        [
            process.name,
            process.life,
            process.header.role,
            process.header.rank,
            process.header.kind,
            process.began,
            process.spans,
            process.totals,
            process.points,
            process.events,
            process.settings,
            sorted(process.staleness.items()),
            process.samples,
            process.skipped,
            [
                (sender, sorted(counts.items()))
                for sender, counts in sorted(process.staleness_by_sender.items())
            ],
        ]
        for process in trace.processes
    ]
    return hashlib.sha256(msgspec.json.encode(content, order="deterministic")).hexdigest()
