"""What a run could not store in time, because a disk was full for instance."""

from __future__ import annotations

from typing import TYPE_CHECKING

from manyhands.reports.figures.speed import training_seconds

if TYPE_CHECKING:
    from manyhands.trace import Trace


def not_stored(trace: Trace) -> str:
    """Checkpoints that were left out, and for how long traces waited, in words; empty without any.

    Times are in seconds since training began.
    """
    begin = training_seconds(trace)[0]
    events = sorted(
        (event for process in trace.processes for event in process.events),
        key=lambda event: event.at,
    )
    told = []
    left_out = [event for event in events if event.what == "not stored"]
    if left_out:
        first, last = left_out[0], left_out[-1]
        many = len(left_out)
        when = f"at {first.at - begin:.1f} s"
        if many > 1:
            when = f"from {first.at - begin:.1f} s to {last.at - begin:.1f} s"
        why = dict.fromkeys(event.detail.get("words", "") for event in left_out)
        samples = int(first.detail.get("samples", "0"))
        what = f"{many:,} checkpoint{'s' if many > 1 else ''}, the first after {samples:,} samples"
        told.append(f"{what}, {when}: {'; '.join(why)}")
    for event in events:
        if event.what == "trace waited":
            end = event.at - begin
            told.append(
                f"traces could not be written from {end - float(event.detail['seconds']):.1f} s to "
                f"{end:.1f} s, and {event.detail['words']}"
            )
    return "; ".join(told)
