"""What a run measured beside metrics, over time: means from one evaluation to the next."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from manyhands.reports.figures.speed import training_seconds
from manyhands.reports.figures.trace_figures import validation_series
from manyhands.trace import Point, Trace

MEASURE: Final = "measure/"
"""What the names of measures begin with."""
_STALENESS: Final = f"{MEASURE}staleness"


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasurePoint:
    """A measure at an evaluation: its mean since the one before."""

    seconds: float
    """Of training."""
    samples: int
    value: float | None
    """None if a value was not finite."""


def measured(trace: Trace) -> dict[str, tuple[MeasurePoint, ...]]:
    """Every measure by name, in order of time.

    Values that several workers wrote at one evaluation are averaged, weighted by their batches.
    The staleness of updates is written as they are applied, by whichever process does it, and is
    averaged here between evaluations; of very many updates the traces have a regular sample.
    """
    origin, _ = training_seconds(trace)
    written: dict[str, dict[int, list[Point]]] = {}
    updates: list[Point] = []
    for process in trace.processes:
        for point in process.points:
            if point.name == _STALENESS:
                updates.append(point)
            elif point.name.startswith(MEASURE):
                name = point.name.removeprefix(MEASURE)
                written.setdefault(name, {}).setdefault(point.samples, []).append(point)
    found = {
        name: tuple(
            MeasurePoint(
                seconds=max(point.at for point in points) - origin,
                samples=samples,
                value=_mean(points),
            )
            for samples, points in sorted(by_samples.items())
        )
        for name, by_samples in sorted(written.items())
    }
    if updates:
        found["staleness"] = tuple(_staleness(trace, updates, origin))
    return found


def _staleness(trace: Trace, updates: list[Point], origin: float) -> Iterator[MeasurePoint]:
    moments = next(iter(validation_series(trace).values()), [])
    begin = -1.0
    for moment in moments:
        since = [point for point in updates if begin < point.at <= moment.at]
        if since:
            yield MeasurePoint(
                seconds=moment.at - origin, samples=moment.samples, value=_mean(since)
            )
        begin = moment.at


def _mean(points: list[Point]) -> float | None:
    values = [(point.value, point.weight) for point in points]
    finite = [(value, weight) for value, weight in values if value is not None]
    total = sum(weight for _, weight in finite)
    if len(finite) < len(values) or not total:
        return None
    return sum(value * weight for value, weight in finite) / total
