"""Division of a step's time into computation, waiting and encoding."""

from __future__ import annotations

from typing import TYPE_CHECKING

from manyhands.transport.waits import overlap

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from manyhands.trace.records import Kind

_MOST_WAITS = 64
"""The most waits within a step that the trace records separately."""


def spans_of(
    begun: float,
    now: float,
    waits: Sequence[tuple[float, float]],
    coding: Sequence[tuple[float, float]],
    waiting: Kind,
) -> Iterator[tuple[Kind, float, float]]:
    """The spans from `begun` to `now`: what was done, when it began, and its seconds.

    If a worker waited very many times within a step, there is one wait, at the end. What was
    encoded and decoded meanwhile in another thread is no wait; the rest of it was hidden behind
    computation and is not counted.

    Args:
        begun: when the step began.
        now: when it ended.
        waits: the beginning and the seconds of every wait.
        coding: the same, of encoding in other threads.
        waiting: the name of what was waited for.
    """
    if len(waits) > _MOST_WAITS:
        waited = min(sum(seconds for _, seconds in waits), now - begun)
        waits = [(now - waited, waited)]
    for start, seconds in waits:
        yield "compute", begun, start - begun
        coded = overlap(start, seconds, coding) if coding else 0.0
        yield waiting, start, seconds - coded
        if coded:
            yield "encode", start + seconds - coded, coded
        begun = start + seconds
    yield "compute", begun, now - begun
