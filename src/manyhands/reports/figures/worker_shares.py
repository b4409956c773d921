"""Shares of workers in the samples of a run: whether one of them did most of the work."""

from typing import Final

from manyhands.trace import Trace

_MUCH: Final = 1.5
"""A worker with more than so many times an equal part is named."""


def uneven_share(trace: Trace) -> str:
    """The worker with the most samples, if it had far more than an equal part; otherwise empty."""
    counts = {worker.header.rank: worker.totals.samples for worker in trace.workers}
    total = sum(counts.values())
    if len(counts) < 2 or not total:
        return ""
    rank, most = max(counts.items(), key=lambda one: one[1])
    if most * len(counts) <= _MUCH * total:
        return ""
    return (
        f"worker {rank} had {100 * most / total:.0f} % of the samples; an equal part is "
        f"{100 / len(counts):.3g} %"
    )
