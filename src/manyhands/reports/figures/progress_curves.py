"""Speed and bytes over the course of a run."""

from collections.abc import Iterator
from dataclasses import dataclass

from manyhands.reports.figures.speed import training_seconds
from manyhands.reports.figures.trace_figures import loss_curve
from manyhands.trace import Trace


@dataclass(frozen=True, slots=True, kw_only=True)
class ProgressPoint:
    """A figure at one moment of a run."""

    seconds: float
    """Of training."""
    samples: int
    """That all workers had trained on by then."""
    value: float


def throughput_curve(trace: Trace, points: int = 100) -> tuple[ProgressPoint, ...]:
    """Samples per second of all workers together, between moments at which losses were recorded.

    Evaluations and other pauses lower it, as they do the speed of the run.
    """
    return tuple(_rates(trace, points))


def _rates(trace: Trace, points: int) -> Iterator[ProgressPoint]:
    seconds, samples = 0.0, 0
    for point in loss_curve(trace, points):
        passed, trained = point.seconds - seconds, point.samples - samples
        if passed <= 0 or trained <= 0:
            continue
        yield ProgressPoint(seconds=point.seconds, samples=point.samples, value=trained / passed)
        seconds, samples = point.seconds, point.samples


def bytes_curve(trace: Trace, points: int = 100) -> tuple[ProgressPoint, ...]:
    """Wire bytes that all processes have sent by the moments at which they wrote their sums.

    A short run has few such moments; without counted bytes there are none.
    """
    origin, _ = training_seconds(trace)
    moments = sorted(
        (at, number, samples if process.header.role == "worker" else 0, sent)
        for number, process in enumerate(trace.processes)
        for at, samples, sent in process.history
    )
    reached: dict[int, tuple[int, int]] = {}
    curve = []
    for at, number, samples, sent in moments:
        if reached.get(number) == (samples, sent):
            continue  # sums are written again at the end, though nothing was added
        reached[number] = samples, sent
        total = sum(each for _, each in reached.values())
        if total:
            curve.append(
                ProgressPoint(
                    seconds=max(0.0, at - origin),
                    samples=sum(each for each, _ in reached.values()),
                    value=float(total),
                )
            )
    step = -(-len(curve) // points)
    # Counted from the last one, which has the sum of the whole run.
    return tuple(curve[::-1][::step][::-1]) if curve else ()
