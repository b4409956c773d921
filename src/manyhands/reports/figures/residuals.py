"""What codecs with error feedback had not sent when a worker ended."""

from collections.abc import Mapping
from dataclasses import dataclass
from math import hypot
from typing import Final

from manyhands.trace import ProcessTrace, Trace

RESIDUAL: Final = "residual"
"""The point that a worker records now and then; `residual/end` when its training is over."""
RESIDUAL_END: Final = "residual/end"
RESIDUAL_GROUP: Final = "residual/group"
"""The point of a worker that dropped its residual, because its next group has no other member."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Residuals:
    """Norms of what was computed and not sent."""

    at_end: float | None
    """Of all workers that trained to the end, as one vector; None if there is none."""
    lost: Mapping[int, float]
    """By rank, of incarnations that were lost, as last recorded: up to a second before, live."""
    with_groups: float = 0.0
    """Of workers that were left alone under `allreduce`, as one vector: who has nobody to send to
    drops what it has not sent."""


def residuals(trace: Trace) -> Residuals | None:
    """What was not sent at the end and with lost workers; None without error feedback."""
    ends, lost, left = list[float](), dict[int, float](), list[float]()
    dead = {
        event.detail["member"]
        for process in trace.processes
        for event in process.events
        if event.what == "lost" and "member" in event.detail
    }
    last = {worker.name: worker.life for worker in trace.workers}
    for worker in trace.workers:
        left += [point.value or 0.0 for point in worker.points if point.name == RESIDUAL_GROUP]
        end = _latest(worker, RESIDUAL_END)
        if end is not None:
            ends.append(end)
            continue
        norm = _latest(worker, RESIDUAL)
        if norm is not None and (worker.life < last[worker.name] or worker.name in dead):
            rank = worker.header.rank
            lost[rank] = hypot(lost.get(rank, 0.0), norm)
    if not ends and not lost and not left:
        return None
    return Residuals(at_end=hypot(*ends) if ends else None, lost=lost, with_groups=hypot(*left))


def _latest(worker: ProcessTrace, name: str) -> float | None:
    found = [point for point in worker.points if point.name == name]
    return max(found, key=lambda point: point.at).value if found else None
